// One stream of one job at its aggregator: it takes the contributions of the running round,
// finishes it, and answers ranks that fell behind (rules 4, 12-15 and 21-23 of docs/protocol.md).
// Three parts are independent of each other: the log of rounds, the contributions of the running
// round, and the combiner of their blocks or keyed pairs. This class knows the op, and connects the
// parts.
//
//  - A round is finished only when every expected contribution is in and no worker is further
//    behind than the history is long.
//  - An opening round, which is the first round of an op or of a resumed stream, expects
//    contributions of all ranks. A later round of blocks expects those of the owners (next ==
//    current block in some column). A later round of pairs expects those of the ranks whose run is
//    nearly used up; if the size of a RESULT has cut the last round short, this may be no rank.
//  - A stream of a resumed job begins with the first round whose result some worker lacks. The
//    workers that have the result contribute what they kept, so the round ends with the same sums.
//  - A RESULT goes without sums to a worker that lacks none of them: the worker wants none, or it
//    is the only owner of the blocks that it wants, and these are moved, not reduced.
//  - One RESULT goes to the group for all members that receive it, if most of them lack a sum.
//  - Memory is allocated when the job forms; a packet allocates only the buffer of a result.
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

/// What a packet has caused.
struct Taken {
  DropReason drop = DropReason::kNone;
  bool proves_liveness = false;         ///< a new contribution, or the position advanced
  const AbortInfo* ends_job = nullptr;  ///< why the job must end, if so; the stream owns it
};

class Stream {
  using Delay = RunningRound::Delay;
  using Kind = RunningRound::Kind;

 public:
  /// `job` must outlive the stream, and keep its session meanwhile.
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
  /// LEAVE: a rank without a pending op has applied every result.
  void on_leave(Rank w, Time now, PacketSink& sink) {
    if (rounds_.acknowledge_all(w)) try_finish(now, sink);
  }

  /// Finishes a round that lacked a buffer for its result. Returns true if no round is stalled now.
  bool retry(Time now, PacketSink& sink) {
    if (stalled()) try_finish(now, sink);
    return !stalled();
  }
  bool stalled() const { return round_.delay == Delay::kPacketMemory; }

  /// Charges the time up to `now` to what the stream waits for.
  void charge(Time now) { charge(waits_for(), now); }
  /// The lane did not run for so long: charges this time to the pause.
  void excuse_pause(Duration pause) { clock_.excuse_pause(pause, job_.counters.waited); }

  const rounds::RoundLog& rounds() const { return rounds_; }

  /// Whether an op runs.
  bool busy() const { return op_.has_value(); }
  OpNumber op() const { return op_->number; }  ///< while busy
  /// When the running round's first contribution came; kNever: none has come.
  Time begun() const { return round_.begun ? round_.begun->at : kNever; }
  /// The ranks whose contribution or acknowledgement the running round lacks.
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
  std::optional<RunningOp> op_;          // empty until a rank contributes to an opening round
  std::vector<wire::Descriptor> wants_;  // by rank: its descriptor of the op that runs
  WaitClock clock_;
  AbortInfo failure_{};
};

}  // namespace sluice::aggregator
