// One stream of one job at its aggregator: takes contributions of the running round, finishes it,
// answers who fell behind (rules 4, 12-15 and 21-23 of docs/protocol.md). Three parts know nothing
// of each other: the log of rounds, the contributions of the running one, and the combiner of what
// they carry, blocks or keyed pairs. This class knows the op, and joins them.
//
//  - A round is finished only when every expected contribution is in and no worker is further
//    behind than the history is long.
//  - Whose contributions are expected: in an opening round, which is an op's first one or that with
//    which the stream was resumed, all ranks'; later the owners' (next == current block in some
//    column), or those whose run of pairs is used up; a round that a RESULT's size cut short awaits
//    nobody.
//  - A stream of a resumed job begins with the first round whose result some worker lacks; those
//    who have it contribute what they kept, so that the round ends with the same sums again.
//  - A RESULT goes without sums to a worker that lacks none of them: it wants none, or the others
//    have added nothing to its own blocks, and these are moved, not reduced.
//  - One RESULT to the group is for all members who hear it, if most of them lack a sum.
//  - Memory is taken when the job forms; a packet allocates nothing but the result's buffer.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "aggregator/engine/block_combiner.hpp"
#include "aggregator/engine/job_context.hpp"
#include "aggregator/engine/keyed_combiner.hpp"
#include "aggregator/engine/running_round.hpp"
#include "aggregator/engine/wait_clock.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "rounds/contributions.hpp"
#include "rounds/round_log.hpp"

namespace sluice::aggregator {

/// What a packet did.
struct Taken {
  DropReason drop = DropReason::kNone;
  bool proves_liveness = false;         ///< a new contribution, or the position advanced
  const AbortInfo* ends_job = nullptr;  ///< why the job cannot go on, if so; the stream has it
};

class Stream {
  using Delay = RunningRound::Delay;
  using Kind = RunningRound::Kind;

 public:
  /// `job` outlives the stream, and is of one session meanwhile.
  Stream(JobContext& job, StreamId id, Time now)
      : job_(job),
        id_(id),
        rounds_(job.session(), job.membership.members().resumed()),
        contributions_(job.session(), widest_columns(job.session())),
        combiner_(job.session()),
        keyed_(job.session()),
        wants_(job.session().ranks),
        clock_(now) {}

  Taken on_data(Rank w, const Packet& packet, Buffer buffer, Time now, PacketSink& sink);
  Taken on_position(Rank w, Round position, Time now, PacketSink& sink);  ///< ACK
  Taken on_probe(Rank w, Round position, std::uint64_t have, Time now, PacketSink& sink);
  Taken on_sync(Rank w, Round applied, Time now, PacketSink& sink);
  /// LEAVE: whoever has no op pending has applied every result.
  void on_leave(Rank w, Time now, PacketSink& sink) {
    if (rounds_.acknowledge_all(w)) try_finish(now, sink);
  }

  /// Finishes a round that lacked a buffer for its result. True if none is stalled now.
  bool retry(Time now, PacketSink& sink) {
    if (stalled()) try_finish(now, sink);
    return !stalled();
  }
  bool stalled() const { return round_.delay == Delay::kPacketMemory; }

  /// Charges the time up to now to what the stream waits for, as far as it is known.
  void charge(Time now) { charge(waits_for(), now); }
  /// The lane did not run for so long.
  void excuse_pause(Duration pause) { clock_.excuse_pause(pause, job_.counters.waited); }

  const rounds::RoundLog& rounds() const { return rounds_; }

  /// Whether an op runs.
  bool busy() const { return op_.has_value(); }
  OpNumber op() const { return op_->number; }  ///< while busy
  /// When the running round's first contribution came; kNever: none has.
  Time begun() const { return round_.begun ? round_.begun->at : kNever; }
  /// Whose contribution or acknowledgement the running round lacks.
  RankSet waited_for() const;

 private:
  bool agree(Rank w, const Packet& packet);
  const AbortInfo* fail(const AbortInfo& why) {
    failure_ = why;
    return &failure_;
  }
  bool begin_op(Rank w, const Packet& packet);
  bool contradicts(const Packet& packet) const;
  bool fits(Rank w, const Packet& packet) const;
  void take(Rank w, const Packet& packet, Buffer buffer, Time now);
  void arrived(bool is_late, Time now);
  bool sums_pairs() const { return op_->sums == RunningOp::Sums::kPairs; }
  const wire::Shape& shape() const { return sums_pairs() ? keyed_.shape() : combiner_.shape(); }
  void try_finish(Time now, PacketSink& sink);
  bool may_finish(Time now);
  void finish(Time now, PacketSink& sink);
  void finish_keyed(Time now, PacketSink& sink);
  void delay(Delay by, Time now);
  void finished(Buffer result, Time now, PacketSink& sink);
  void fill(wire::Result& result) const;
  Buffer build_result(std::span<const BlockIndex> want, PacketSink& sink);
  Buffer build_keyed_result(const KeyedCombiner::Merged& merged, PacketSink& sink);
  template <class T>
  bool send_small(Rank w, T packet, PacketSink& sink);
  void start_round(std::span<const BlockIndex> want);
  void start_round(Kind kind);
  void deliver(const Buffer& result, PacketSink& sink);
  RankSet deliver_by_group(const Buffer& result, PacketSink& sink);
  bool lacks_a_sum(Rank w) const;
  Buffer without_sums(const Buffer& result, PacketSink& sink) const;
  void answer(Rank w, Round from, std::uint64_t have, PacketSink& sink);
  void send_status(Rank w, PacketSink& sink);
  WaitCause waits_for() const;
  void charge(WaitCause cause, Time now) { clock_.charge(cause, now, job_.counters.waited); }

  JobContext& job_;
  StreamId id_;
  rounds::RoundLog rounds_;
  rounds::Contributions contributions_;
  BlockCombiner combiner_;
  KeyedCombiner keyed_;

  RunningRound round_;
  std::optional<RunningOp> op_;          // none: the round opens one, and nobody has contributed
  std::vector<wire::Descriptor> wants_;  // by rank: of the op that runs
  WaitClock clock_;
  AbortInfo failure_{};
};

}  // namespace sluice::aggregator
