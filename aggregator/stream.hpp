// One stream of one job at its aggregator: takes contributions of the running round, finishes it,
// keeps the last H results (rules 4, 12-15 and 21-23 of docs/protocol.md).
//
// Invariants.
//  - Round R is finished only when every expected contribution is in and every worker awaits at
//    least round R-H+1. So the history, indexed round % H, answers any worker that is behind.
//  - `outstanding_` is who must still contribute: in an opening round, which is an op's first one
//    or that with which the stream was resumed, all ranks; later the owners (next == current block
//    in some column).
//  - Contributions are added lowest rank first whatever their order of arrival: one that arrives
//    ahead of a lower outstanding rank is held (as the packet itself), all others are added at once
//    and forgotten. So sums have the same bits always.
//  - A stream of a resumed job is not live until all N workers have told what they have applied
//    (SYNC). It begins with the first round whose result some worker lacks; those who have it
//    contribute what they kept, so that the round ends with the same sums again.
//  - A RESULT goes without sums to a worker that lacks none of them: it wants none, or the others
//    have added nothing to its own blocks, and these are moved, not reduced.
//  - Memory is taken when the job forms; a packet allocates nothing but the result's buffer.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "aggregator/counters.hpp"
#include "aggregator/stream_memory.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/stage.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/protection.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wanted.hpp"

namespace sluice::aggregator {

/// What a stream needs of its job for the length of one call.
struct StreamScope {
  const Session& session;
  std::span<const Endpoint> members;  ///< by rank
  const RankSet& present;             ///< members that have not left
  Protection protection;              ///< of what goes out
  PacketSink& sink;
  Counters& counters;
};

/// What a packet did.
struct Taken {
  DropReason drop = DropReason::kNone;
  bool proves_life = false;    ///< a new contribution, or the position advanced
  bool mismatch = false;       ///< the ranks disagree about the op: see Stream::disagreement()
  bool rank_left = false;      ///< an op begins that can't end: a rank has left
  bool contradiction = false;  ///< the ranks' states do not go together: the job cannot resume
};

class Stream {
 public:
  using Scope = StreamScope;

  /// `resumed`: the workers have made progress at an earlier aggregator.
  Stream(const Session& session, StreamId id, bool resumed)
      : id_(id),
        max_columns_(widest_columns(session)),
        live_(!resumed),
        positions_(session.ranks),
        next_(std::size_t{session.ranks} * max_columns_, kNoBlock),
        held_(session.ranks),
        history_(session.history),
        wants_(session.ranks),
        accumulators_(static_cast<std::byte*>(::operator new (
            accumulator_bytes(session), std::align_val_t{numeric::kAccumulatorAlignment}))),
        current_(max_columns_, kNoBlock),
        owners_(max_columns_),
        last_owner_(max_columns_),
        outstanding_(RankSet::first(session.ranks)) {}

  Taken on_data(Rank w, const Packet& packet, Buffer buffer, Scope& scope);
  Taken on_position(Rank w, Round position, Scope& scope);  ///< ACK
  Taken on_probe(Rank w, Round position, std::uint64_t have, Scope& scope);
  Taken on_sync(Rank w, Round applied, Scope& scope);
  /// LEAVE: whoever has no op pending has applied every result.
  void on_leave(Rank w, Scope& scope) {
    if (live_ && !repeating() && acknowledge(w, running_)) try_finish(scope);
  }

  /// Finishes a round that lacked a buffer for its result. True if none is stalled now.
  bool retry(Scope& scope) {
    if (stalled_) try_finish(scope);
    return !stalled_;
  }
  bool stalled() const { return stalled_; }

  /// Whether every rank of `ranks` has applied all results.
  bool settled(const RankSet& ranks) const {
    bool all = live_ && !repeating();
    ranks.for_each([&](Rank r) { all &= !is_behind(r); });
    return all;
  }
  /// Whether a rank has not told that it has all results. Of a stream that is not live it will tell
  /// by itself.
  bool is_behind(Rank r) const { return live_ && positions_[r.value] < running_; }

  /// Whether the running round has contributions.
  bool busy() const { return op_known_; }
  Round running() const { return running_; }
  OpNumber op() const { return op_; }  ///< while busy
  /// Whose contribution or acknowledgement the running round lacks.
  RankSet waited_for(const Session& session) const;
  const AbortInfo& disagreement() const { return disagreement_; }

 private:
  struct Held {
    Packet packet;
    Buffer buffer;
  };
  struct FreeAligned {
    void operator()(std::byte* p) const {
      ::operator delete (p, std::align_val_t{numeric::kAccumulatorAlignment});
    }
  };

  /// Whether the running round has ended at some worker before, so that all must take part still.
  bool repeating() const { return running_ < front_; }
  bool acknowledge(Rank w, Round position) {
    if (position <= positions_[w.value]) return false;
    positions_[w.value] = position;
    return true;
  }
  std::span<BlockIndex> next_of(Rank w) {
    return {next_.data() + std::size_t{w.value} * max_columns_, max_columns_};
  }
  std::byte* accumulator(std::uint8_t column) {
    return accumulators_.get() + column * accumulator_stride_;
  }

  bool agree(Rank w, const Packet& packet);
  std::optional<Geometry> geometry_of(const Packet& packet, OpNumber op,
                                      const Session& session) const;
  bool contradicts(const Packet& packet) const;
  bool begin_op(Rank w, const Packet& packet, const Session& session);
  void run_op(Rank named_by, const Packet& packet, OpNumber op, const Geometry& geometry);
  bool fits(Rank w, const Packet& packet) const;
  void take(Rank w, const Packet& packet, Buffer buffer, Counters& counters);
  void add(Rank w, const Packet& packet);
  bool is_too_far_behind(Round position, const Session& session) const;
  Round lowest_position() const;
  void forget_results(Round end);
  void try_finish(Scope& scope);
  Buffer build_result(std::span<const BlockIndex> want, Scope& scope);
  template <class T>
  bool send_small(Rank w, T packet, Scope& scope);
  void want_next(std::span<BlockIndex> want, const Session& session) const;
  void start_round(std::span<const BlockIndex> want, const Session& session);
  void expect_owners(const Session& session);
  void deliver(const Buffer& result, Scope& scope);
  bool lacks_a_sum(Rank w) const;
  Buffer without_sums(const Buffer& result, Scope& scope) const;
  void answer(Rank w, Round from, std::uint64_t have, Scope& scope);
  void send_status(Rank w, Scope& scope);

  StreamId id_;
  std::uint8_t max_columns_;
  bool live_;  // else it waits for SYNCs
  Round running_{};
  Round front_{};          // rounds below ended in an earlier epoch
  bool opening_ = true;    // all ranks contribute to the running round
  bool resumed_ = false;   // for the stream was resumed with it, perhaps amidst an op
  bool op_known_ = false;  // the running round's: its first contribution is in
  bool stalled_ = false;   // complete, but the pool had no buffer for the result
  bool awaited_ack_ = false;
  OpNumber op_ = 0;
  Rank op_named_by_{};
  Rank completed_by_{};
  wire::Descriptor descriptor_{};
  wire::Shape shape_{};
  Geometry geometry_{};
  const numeric::BlockReduction* reduction_ = nullptr;
  std::size_t accumulator_stride_ = 0;

  std::vector<Round> positions_;         // by rank: every result below it is applied
  std::vector<BlockIndex> next_;         // by rank and column
  std::vector<Held> held_;               // by rank: contributions ahead of a lower rank
  std::vector<Buffer> history_;          // by round % H; empty: not yet, or no more
  Round kept_from_{};                    // results below are needed by nobody
  std::vector<wire::Descriptor> wants_;  // by rank: of the op that runs
  std::unique_ptr<std::byte, FreeAligned> accumulators_;
  std::vector<BlockIndex> current_;    // by column
  std::vector<std::uint16_t> owners_;  // by column: contributions added so far
  std::vector<Rank> last_owner_;       // by column: whose was added last, if any was
  RankSet outstanding_;
  RankSet contributed_;
  RankSet waiting_in_hold_;  // ranks with a held contribution
  RankSet synced_;           // ranks that have told what they have applied
  AbortInfo disagreement_{};
};

}  // namespace sluice::aggregator
