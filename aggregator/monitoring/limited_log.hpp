// The lines that a peer can cause, by whatever it does: jobs that form and end, joins and local
// workers that are refused, commands, what DPDK says of them. They go through one LimitedLog, so
// that no peer fills the log: what has no other way to the log cannot forget the limit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "aggregator/monitoring/rate_limit.hpp"
#include "common/base/time.hpp"
#include "common/log/logger.hpp"

namespace sluice::aggregator {

/// For any thread. At most so many lines a second are written of each cause, and then one that
/// counts those left out. A flood of one cause leaves no line of another out.
class LimitedLog {
 public:
  using Clock = std::function<Time()>;

  /// Nothing is limited before limit() is called: a daemon that starts has no peers.
  LimitedLog(std::shared_ptr<spdlog::logger> logger, Clock clock);

  /// From now on; 0: no limit.
  void limit(std::uint32_t lines_per_second);

  /// `cause` is what the line that counts says: "... suppressed 7 lines about refused joins". It
  /// must be a literal, so that there are few.
  template <class... Args>
  void log(std::string_view cause, spdlog::level::level_enum level,
           spdlog::format_string_t<Args...> format, Args&&... args) {
    if (admit(cause, level)) logger_->log(level, format, std::forward<Args>(args)...);
  }

  /// Tells of the lines left out in seconds that are over. Call it now and then, so that the end of
  /// a flood is told, too.
  void tell_suppressed();
  /// The same, also of the seconds that are not over: before the log ends.
  void flush();

 private:
  struct Cause {
    RateLimit limit;
    spdlog::level::level_enum worst = spdlog::level::trace;  // of the lines left out
  };
  using Lines = std::pair<std::uint64_t, spdlog::level::level_enum>;

  void tell_suppressed(Time now);
  bool admit(std::string_view cause, spdlog::level::level_enum level);
  static Lines take(Cause& cause, Time now);
  void tell(std::string_view cause, Lines lines) const;

  const std::shared_ptr<spdlog::logger> logger_;
  const Clock clock_;
  std::mutex mutex_;  // not held while a line is written, which may take long
  std::uint32_t lines_per_second_ = 0;
  std::map<std::string_view, Cause> causes_;
};

}  // namespace sluice::aggregator
