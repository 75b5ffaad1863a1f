// From text to the value of a setting. Every failure reads "NAME must be WHAT, not 'TEXT'", so that
// one line tells what to change; the caller adds where the text came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/error.hpp>

namespace sluice::config {

/// Which integers a setting takes: min..max, and `also` where one value has a meaning of its own.
struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
  std::optional<std::int64_t> also = {};
  bool power_of_two = false;

  bool contains(std::int64_t value) const;
};

/// "1..32", "0 or 576..9698", "a power of two, 2..64".
std::string describe(const IntegerRange& range);

/// The kInvalidArgument "NAME must be ALLOWED, not 'TEXT'".
Error must_be(std::string_view name, std::string_view allowed, std::string_view text);

/// Throws kInvalidArgument.
[[noreturn]] void fail(const std::string& message);

/// What may stand around the words of a line.
inline constexpr std::string_view kBlanks = " \t\r";

/// Decimal digits, with '-' before a negative number, and nothing else. Throws must_be(...).
std::int64_t parse_integer(std::string_view name, const IntegerRange& range, std::string_view text);

/// "on", "true", "yes", "1" and their opposites. Throws must_be(...).
bool parse_switch(std::string_view name, std::string_view text);

/// The non-empty parts of `text` between separators, and blanks are always separators.
std::vector<std::string> split(std::string_view text, char separator = ' ');

/// "a|b|c".
std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace sluice::config
