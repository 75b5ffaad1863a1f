// Which ranks contribute to the running round of a stream, and in which order their contributions
// are added (rules 12, 13 and 15 a of docs/protocol.md): lowest rank first, so that sums have the
// same bits in any order of arrival. A contribution that comes before a lower rank's is held, as
// the packet itself; all others are added at once and forgotten. The combiner knows how to add. A
// contribution that only refers to its blocks is never held.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::rounds {

class Contributions {
 public:
  /// Awaits all ranks. A packet has at most `columns_max` columns.
  Contributions(const Session& session, std::uint8_t columns_max)
      : ranks_(session.ranks),
        columns_max_(columns_max),
        next_(std::size_t{session.ranks} * columns_max, kNoBlock),
        held_(session.ranks),
        outstanding_(RankSet::first(session.ranks)) {}

  bool has(Rank w) const { return contributed_.contains(w); }
  bool awaits(Rank w) const { return outstanding_.contains(w); }
  const RankSet& outstanding() const { return outstanding_; }
  bool complete() const { return outstanding_.empty(); }
  Rank last() const { return last_; }  ///< the rank that contributed last

  /// Takes the contribution of a rank that is awaited, and calls add(rank, packet) for each that
  /// may be added now. False if this one is held.
  template <class Add>
  bool take(Rank w, const Packet& packet, Buffer buffer, Add&& add) {
    assert(awaits(w) && !has(w));
    note(w, packet);
    if (outstanding_.lowest() < w.value) {
      assert(!held_[w.value].buffer);  // one per rank
      held_[w.value] = {packet, std::move(buffer)};
      in_hold_.insert(w);
      return false;
    }
    add(w, packet);
    while (in_hold_.lowest() < outstanding_.lowest()) {
      const Rank r{in_hold_.lowest()};
      add(r, held_[r.value].packet);
      held_[r.value] = {};
      in_hold_.erase(r);
    }
    return true;
  }

  /// Takes a contribution whose blocks stay where they are until the round has ended.
  void take(Rank w, const Packet& packet) {
    assert(awaits(w) && !has(w));
    note(w, packet);
  }
  /// Takes one that the combiner holds.
  void take(Rank w) {
    assert(awaits(w) && !has(w));
    note(w);
  }

  /// A rank's next non-zero blocks, by column, as its last packet says.
  std::span<const BlockIndex> next_of(Rank w) const {
    return {next_.data() + std::size_t{w.value} * columns_max_, columns_max_};
  }
  /// Per column, the least next block of all ranks: what the next round will sum.
  void want_next(std::span<BlockIndex> want) const;

  /// The next round begins: all ranks contribute to it.
  void await_all();
  /// The next round begins: ranks that have one of these blocks, by column, contribute to it.
  void await_owners(std::span<const BlockIndex> current);
  /// The next round begins: these ranks contribute to it; the set may be empty.
  void await(const RankSet& ranks);

 private:
  struct Held {
    Packet packet;
    Buffer buffer;
  };

  void note(Rank w) {
    outstanding_.erase(w);
    contributed_.insert(w);
    last_ = w;
  }
  void note(Rank w, const Packet& packet);

  std::uint16_t ranks_;
  std::uint8_t columns_max_;
  std::vector<BlockIndex> next_;  // by rank and column
  std::vector<Held> held_;        // by rank
  RankSet outstanding_;
  RankSet contributed_;
  RankSet in_hold_;
  Rank last_{};
};

// These run for every packet. They are inline, so that the compiler builds them into the stream.
inline void Contributions::note(Rank w, const Packet& packet) {
  assert(packet.columns().size() <= columns_max_);
  note(w);
  BlockIndex* next = next_.data() + std::size_t{w.value} * columns_max_;
  for (const wire::Column& column : packet.columns()) *next++ = BlockIndex{column.next};
}

inline void Contributions::want_next(std::span<BlockIndex> want) const {
  std::fill(want.begin(), want.end(), kNoBlock);
  for (std::uint16_t r = 0; r < ranks_; ++r) {
    const auto next = next_of(Rank{r});
    for (std::size_t c = 0; c < want.size(); ++c) want[c] = std::min(want[c], next[c]);
  }
}

inline void Contributions::await_all() {
  assert(complete() && in_hold_.empty());
  contributed_.clear();
  outstanding_ = RankSet::first(ranks_);
}

inline void Contributions::await(const RankSet& ranks) {
  assert(complete() && in_hold_.empty());
  contributed_.clear();
  outstanding_ = ranks;
}

inline void Contributions::await_owners(std::span<const BlockIndex> current) {
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

}  // namespace sluice::rounds
