// Log lines that a peer can cause: about jobs that form and end, refused joins and local workers,
// commands, and DPDK's lines about them. They go through one LimitedLog, so that no peer fills the
// log. Code that can log only through it cannot forget the limit.
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

/// May be used by any thread. It writes a limited number of lines a second for each cause, and then
/// one line with the number of suppressed ones. A flood of one cause suppresses no line of another.
class LimitedLog {
 public:
  using Clock = std::function<Time()>;

  /// There is no limit before limit() is called: a daemon that starts has no peers.
  LimitedLog(std::shared_ptr<spdlog::logger> logger, Clock clock);

  /// Sets the limit from now on; 0: no limit.
  void limit(std::uint32_t lines_per_second);

  /// `cause` is the subject of the line with the number: "... suppressed 7 lines about refused
  /// joins". It must be a literal, so that there are few causes.
  template <class... Args>
  void log(std::string_view cause, spdlog::level::level_enum level,
           spdlog::format_string_t<Args...> format, Args&&... args) {
    if (admit(cause, level)) logger_->log(level, format, std::forward<Args>(args)...);
  }

  /// Logs how many lines were suppressed in seconds that are over. Must be called now and then, so
  /// that the end of a flood is logged, too.
  void tell_suppressed();
  /// Does the same also for seconds that are not over. Must be called before the log ends.
  void flush();

 private:
  struct Cause {
    RateLimit limit;
    spdlog::level::level_enum worst = spdlog::level::trace;  // of the suppressed lines
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
