#include "aggregator/contributions.hpp"

#include <algorithm>

namespace sluice::aggregator {

void Contributions::note(Rank w, const Packet& packet) {
  outstanding_.erase(w);
  contributed_.insert(w);
  last_ = w;
  BlockIndex* next = next_.data() + std::size_t{w.value} * columns_max_;
  for (const wire::Column& column : packet.columns()) *next++ = BlockIndex{column.next};
}

void Contributions::want_next(std::span<BlockIndex> want) const {
  std::fill(want.begin(), want.end(), kNoBlock);
  for (std::uint16_t r = 0; r < ranks_; ++r) {
    const auto next = next_of(Rank{r});
    for (std::size_t c = 0; c < want.size(); ++c) want[c] = std::min(want[c], next[c]);
  }
}

void Contributions::await_all() {
  assert(complete() && in_hold_.empty());
  contributed_.clear();
  outstanding_ = RankSet::first(ranks_);
}

void Contributions::await_owners(std::span<const BlockIndex> current) {
  assert(complete() && in_hold_.empty());
  contributed_.clear();
  for (std::uint16_t r = 0; r < ranks_; ++r) {
    const auto next = next_of(Rank{r});
    bool owner = false;
    for (std::size_t c = 0; c < current.size(); ++c)
      owner |= current[c] != kNoBlock && next[c] == current[c];
    if (owner) outstanding_.insert(Rank{r});
  }
}

}  // namespace sluice::aggregator
