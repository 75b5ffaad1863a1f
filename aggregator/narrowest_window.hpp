// How many of a shard's streams every rank of a job lets run: the least that one has told (rule 8
// of docs/protocol.md). Ranks that let more run would only wait there for the one that does not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/ids.hpp"

namespace sluice::aggregator {

class NarrowestWindow {
 public:
  /// No rank has told.
  void begin(std::uint16_t ranks) {
    told_.assign(ranks, kNone);
    least_ = kNone;
  }

  /// 0: this rank does not tell.
  void tell(Rank r, std::uint16_t width) {
    if (width == 0) return;
    const std::uint16_t before = std::exchange(told_[r.value], width);
    if (width < least_)
      least_ = width;
    else if (before == least_ && width != before)
      least_ = *std::min_element(told_.begin(), told_.end());
  }

  /// 0: none has told.
  std::uint16_t value() const { return least_ == kNone ? 0 : least_; }

 private:
  static constexpr std::uint16_t kNone = std::numeric_limits<std::uint16_t>::max();

  std::vector<std::uint16_t> told_;  // by rank
  std::uint16_t least_ = kNone;
};

}  // namespace sluice::aggregator
