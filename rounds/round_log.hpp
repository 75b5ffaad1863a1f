// The rounds of one stream: which one runs, what each worker has applied, and the results that some
// worker may lack (rules 14, 15 b and 21 to 23 of docs/protocol.md). It does not know what a round
// sums, or how.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/session.hpp"

namespace sluice::rounds {

class RoundLog {
 public:
  /// `resumed`: the workers have made progress at an earlier aggregator. The log is not live until
  /// all of them have told what they have applied.
  RoundLog(const Session& session, bool resumed)
      : live_(!resumed), positions_(session.ranks), history_(session.history) {
    assert(session.ranks >= 1 && session.ranks <= limits::kMaxRanks);
    assert(session.history >= limits::kMinHistory && session.history <= limits::kMaxHistory);
  }

  bool live() const { return live_; }
  Round running() const { return running_; }
  /// Whether the running round has ended at some worker before, so that all must take part still.
  bool replaying() const { return running_ < front_; }

  /// Every result below it is applied at this worker.
  Round position(Rank w) const { return positions_[w.value]; }
  /// Whether this was news. Takes positions up to the running round.
  bool acknowledge(Rank w, Round position);
  /// A rank that leaves has no op pending: it has applied every result, unless rounds are replayed.
  bool acknowledge_all(Rank w) { return live_ && !replaying() && acknowledge(w, running_); }

  /// Whether a rank has not acknowledged all results. False while the log is not live: then the
  /// rank tells its position by itself.
  bool is_behind(Rank w) const { return live_ && positions_[w.value] < running_; }
  /// Whether every rank of `ranks` has applied all results.
  bool settled(const RankSet& ranks) const;
  /// The running round may not end before these have advanced: the history would lack what they
  /// need.
  RankSet too_far_behind() const;
  bool may_finish() const { return !is_too_far_behind(lowest_position()); }
  /// How many rounds the last worker is behind the running one.
  std::uint64_t lag() const { return running_ - lowest_position(); }

  enum class Synced {
    kKnown,          ///< it is live, or this rank has told before
    kAwaitsOthers,   ///< some rank has not told
    kLive,           ///< all have: it goes on, with the first round whose result some worker lacks
    kContradiction,  ///< all have, but no history is that long
  };
  Synced sync(Rank w, Round applied);

  /// Ends the running round: keeps `result` for workers that lack it, and the next round runs.
  void finish(Buffer result);

  /// Calls f(const Buffer&) for the results from `from` on, except those that the worker holds:
  /// bit i of `have` is result from + 1 + i.
  template <class F>
  void for_each_result(Round from, std::uint64_t have, F&& f) const {
    assert(from >= kept_from_);
    for (Round r = from; r < running_; ++r) {
      const std::uint64_t ahead = r - from;
      if (ahead > 0 && ahead <= 64 && ((have >> (ahead - 1)) & 1) != 0) continue;
      const Buffer& result = history_[r.value % history_.size()];
      assert(result);  // what some worker lacks is kept
      f(result);
    }
  }

 private:
  bool is_too_far_behind(Round position) const { return running_ - position >= history_.size(); }
  Round lowest_position() const;

  bool live_;
  Round running_{};
  Round front_{};  // rounds below ended in an earlier epoch
  std::vector<Round> positions_;
  std::vector<Buffer> history_;  // by round % H; empty: not yet, or no more
  Round kept_from_{};            // no worker needs results below it
  RankSet synced_;               // ranks that have told what they have applied
};

// These run for every packet. They are inline, so that the compiler builds them into the stream.
inline Round RoundLog::lowest_position() const {
  return *std::min_element(positions_.begin(), positions_.end());
}

inline bool RoundLog::acknowledge(Rank w, Round position) {
  assert(position <= running_);
  if (position <= positions_[w.value]) return false;
  positions_[w.value] = position;
  return true;
}

inline void RoundLog::finish(Buffer result) {
  assert(live_ && may_finish());
  // What all workers have applied goes first: its buffers are still in the cache.
  for (const Round end = lowest_position(); kept_from_ < end; ++kept_from_)
    history_[kept_from_.value % history_.size()] = Buffer();
  Buffer& place = history_[running_.value % history_.size()];
  assert(result && !place);
  place = std::move(result);
  ++running_;
}

}  // namespace sluice::rounds
