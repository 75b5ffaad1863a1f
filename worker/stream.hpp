// One stream as a worker sees it: the round it awaits, what it owes, and what it keeps so that a
// round can be run again (rules 2 and 3 of docs/protocol.md). Pure state; the engine moves it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::worker {

inline constexpr Round kNoRound{~std::uint64_t{0}};

/// A column's current block and this rank's own non-zero blocks at and after it.
struct ColumnState {
  BlockIndex current = kNoBlock;
  BlockIndex at = kNoBlock;     ///< own first non-zero block >= current
  BlockIndex after = kNoBlock;  ///< own first non-zero block > current
  bool owned() const { return current != kNoBlock && at == current; }
};

/// What this rank had for a round, whether it was asked for it or not. The blocks are kept as they
/// were sent, never as references into a tensor.
struct Contribution {
  Round round = kNoRound;
  OpNumber op = 0;
  bool first = false;  ///< the op's first round
  bool owner = false;  ///< had a current block
  wire::Shape shape{};
  wire::Descriptor descriptor{};
  std::array<wire::Column, wire::kMaxColumns> columns{};
  std::span<const std::byte> blocks{};  ///< those present, in column order
  Buffer packet;                        ///< that they lie in; empty if there are none
};

/// A result that came before those below it.
struct EarlyResult {
  Packet packet;
  Buffer buffer;  ///< empty: there is none
};

struct Stream {
  explicit Stream(std::uint8_t history) : contributions(history + 1u), early(history) {}

  /// The round awaited. Every result below `applied` is applied; below that it is rounds that are
  /// run again, for ranks that lack their results.
  Round position{};
  Round applied{};
  OpNumber op = 0;       ///< runs here, or is the next to run
  bool running = false;  ///< `op` has begun here
  bool first = false;    ///< and awaits its first result
  bool owner = false;    ///< owns a current block
  bool resumed = false;  ///< the aggregator took over with the round awaited: all contribute
  RankSet awaited;       ///< the ranks without which this round cannot end, as last told
  bool held = false;     ///< the aggregator has our contribution: probe, don't resend
  bool syncing = false;  ///< the aggregator must be told where we stand before anything goes on

  std::array<ColumnState, wire::kMaxColumns> columns{};

  /// By round % (H + 1): to the round awaited, and to those below whose result some rank may lack.
  std::vector<Contribution> contributions;
  Round kept_from{};               ///< below it nobody does
  std::vector<EarlyResult> early;  ///< by round % H
  Round told{};                    ///< position last told to the aggregator
  Round gap_probed = kNoRound;     ///< position at which a gap was probed, once

  unsigned backoffs = 0;
  Time due = kNever;
  unsigned data_sends = 0;  ///< of this round
  Time data_sent_at{};
  unsigned probe_sends = 0;  ///< since the last progress
  Time probe_sent_at{};

  /// Whether the round awaited is one that has ended here before.
  bool repeating() const { return position < applied; }
  /// Whether a round is under way here.
  bool busy() const { return running || repeating(); }

  Contribution& contribution(Round r) { return contributions[r.value % contributions.size()]; }
  const Contribution& contribution(Round r) const {
    return contributions[r.value % contributions.size()];
  }

  bool owes_data() const {
    if (!repeating()) return running && (first || owner || resumed);
    const auto& mine = contribution(position);
    return mine.first || mine.owner || resumed;
  }

  /// Every rank has applied the results below `end`: what was sent for them is still in the cache.
  void forget_contributions(Round end) {
    for (; kept_from < end; ++kept_from) {
      auto& mine = contribution(kept_from);
      if (mine.round != kept_from) continue;
      mine.blocks = {};
      mine.packet = {};
    }
  }

  /// An aggregator takes the stream over; it finishes every round from `position` on anew.
  void start_epoch() {
    held = resumed = false;
    awaited = {};
    gap_probed = kNoRound;
    backoffs = data_sends = probe_sends = 0;
    for (auto& result : early) result = {};
  }
};

}  // namespace sluice::worker
