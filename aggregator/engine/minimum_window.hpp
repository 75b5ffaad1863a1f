// How many of a shard's streams all ranks of a job may run: the minimum of the windows that they
// have sent lately (rule 8 of docs/protocol.md). On further streams a rank would only wait for the
// one with the smallest window. Old values are forgotten, as a rank that contributes nothing delays
// no other rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace sluice::aggregator {

class MinimumWindow {
 public:
  /// Forgets all values.
  void begin(std::uint16_t ranks) {
    *this = {};
    period_ = kRounds * ranks;
  }

  /// A rank has sent its window; 0: it sends none.
  void observe(std::uint16_t width) {
    if (width == 0) return;
    least_ = std::min(least_, width);
    if (++observed_ < period_) return;
    observed_ = 0;
    least_before_ = std::exchange(least_, kNone);
  }

  /// An operator limits the job to so many streams; 0: no limit.
  void limit(std::uint16_t width) {
    limit_ = width == 0 ? kNone : width;
    was_limited_ = true;
  }
  std::uint16_t limited_to() const { return limit_ == kNone ? 0 : limit_; }

  /// The minimum; 0: no rank has sent a window.
  std::uint16_t value() const {
    const std::uint16_t least = std::min({least_, least_before_, limit_});
    return least == kNone && !was_limited_ ? 0 : least;
  }

 private:
  static constexpr std::uint16_t kNone = std::numeric_limits<std::uint16_t>::max();
  static constexpr std::uint32_t kRounds = 4;  // in a period; all ranks contribute to each

  std::uint32_t period_ = kRounds;
  std::uint32_t observed_ = 0;
  std::uint16_t least_ = kNone;
  std::uint16_t least_before_ = kNone;  // of the period before
  std::uint16_t limit_ = kNone;
  bool was_limited_ = false;  // ranks must learn when the limit ends
};

}  // namespace sluice::aggregator
