// What a line of the log has in addition to its message, by name and type, for programs that read
// logs. Lines of text do not show it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sluice {

struct LogField {
  std::string_view name;  ///< lower-case letters and '_'; must outlive the line
  std::variant<std::uint64_t, std::string> value;
};
using LogFields = std::vector<LogField>;

/// While it lives, the lines that this thread logs have these fields and no others. If there are
/// several, the innermost is used.
class LogContext {
 public:
  explicit LogContext(LogFields fields);
  ~LogContext();
  LogContext(const LogContext&) = delete;
  LogContext& operator=(const LogContext&) = delete;

  /// The fields of the line that this thread logs now.
  static std::span<const LogField> current();

 private:
  const LogFields fields_;
  const LogFields* const outer_;
};

}  // namespace sluice
