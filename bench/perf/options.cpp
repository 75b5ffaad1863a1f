#include "bench/perf/options.hpp"

#include <charconv>
#include <limits>
#include <sstream>
#include <string_view>

#include <boost/program_options.hpp>

namespace sluice::perf {
namespace {

namespace po = boost::program_options;

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 40;

/// Every value is read as text, so that each error can name flag, value and range in one manner.
class FlagGroup {
 public:
  explicit FlagGroup(const char* title) : flags_(title) {}

  FlagGroup& value(const char* flag, const char* default_value, const char* help) {
    flags_.add_options()(flag, text()->default_value(default_value), help);
    return *this;
  }
  FlagGroup& optional_value(const char* flag, const char* help) {
    flags_.add_options()(flag, text(), help);
    return *this;
  }
  FlagGroup& on(const char* flag, const char* help) {
    flags_.add_options()(flag, po::bool_switch(), help);
    return *this;
  }
  operator const po::options_description&() const { return flags_; }

 private:
  static po::typed_value<std::string>* text() {
    return po::value<std::string>()->value_name("ARG");
  }

  po::options_description flags_;
};

po::options_description description() {
  const auto sizes =
      FlagGroup("Sizes (bytes; suffixes K M G stand for 2^10 2^20 2^30)")
          .value("minbytes,b", "32M", "first size, 0..1024G")
          .value("maxbytes,e", "32M", "last size, minbytes..1024G")
          .value("stepfactor,f", "1", "factor between sizes, 2..1024; 1 adds stepbytes")
          .value("stepbytes,i", "1M", "bytes between sizes, 1..1024G, where the factor is 1");
  const auto ops =
      FlagGroup("Operations")
          .value("datatype,d", "float", "float, double, half, bfloat16, int32, int64 or all")
          .value("op,o", "sum", "sum, min, max, avg or all")
          .value("density", "1", "shares of each rank's blocks that are not zero: list of 0..1")
          .value("overlap", "random",
                 "of the ranks' non-zero blocks: random (independent), all "
                 "(the same) or none (disjoint while there are enough)")
          .value("in-place", "both", "0 (out of place), 1 (in place) or both")
          .on("bitmap", "pass the bitmap of non-zero blocks, which spares the search")
          .optional_value("block-elements",
                          "elements per block, 1..16384 "
                          "(default: SLUICE_BLOCK_ELEMENTS, else 256)")
          .optional_value("streams",
                          "streams of the job, 1..1024; 0 takes the aggregator's "
                          "(default: SLUICE_STREAMS, else 0)");
  const auto runs =
      FlagGroup("Measuring")
          .value("iters,n", "20", "timed iterations of each row, 1..1000000")
          .value("warmup_iters,w", "5", "iterations before, not timed, 0..1000000")
          .value("check,c", "1",
                 "1 compares every bit of a row's first (warm-up) and last run "
                 "with a reference, 0 does not")
          .value("seed", "1", "of values and block positions, 0..2^64-1, equal on all ranks")
          .value("json", "", "also write the rows to this file (rank 0)")
          .on("help,h", "print this and exit");
  po::options_description all;
  return all.add(sizes).add(ops).add(runs);
}

class Values {
 public:
  explicit Values(const po::variables_map& map) : map_(map) {}

  std::string text(const char* flag) const { return map_[flag].as<std::string>(); }
  bool given(const char* flag) const { return map_.count(flag) != 0; }
  bool is_set(const char* flag) const { return map_[flag].as<bool>(); }

  [[noreturn]] void refuse(const char* flag, const std::string& allowed) const {
    throw UsageError("--" + std::string(flag) + " '" + text(flag) + "': allowed: " + allowed);
  }

  std::uint64_t integer(const char* flag, std::uint64_t lowest, std::uint64_t highest) const {
    const std::string value = text(flag);
    const auto number = parse_integer(value);
    if (!number || *number < lowest || *number > highest)
      refuse(flag, std::to_string(lowest) + ".." + std::to_string(highest));
    return *number;
  }

  std::uint64_t bytes(const char* flag, std::uint64_t lowest) const {
    std::string value = text(flag);
    int shift = 0;
    if (const auto suffix = std::string_view("KMG").find(upper(value.empty() ? ' ' : value.back()));
        suffix != std::string_view::npos) {
      shift = 10 * static_cast<int>(suffix + 1);
      value.pop_back();
    }
    const auto number = parse_integer(value);
    if (!number || *number > kMaxBytes >> shift || *number << shift < lowest)
      refuse(flag, std::to_string(lowest) + "..1024G, as bytes or with K, M or G");
    return *number << shift;
  }

 private:
  static char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

  static std::optional<std::uint64_t> parse_integer(std::string_view value) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
    return number;
  }

  const po::variables_map& map_;
};

std::vector<double> densities(const Values& values) {
  std::vector<double> list;
  std::istringstream text(values.text("density") + ",");
  for (std::string item; std::getline(text, item, ',');) {
    double density = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), density);
    const bool complete = error == std::errc() && end == item.data() + item.size();
    if (!complete || !(density >= 0 && density <= 1))
      values.refuse("density", "numbers 0..1, separated by commas");
    list.push_back(density);
  }
  return list;
}

std::vector<ElementType> types(const Values& values) {
  if (values.text("datatype") == "all")
    return {ElementType::kFloat32,  ElementType::kFloat64, ElementType::kFloat16,
            ElementType::kBFloat16, ElementType::kInt32,   ElementType::kInt64};
  const auto type = parse_element_type(values.text("datatype"));
  if (!type) values.refuse("datatype", "float, double, half, bfloat16, int32, int64, all");
  return {*type};
}

std::vector<Reduction> reductions(const Values& values) {
  if (values.text("op") == "all")
    return {Reduction::kSum, Reduction::kMin, Reduction::kMax, Reduction::kAverage};
  const auto reduction = parse_reduction(values.text("op"));
  if (!reduction) values.refuse("op", "sum, min, max, avg, all");
  return {*reduction};
}

Overlap overlap(const Values& values) {
  const auto overlap = parse_overlap(values.text("overlap"));
  if (!overlap) values.refuse("overlap", "random, all, none");
  return *overlap;
}

std::vector<bool> in_place(const Values& values) {
  const std::string text = values.text("in-place");
  if (text == "both") return {false, true};
  if (text != "0" && text != "1") values.refuse("in-place", "0, 1, both");
  return {text == "1"};
}

Options interpret(const Values& values) {
  constexpr std::uint64_t kMaxIterations = 1'000'000;
  Options options;
  options.min_bytes = values.bytes("minbytes", 0);
  options.max_bytes = values.bytes("maxbytes", options.min_bytes);
  options.step_factor = values.integer("stepfactor", 1, 1024);
  options.step_bytes = values.bytes("stepbytes", 1);
  if (options.min_bytes == 0 && options.max_bytes != 0 && options.step_factor > 1)
    values.refuse("minbytes", "1..1024G with --stepfactor, as 0 does not grow");
  options.iterations = static_cast<std::uint32_t>(values.integer("iters", 1, kMaxIterations));
  options.warmup_iterations =
      static_cast<std::uint32_t>(values.integer("warmup_iters", 0, kMaxIterations));
  options.check = values.integer("check", 0, 1) == 1;
  options.types = types(values);
  options.reductions = reductions(values);
  options.densities = densities(values);
  options.overlap = overlap(values);
  options.in_place = in_place(values);
  if (values.given("block-elements"))
    options.block_elements = static_cast<std::uint16_t>(values.integer("block-elements", 1, 16384));
  if (values.given("streams"))
    options.streams = static_cast<std::uint16_t>(values.integer("streams", 0, 1024));
  options.bitmap = values.is_set("bitmap");
  options.seed = values.integer("seed", 0, std::numeric_limits<std::uint64_t>::max());
  options.json_path = values.text("json");
  return options;
}

}  // namespace

std::vector<std::uint64_t> Options::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = min_bytes; size <= max_bytes;
       size = step_factor > 1 && size > 0 ? size * step_factor : size + step_bytes)
    sizes.push_back(size);
  return sizes;
}

Options parse_options(const std::vector<std::string>& arguments) {
  namespace style = po::command_line_style;
  po::variables_map map;
  try {
    po::store(po::command_line_parser(arguments)
                  .options(description())
                  .positional({})
                  .style(style::default_style & ~style::allow_guessing)
                  .run(),
              map);
  } catch (const po::error& error) {
    throw UsageError(std::string(error.what()) + "; allowed: the flags of --help");
  }
  if (Values(map).is_set("help")) {
    Options options;
    options.help = true;
    return options;
  }
  return interpret(Values(map));
}

std::string usage() {
  std::ostringstream text;
  text << "Usage: sluice-perf [flags], started once per rank\n\n"
          "Times AllReduce over Sluice and checks its results. Ranks, world size and aggregators\n"
          "come from the environment (SLUICE_RANK, SLUICE_WORLD_SIZE, SLUICE_AGGREGATORS, ...) or\n"
          "the launcher; rank 0 prints. Flags and columns follow nccl-tests. Exit status: 0 all\n"
          "right, 1 a wrong result or an error, 2 a wrong flag.\n\n"
       << description()
       << "\nColumns: time is the median over the timed iterations, each the longest of all ranks\n"
          "from after a barrier to completion; algbw is size / time and busbw is\n"
          "algbw * 2(ranks-1)/ranks; wire is the UDP payload sent and received by all ranks, the\n"
          "mean of an iteration; retrans is what all ranks sent again in all timed iterations.\n";
  return text.str();
}

}  // namespace sluice::perf
