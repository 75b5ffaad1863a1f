// One stream as a worker sees it: the round it awaits, what it owes, and the results it keeps
// (rules 2 and 3 of docs/protocol.md). Pure state; the engine moves it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::worker {

/// A column's current block and this rank's own non-zero blocks at and after it.
struct ColumnState {
  BlockIndex current = kNoBlock;
  BlockIndex at = kNoBlock;     ///< own first non-zero block >= current
  BlockIndex after = kNoBlock;  ///< own first non-zero block > current
  bool owned() const { return current != kNoBlock && at == current; }
};

/// A received result, kept as its packet and never as a reference into a tensor.
template <class Buffer>
struct KeptResult {
  Round round{};
  Packet packet;
  Buffer buffer;  ///< empty: none is kept here
};

template <class Buffer>
struct Stream {
  explicit Stream(std::uint8_t history) : kept(history) {}

  Round position{};      ///< the round awaited: every result below it is applied
  OpNumber op = 0;       ///< runs here, or is the next to run
  bool running = false;  ///< `op` has begun here
  bool first = false;    ///< and awaits its first result
  bool owner = false;    ///< owns a current block
  RankSet awaited;       ///< the ranks without which this round cannot end, as last told
  bool held = false;     ///< the aggregator has our contribution: probe, don't resend
  bool syncing = false;  ///< the aggregator must be told where we stand before anything goes on

  std::array<ColumnState, wire::kMaxColumns> columns{};

  std::vector<KeptResult<Buffer>> kept;  ///< by round % H: results that somebody may still lack
  Round kept_from{};                     ///< below it nobody does
  Round told{};                          ///< position last told to the aggregator
  Round gap_probed{~std::uint64_t{0}};   ///< position at which a gap was probed, once

  unsigned backoffs = 0;
  Time due = kNever;
  unsigned data_sends = 0;  ///< of this round
  Time data_sent_at{};
  unsigned probe_sends = 0;  ///< since the last progress
  Time probe_sent_at{};

  bool owes_data() const { return running && (first || owner); }

  /// Every rank has applied the results below `end`. Their buffers are still in the cache.
  void forget_results(Round end) {
    for (; kept_from < end; ++kept_from) {
      auto& result = kept[kept_from.value % kept.size()];
      if (result.round == kept_from) result = {};
    }
  }

  /// An aggregator takes the stream over. Results that were not applied are not to be trusted: the
  /// aggregator may finish their rounds anew.
  void start_epoch() {
    held = false;
    awaited = {};
    gap_probed = Round{~std::uint64_t{0}};
    backoffs = data_sends = probe_sends = 0;
    for (auto& result : kept)
      if (result.round >= position) result = {};
  }
};

}  // namespace sluice::worker
