// How many of a shard's streams every rank of a job lets run: the least that one has told lately
// (rule 8 of docs/protocol.md). Ranks that let more run would only wait there for the one that does
// not. What was told long ago is forgotten: a rank that contributes to nothing delays nobody.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace sluice::aggregator {

class MinimumWindow {
 public:
  /// No rank has told.
  void begin(std::uint16_t ranks) {
    *this = {};
    period_ = kRounds * ranks;
  }

  /// 0: a rank does not tell.
  void observe(std::uint16_t width) {
    if (width == 0) return;
    least_ = std::min(least_, width);
    if (++observed_ < period_) return;
    observed_ = 0;
    least_before_ = std::exchange(least_, kNone);
  }

  /// An operator lets the job run at most so many; 0: as many as it likes.
  void limit(std::uint16_t width) {
    limit_ = width == 0 ? kNone : width;
    was_limited_ = true;
  }
  std::uint16_t limited_to() const { return limit_ == kNone ? 0 : limit_; }

  /// 0: none has told.
  std::uint16_t value() const {
    const std::uint16_t least = std::min({least_, least_before_, limit_});
    return least == kNone && !was_limited_ ? 0 : least;
  }

 private:
  static constexpr std::uint16_t kNone = std::numeric_limits<std::uint16_t>::max();
  static constexpr std::uint32_t kRounds = 4;  // to which all ranks contribute, in a period

  std::uint32_t period_ = kRounds;
  std::uint32_t observed_ = 0;
  std::uint16_t least_ = kNone;
  std::uint16_t least_before_ = kNone;  // of the period before
  std::uint16_t limit_ = kNone;
  bool was_limited_ = false;  // so ranks must be told when it ends
};

}  // namespace sluice::aggregator
