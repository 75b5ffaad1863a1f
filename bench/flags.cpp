#include "bench/flags.hpp"

#include <charconv>
#include <sstream>

namespace sluice::bench {
namespace {

namespace po = boost::program_options;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;

po::typed_value<std::string>* argument() {
  return po::value<std::string>()->value_name("ARG");
}

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

po::options_description all_of(const std::vector<FlagGroup>& groups) {
  po::options_description all;
  for (const FlagGroup& group : groups) all.add(group.flags());
  return all;
}

std::string shown(double value) {
  std::ostringstream text;
  text.precision(12);
  text << value;
  return text.str();
}

}  // namespace

FlagGroup& FlagGroup::value(const char* flag, const char* default_value, const char* help) {
  flags_.add_options()(flag, argument()->default_value(default_value), help);
  return *this;
}

FlagGroup& FlagGroup::optional_value(const char* flag, const char* help) {
  flags_.add_options()(flag, argument(), help);
  return *this;
}

FlagGroup& FlagGroup::file(const char* flag, const char* help) {
  flags_.add_options()(flag, argument()->value_name("FILE")->default_value(""), help);
  return *this;
}

FlagGroup& FlagGroup::on(const char* flag, const char* help) {
  flags_.add_options()(flag, po::bool_switch(), help);
  return *this;
}

std::string to_text(const Help& help) {
  std::ostringstream text;
  text << "Usage: " << help.usage << "\n\n"
       << help.about << "\n"
       << all_of(help.flags) << "\n"
       << help.notes;
  return text.str();
}

Values::Values(const std::vector<FlagGroup>& groups, const std::vector<std::string>& arguments) {
  namespace style = po::command_line_style;
  const po::options_description flags = all_of(groups);
  try {
    po::store(po::command_line_parser(arguments)
                  .options(flags)
                  .positional({})
                  .style(style::default_style & ~style::allow_guessing)
                  .run(),
              map_);
  } catch (const po::error& error) {
    throw UsageError(std::string(error.what()) + "; allowed: the flags of --help");
  }
}

void Values::refuse(const char* flag, const std::string& allowed) const {
  throw UsageError("--" + std::string(flag) + " '" + text(flag) + "': allowed: " + allowed);
}

std::uint64_t Values::integer(const char* flag, std::uint64_t lowest, std::uint64_t highest) const {
  const auto number = parse<std::uint64_t>(text(flag));
  if (!number || *number < lowest || *number > highest)
    refuse(flag, std::to_string(lowest) + ".." + std::to_string(highest));
  return *number;
}

double Values::number(const char* flag, double lowest, double highest) const {
  const auto number = parse_number(text(flag));
  if (!number || !(*number >= lowest && *number <= highest))
    refuse(flag, shown(lowest) + ".." + shown(highest));
  return *number;
}

std::uint64_t Values::bytes(const char* flag, std::uint64_t lowest) const {
  std::string value = text(flag);
  int shift = 0;
  if (const auto suffix = std::string_view("KMG").find(upper(value.empty() ? ' ' : value.back()));
      suffix != std::string_view::npos) {
    shift = 10 * static_cast<int>(suffix + 1);
    value.pop_back();
  }
  const auto number = parse<std::uint64_t>(value);
  if (!number || *number > kMaxBytes >> shift || *number << shift < lowest)
    refuse(flag, std::to_string(lowest) + "..1024G, as bytes or with K, M or G");
  return *number << shift;
}

std::optional<double> parse_number(std::string_view text) {
  return parse<double>(text);
}

}  // namespace sluice::bench
