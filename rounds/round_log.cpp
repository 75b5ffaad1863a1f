#include "rounds/round_log.hpp"

#include <algorithm>

namespace sluice::rounds {

bool RoundLog::settled(const RankSet& ranks) const {
  bool all = live_ && !replaying();
  ranks.for_each([&](Rank r) { all &= !is_behind(r); });
  return all;
}

RankSet RoundLog::too_far_behind() const {
  RankSet set;
  for (std::uint16_t r = 0; r < positions_.size(); ++r)
    if (is_too_far_behind(positions_[r])) set.insert(Rank{r});
  return set;
}

RoundLog::Synced RoundLog::sync(Rank w, Round applied) {
  if (live_ || synced_.contains(w)) return Synced::kKnown;
  positions_[w.value] = applied;
  synced_.insert(w);
  if (synced_.size() < positions_.size()) return Synced::kAwaitsOthers;
  const Round lowest = lowest_position();
  front_ = *std::max_element(positions_.begin(), positions_.end());
  if (front_ - lowest > history_.size()) return Synced::kContradiction;
  running_ = kept_from_ = lowest;
  std::fill(positions_.begin(), positions_.end(), running_);
  live_ = true;
  return Synced::kLive;
}

}  // namespace sluice::rounds
