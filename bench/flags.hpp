// Command lines of the bench programs. Every value is read as text, so that each error can name
// flag, value and what is allowed in the same form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/program_options.hpp>

#include "bench/usage_error.hpp"

namespace sluice::bench {

/// Flags that --help lists under one title.
class FlagGroup {
 public:
  explicit FlagGroup(const char* title) : title_(title), flags_(title) {}

  FlagGroup& value(const char* flag, const char* default_value, const char* help);
  FlagGroup& optional_value(const char* flag, const char* help);
  FlagGroup& file(const char* flag, const char* help);  ///< a file name; by default empty
  FlagGroup& on(const char* flag, const char* help);

  const std::string& title() const { return title_; }
  const boost::program_options::options_description& flags() const { return flags_; }

 private:
  std::string title_;
  boost::program_options::options_description flags_;
};

/// The text of --help, from which the manual page is made, too.
struct Help {
  std::string usage;  ///< "sluice-perf [flags]"
  std::string about;  ///< lines of paragraphs, with an empty line between paragraphs
  std::vector<FlagGroup> flags;
  std::string notes;  ///< as `about`
};

std::string to_text(const Help& help);

/// The values of a command line; the readers throw UsageError.
class Values {
 public:
  /// `arguments` without the program's name.
  Values(const std::vector<FlagGroup>& flags, const std::vector<std::string>& arguments);

  std::string text(const char* flag) const { return map_[flag].as<std::string>(); }
  bool given(const char* flag) const { return map_.count(flag) != 0; }
  bool is_set(const char* flag) const { return map_[flag].as<bool>(); }

  [[noreturn]] void refuse(const char* flag, const std::string& allowed) const;

  std::uint64_t integer(const char* flag, std::uint64_t lowest, std::uint64_t highest) const;
  double number(const char* flag, double lowest, double highest) const;
  /// Accepts a suffix K, M or G for 2^10, 2^20, 2^30; up to 1024G.
  std::uint64_t bytes(const char* flag, std::uint64_t lowest) const;

 private:
  boost::program_options::variables_map map_;
};

/// The number that all of `text` is; nothing if it is not a number.
std::optional<double> parse_number(std::string_view text);

}  // namespace sluice::bench
