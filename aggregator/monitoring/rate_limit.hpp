// Prevents a repeated log line from filling the log. It admits at most n lines a second, and counts
// the suppressed ones.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "common/base/time.hpp"

namespace sluice::aggregator {

/// One call site's budget; used by one thread.
class RateLimit {
 public:
  /// `lines_per_second` 0 means no limit.
  explicit RateLimit(std::uint32_t lines_per_second) : limit_(lines_per_second) {}

  /// Whether a line may be printed at `now`; otherwise it is counted as suppressed.
  bool admit(Time now) {
    if (limit_ == 0) return true;
    if (window_is_over(now)) window_end_ = after(now, std::chrono::seconds(1)), lines_ = 0;
    if (lines_ < limit_) return ++lines_, true;
    return ++suppressed_, false;
  }

  /// How many lines were suppressed since the last call that returned any. It is 0 while the second
  /// in which they were suppressed still runs, so that the number is logged once per second.
  std::uint64_t take_suppressed(Time now) {
    return window_is_over(now) ? std::exchange(suppressed_, 0) : 0;
  }

 private:
  bool window_is_over(Time now) const { return now >= window_end_; }

  std::uint32_t limit_;
  std::uint32_t lines_ = 0;
  std::uint64_t suppressed_ = 0;
  Time window_end_ = Time::min();
};

}  // namespace sluice::aggregator
