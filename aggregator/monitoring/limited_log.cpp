#include "aggregator/monitoring/limited_log.hpp"

#include <algorithm>
#include <vector>

#include "common/log/fields.hpp"

namespace sluice::aggregator {

LimitedLog::LimitedLog(std::shared_ptr<spdlog::logger> logger, Clock clock)
    : logger_(std::move(logger)), clock_(std::move(clock)) {}

void LimitedLog::limit(std::uint32_t lines_per_second) {
  flush();
  const std::lock_guard lock(mutex_);
  lines_per_second_ = lines_per_second;
  causes_.clear();
}

bool LimitedLog::admit(std::string_view cause, spdlog::level::level_enum level) {
  if (!logger_->should_log(level)) return false;
  const Time now = clock_();
  Lines suppressed;
  bool admitted;
  {
    const std::lock_guard lock(mutex_);
    Cause& of = causes_.try_emplace(cause, Cause{RateLimit(lines_per_second_)}).first->second;
    suppressed = take(of, now);
    admitted = of.limit.admit(now);
    if (!admitted) of.worst = std::max(of.worst, level);
  }
  tell(cause, suppressed);
  return admitted;
}

void LimitedLog::tell_suppressed() {
  tell_suppressed(clock_());
}

void LimitedLog::flush() {
  tell_suppressed(Time::max());
}

/// Uses `now` instead of the clock's time.
void LimitedLog::tell_suppressed(Time now) {
  std::vector<std::pair<std::string_view, Lines>> all;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [cause, of] : causes_) all.emplace_back(cause, take(of, now));
  }
  for (const auto& [cause, lines] : all) tell(cause, lines);
}

LimitedLog::Lines LimitedLog::take(Cause& cause, Time now) {
  const std::uint64_t lines = cause.limit.take_suppressed(now);
  if (lines == 0) return {};
  return {lines, std::exchange(cause.worst, spdlog::level::trace)};
}

void LimitedLog::tell(std::string_view cause, Lines lines) const {
  const auto [count, level] = lines;
  if (count == 0) return;
  const LogContext context(
      {{"event", "suppressed"}, {"lines", count}, {"cause", std::string(cause)}});
  logger_->log(level, "... suppressed {} lines about {}", count, cause);
}

}  // namespace sluice::aggregator
