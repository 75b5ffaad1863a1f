// One stream of one job as a worker sees it: sends this rank's contribution to the round awaited,
// applies results in order, asks for what is late (rules 2, 3, 7-11 and 21-23 of docs/protocol.md).
//
//  - What it sends depends on its position alone: on the round awaited, never on what came before.
//  - While this rank is not in at the aggregator, and until the aggregator of a new epoch knows its
//  position, it is
//    suspended: it applies nothing and begins nothing.
//  - A result that comes early waits for those before it; each is applied once.
//  - What this rank had for a round is kept until every rank has applied its result, so that the
//    round can be replayed.
//  - A timer runs whenever a round is under way, and an idle stream has none.
//  - Memory is taken when the rank is in; a packet allocates nothing but what it sends.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/drop_reason.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/wire.hpp"
#include "rounds/waiting_end.hpp"
#include "worker/engine/config.hpp"
#include "worker/engine/counters.hpp"
#include "worker/engine/dense_rounds.hpp"
#include "worker/engine/keyed_rounds.hpp"
#include "worker/engine/op_queue.hpp"
#include "worker/engine/round_source.hpp"
#include "worker/engine/shard_membership.hpp"

namespace sluice::worker {

/// What a stream needs of its engine for the length of one call.
struct StreamScope {
  const EngineConfig& config;
  ShardMembership& membership;  ///< at the aggregator that serves the stream
  OpQueue& ops;
  Counters& counters;
  KeepingSink& sink;
  Time& deadline;  ///< the engine's next; brought forward to the stream's
  Time now;
};

/// The effect of a packet.
struct Taken {
  DropReason drop = DropReason::kNone;
  const std::string* ends_job = nullptr;  ///< how the protocol was broken, if so; the stream has it
};

/// A result that came before those below it.
struct EarlyResult {
  Packet packet;
  Buffer buffer;  ///< empty: there is none
};

class Stream {
 public:
  using Scope = StreamScope;

  /// One of so many streams. An op has at most `columns_max` columns.
  Stream(StreamId id, std::uint16_t streams, std::uint8_t history, std::uint8_t columns_max)
      : id_(id),
        streams_(streams),
        end_(history),
        dense_(columns_max),
        contributions_(history + 1u),
        early_(history) {
    assert(columns_max >= 1);
    for (Contribution& contribution : contributions_) contribution.columns.resize(columns_max);
  }

  // What arrives, once the membership has accepted it.
  Taken on_result(const Packet& packet, Buffer buffer, Scope& scope);
  Taken on_status(const wire::Status& status, Scope& scope);
  DropReason on_poll(Scope& scope);

  /// To be called at due() or later.
  void on_timer(Scope& scope);
  Time due() const { return end_.due(); }

  /// Does what the position asks for: begins an op, sends, acknowledges, or rests. To be called
  /// when an op was submitted and the stream is not busy, and when the window allows it.
  void advance(Scope& scope);

  /// An aggregator takes the stream over. `resume`: it must learn the position first; otherwise no
  /// round has ended here, and the stream begins again.
  void start_epoch(bool resume, OpQueue& ops);
  /// The aggregator has taken this rank in: goes on, or tells the position.
  void on_welcome(Scope& scope);

  /// Whether a round has ended here.
  bool has_progress() const { return applied_ > Round{0}; }
  /// Whether a round is under way here.
  bool busy() const { return running_ || replaying(); }
  /// The order of the round that runs here, or is the next to run. If no op is ready, its op is
  /// `ops.ready_end()`.
  rounds::RunOrder run_order(const OpQueue& ops) const {
    const OpNumber op = next_op(ops);
    const auto place =
        static_cast<std::uint16_t>((id_.value + streams_ - op % streams_) % streams_);
    return {op, running_ ? applied_ - running_->began : 0, place, id_.value};
  }
  /// How much of a dense op is done here, 0..1, while it runs here; else 0.
  double progress(OpNumber number, const Operation& op) const;
  /// Whether the window stops it from contributing to the round under way.
  bool is_held_back() const { return running_ && due() == kNever; }
  /// The ranks that the round under way still waits for, as the aggregator said last: a round of
  /// `op`, or of an op before it.
  RankSet awaited(OpNumber op) const { return running_ && op_ <= op ? awaited_ : RankSet{}; }

 private:
  Round position() const { return end_.position(); }  // the round awaited
  bool replaying() const { return position() < applied_; }
  void check_invariants(const Scope& scope) const;
  bool owes_data() const;
  Contribution& contribution(Round r) { return contributions_[r.value % contributions_.size()]; }
  const Contribution& contribution(Round r) const {
    return contributions_[r.value % contributions_.size()];
  }
  Operation& running_op(Scope& scope) { return *scope.ops.find(op_); }
  /// The source of the op that runs here.
  RoundSource& source() { return running_->is_keyed ? static_cast<RoundSource&>(keyed_) : dense_; }
  const RoundSource& source() const {
    return running_->is_keyed ? static_cast<const RoundSource&>(keyed_) : dense_;
  }
  /// Whether that op awaits its first result.
  bool opens_op() const { return running_ && running_->began == applied_; }
  bool is_syncing() const { return takeover_ == Takeover::kTellsPosition; }
  bool resumes() const { return takeover_ == Takeover::kOpensRound; }
  /// The op of the round awaited; null if that op is over here, or there is none.
  Operation* current_op(Scope& scope) {
    return running_ && !replaying() ? scope.ops.find(op_) : nullptr;
  }
  void forget_contributions(Round end);

  OpNumber next_op(const OpQueue& ops) const;
  bool begin_next_op(Scope& scope);
  bool take(const Packet& packet, Scope& scope);
  bool refuse_result();
  bool fits(const Packet& packet, Scope& scope);
  const Contribution& said() const;
  bool apply(const Packet& packet, Scope& scope);
  void describe(Operation& op, Contribution& mine) const;
  Taken go_live(Round round, Scope& scope);
  bool can_replay_from(Round round) const;
  void sample_round_trip(const Packet& packet, Scope& scope) const;

  void send_data(bool ask, Scope& scope);
  void write_head_of_blocks(std::span<std::byte> out, const Contribution& mine, bool opening,
                            bool ask, const Scope& scope) const;
  void write_head_of_pairs(std::span<std::byte> out, const Contribution& mine, bool opening,
                           bool ask, const Scope& scope) const;
  void fill(wire::Data& data, const Contribution& mine, bool opening, bool ask,
            const Scope& scope) const;
  void count_data(Scope& scope);
  void retry_soon(Scope& scope);
  void say(rounds::WaitingEnd::Say what, bool ask, Scope& scope);
  void send_ack(Scope& scope);
  void send_probe(Scope& scope);
  void send_sync(Scope& scope);
  template <class T>
  T member_packet(Scope& scope) const;
  template <class T>
  bool send_small(const T& packet, Scope& scope);
  static Protection protection_of(Scope& scope);
  Buffer allocate(std::size_t body, Scope& scope) const;
  void seal(Buffer& buffer, Scope& scope);
  Buffer send_and_keep(Buffer buffer, Scope& scope);
  void count_sent(const Buffer& buffer, Scope& scope);
  static rounds::WaitingScope waiting(Scope& scope);
  void await(Scope& scope);
  void look_at(Time due, Scope& scope);

  StreamId id_;
  std::uint16_t streams_;  // of the session

  // Every result below applied_ is applied. If the round awaited is below that, rounds are
  // replayed, for ranks that lack their results.
  rounds::WaitingEnd end_;
  Round applied_{};
  struct Running {
    Round began{};
    bool is_keyed = false;  // keyed_ has its rounds, else dense_ has them
  };
  // After an aggregator took the stream over amidst its rounds.
  enum class Takeover {
    kNone,
    kTellsPosition,  // the aggregator must know our position before anything continues
    kOpensRound,     // it knows, and begins with the round awaited: all contribute
  };
  std::optional<Running> running_;
  OpNumber op_ = 0;  // runs here, or is the next to run
  Takeover takeover_ = Takeover::kNone;
  RankSet awaited_;  // the ranks that this round waits for, as received last
  DenseRounds dense_;
  KeyedRounds keyed_;

  // By round % (H + 1): to the round awaited, and to those below whose result some rank may lack.
  std::vector<Contribution> contributions_;
  Round kept_from_{};               // below it no rank does
  std::vector<EarlyResult> early_;  // by round % H
  std::string failure_;
};

}  // namespace sluice::worker
