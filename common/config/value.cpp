#include "common/config/value.hpp"

#include <bit>
#include <charconv>
#include <system_error>

namespace sluice::config {

bool IntegerRange::contains(std::int64_t value) const {
  if (also == value) return true;
  if (value < min || value > max) return false;
  return !power_of_two || std::has_single_bit(static_cast<std::uint64_t>(value));
}

std::string describe(const IntegerRange& range) {
  const std::string span = std::to_string(range.min) + ".." + std::to_string(range.max);
  return (range.also ? std::to_string(*range.also) + " or " : "") +
         (range.power_of_two ? "a power of two, " : "") + span;
}

void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

Error must_be(std::string_view name, std::string_view allowed, std::string_view text) {
  return {ErrorCode::kInvalidArgument, std::string(name) + " must be " + std::string(allowed) +
                                           ", not '" + std::string(text) + "'"};
}

std::int64_t parse_integer(std::string_view name, const IntegerRange& range,
                           std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped_at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped_at != end || !range.contains(value))
    throw must_be(name, describe(range), text);
  return value;
}

bool parse_switch(std::string_view name, std::string_view text) {
  for (const std::string_view yes : {"on", "true", "yes", "1"})
    if (text == yes) return true;
  for (const std::string_view no : {"off", "false", "no", "0"})
    if (text == no) return false;
  throw must_be(name, "on or off", text);
}

std::vector<std::string> split(std::string_view text, char separator) {
  const std::string separators{separator, ' ', '\t'};
  std::vector<std::string> parts;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(separators, begin)) != text.npos;) {
    const std::size_t end = text.find_first_of(separators, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end == text.npos ? text.size() : end;
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string joined;
  for (const std::string& part : parts) {
    if (!joined.empty()) joined += separator;
    joined += part;
  }
  return joined;
}

}  // namespace sluice::config
