// What one stream does when an op, a result, a status or its timer comes.
#include "worker/engine/stream.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "common/protocol/build.hpp"

namespace sluice::worker {

using rounds::WaitingEnd;

namespace {

/// Whether a replayed round, which has ended here before, can end with this result.
bool ends_again(const Contribution& mine, const Packet& packet) {
  if (packet.as<wire::Result>().op != mine.op || !wire::same(packet.shape(), mine.shape) ||
      packet.is_keyed() != mine.is_keyed)
    return false;
  if (mine.is_keyed) {
    const auto& result = packet.as<wire::KeyValueResult>();
    return result.horizon == mine.horizon && result.next == mine.next_horizon;
  }
  const auto columns = packet.columns();
  return std::equal(columns.begin(), columns.end(), mine.columns.begin(),
                    [](const wire::Column& result, const wire::Column& own) {
                      return result.index == own.index && (own.flags == 0 || result.flags != 0);
                    });
}

}  // namespace

// ---------------------------------------------------------------------------------- moving on
/// What holds whenever a packet or the timer comes.
void Stream::check_invariants(const Scope& scope) const {
  assert(kept_from_ <= position() && end_.acknowledged_position() <= position() &&
         position() <= applied_);
  assert(applied_ - position() <= contributions_.size());
  const bool suspended = is_syncing() || !scope.membership.in();
  assert(suspended || busy() == (due() != kNever) || (is_held_back() && owes_data()));
}

/// If the stream resumes, every round from the position on will end again.
void Stream::start_epoch(bool resume, OpQueue& ops) {
  if (resume) {
    end_.forget_what_was_said();
    takeover_ = Takeover::kTellsPosition;
    awaited_ = {};
    for (auto& result : early_) result = {};
  } else {
    if (running_) ops.withdraw_from_stream(op_);
    assert(!has_progress());
    *this = Stream(id_, streams_, static_cast<std::uint8_t>(early_.size()),
                   static_cast<std::uint8_t>(contributions_.front().columns.size()));
  }
}

/// The aggregator has taken this rank in: goes on, or tells the position.
void Stream::on_welcome(Scope& scope) {
  if (is_syncing()) return send_sync(scope);
  advance(scope);
}

/// Every rank has applied the results below `end`: what was sent for them is still in the cache.
void Stream::forget_contributions(Round end) {
  for (; kept_from_ < end; ++kept_from_) {
    auto& mine = contribution(kept_from_);
    if (mine.round != kept_from_) continue;
    mine.blocks = {};
    mine.packet = {};
  }
}

/// Whether the round awaited needs something of this rank.
bool Stream::owes_data() const {
  if (!replaying()) return running_ && (opens_op() || source().owns() || resumes());
  const auto& mine = contribution(position());
  return mine.first || mine.owner || resumes();
}

void Stream::advance(Scope& scope) {
  ShardMembership& membership = scope.membership;
  if (!membership.in() || is_syncing()) return;  // suspended
  const bool may_run = replaying() || membership.path.window.lets_run(run_order(scope.ops));
  if (!busy() && !(may_run && begin_next_op(scope))) {
    end_.rest();  // idle: no rank can pass us, so no timer is needed
    return;
  }
  if (owes_data() && !may_run) {
    end_.rest();  // until the engine lets it
    return;
  }
  end_.begin(scope.now);
  if (owes_data()) {
    send_data(false, scope);
  } else {
    if (end_.owes_acknowledgement()) send_ack(scope);
    await(scope);
  }
}

OpNumber Stream::next_op(const OpQueue& ops) const {
  if (running_) return op_;
  OpNumber op = std::max(op_, ops.begin());
  while (op < ops.ready_end() && !ops.find(op)->uses(id_)) ++op;
  return op;
}

/// The next op that uses this stream, if it was submitted and its tensors have arrived.
bool Stream::begin_next_op(Scope& scope) {
  OpQueue& ops = scope.ops;
  op_ = next_op(ops);
  if (op_ == ops.ready_end()) return false;
  Operation& op = *ops.find(op_);
  assert(!busy());
  running_ = {.began = position(), .is_keyed = op.keyed() != nullptr};
  ops.begin_on_stream(op_);
  end_.begin_op();
  source().begin(op, id_, scope.membership.agreed());
  return true;
}

// --------------------------------------------------------------------------------- what arrives
Taken Stream::on_result(const Packet& packet, Buffer buffer, Scope& scope) {
  using Came = WaitingEnd::Came;
  check_invariants(scope);
  const auto& result = packet.as<wire::Result>();
  const Round round{result.round};
  end_.answered();
  scope.membership.answered(scope.now);
  if (is_syncing()) return {DropReason::kUnfitting};  // no round of this epoch can have ended
  if (round >= position() && result.lag >= end_.history()) return {DropReason::kFutureRound};
  const Came came = end_.on_result(round, waiting(scope));
  if (came == Came::kStale) return {DropReason::kStaleRound};
  if (came == Came::kFuture) return {DropReason::kFutureRound};
  forget_contributions(std::min(Round{round.value - result.lag}, position()));
  if (came == Came::kTwice) return {DropReason::kDuplicate};
  if (came != Came::kAwaited) {
    early_[round.value % early_.size()] = {packet, std::move(buffer)};
    ++scope.counters.results_early;
    if (came == Came::kNewGap) send_probe(scope);
    return {};
  }

  scope.membership.received(scope.now);
  if (end_.has_contributed()) scope.membership.path.window.arrived();
  sample_round_trip(packet, scope);
  if (!take(packet, scope)) return {DropReason::kUnfitting, &failure_};
  while (end_.next()) {
    const auto next = std::exchange(early_[position().value % early_.size()], {});
    assert(next.buffer && next.packet.as<wire::Result>().round == position().value);
    if (!take(next.packet, scope)) return {DropReason::kUnfitting, &failure_};
  }
  advance(scope);
  return {};
}

/// Takes the result of the round awaited. False: it cannot be that one, and the job must end.
bool Stream::take(const Packet& packet, Scope& scope) {
  assert(scope.membership.in());
  if ((!busy() && !begin_next_op(scope)) || !fits(packet, scope)) return refuse_result();
  if (replaying())
    ++scope.counters.rounds_replayed;  // for others: here it was applied when it ended first
  else if (!apply(packet, scope))
    return refuse_result();
  applied_ = std::max(applied_, Round{position().value + 1});
  takeover_ = Takeover::kNone;
  awaited_ = {};
  return true;
}

double Stream::progress(OpNumber number, const Operation& op) const {
  if (!running_ || op_ != number || running_->is_keyed) return 0;
  return dense_.progress(op, id_);
}

bool Stream::refuse_result() {
  failure_ = "the result of round " + std::to_string(position().value) + " on stream " +
             std::to_string(id_.value) + " does not fit the op that runs there";
  return false;
}

/// Whether the running round can end with this result, as far as this rank can tell.
bool Stream::fits(const Packet& packet, Scope& scope) {
  const auto& result = packet.as<wire::Result>();
  if (replaying()) return ends_again(contribution(position()), packet);
  if (result.op != op_ || packet.is_keyed() != running_->is_keyed) return false;
  return source().fits(running_op(scope), packet, said());
}

/// What this rank contributed to the round awaited. Nothing yet: a Contribution of no round.
const Contribution& Stream::said() const {
  static const Contribution kNothing;
  const Contribution& mine = contribution(position());
  return mine.round == position() ? mine : kNothing;
}

/// Takes the sums of the round awaited. False if they cannot be those of this round.
bool Stream::apply(const Packet& packet, Scope& scope) {
  assert(running_ && !replaying());
  Operation& op = running_op(scope);
  ++scope.counters.results_applied;
  ++op.statistics.packets_received;
  op.statistics.bytes_received += packet.bytes().size();
  Contribution& mine = contribution(position());
  if (mine.round != position()) describe(op, mine);
  const auto applied = source().apply(op, packet, mine);
  if (applied == RoundSource::Applied::kRefused) return false;
  if (applied == RoundSource::Applied::kGoesOn) return true;
  running_.reset();
  scope.ops.finish_on_stream(op_++);
  return true;
}

void Stream::sample_round_trip(const Packet& packet, Scope& scope) const {
  const bool completed_it = packet.as<wire::Result>().completing_rank == scope.config.rank.value;
  if (!completed_it || !end_.measures_round_trip()) return;
  const Duration took = scope.now - end_.contributed_at();
  scope.membership.path.rto.sample(took);
  scope.counters.narrowed_by_delay += scope.membership.path.window.round_trip(took, scope.now);
}

Taken Stream::on_status(const wire::Status& status, Scope& scope) {
  check_invariants(scope);
  end_.answered();
  ShardMembership& membership = scope.membership;
  membership.answered(scope.now);
  if (status.live == 0) return {is_syncing() ? DropReason::kNone : DropReason::kStaleRound};
  if (is_syncing()) return go_live(Round{status.round}, scope);
  if (!busy() || status.round != position().value) return {DropReason::kStaleRound};
  if (end_.has_probed_once()) membership.path.rto.sample(scope.now - end_.probed_at());
  awaited_ = RankSet::from_bytes(status.waiting);
  const bool awaits_us = awaited_.contains(scope.config.rank);
  const auto what = end_.on_status(awaits_us, owes_data(), opens_op(), waiting(scope));
  if (what == WaitingEnd::Say::kContribution && end_.has_contributed_once())
    scope.counters.narrowed_by_loss +=
        membership.path.window.lost(end_.contributed_at(), scope.now);
  say(what, false, scope);
  return {};
}

/// The aggregator wants to know the position.
DropReason Stream::on_poll(Scope& scope) {
  check_invariants(scope);
  if (is_syncing()) return DropReason::kStaleRound;
  send_ack(scope);
  return DropReason::kNone;
}

/// The aggregator has taken the stream over. It begins with this round, the first whose result some
/// rank lacks.
Taken Stream::go_live(Round round, Scope& scope) {
  if (!can_replay_from(round)) {
    failure_ = "an aggregator resumes stream " + std::to_string(id_.value) + " with round " +
               std::to_string(round.value) + ", but this rank awaits round " +
               std::to_string(applied_.value) + " and knows of none before " +
               std::to_string(kept_from_.value);
    return {DropReason::kNone, &failure_};
  }
  takeover_ = Takeover::kOpensRound;
  end_.resume_at(round);
  advance(scope);
  return {};
}

bool Stream::can_replay_from(Round round) const {
  const bool known = round == applied_ || contribution(round).round == round;
  return known && round >= kept_from_ && round <= applied_;
}

// ---------------------------------------------------------------------------------------- timer
void Stream::on_timer(Scope& scope) {
  check_invariants(scope);
  end_.rest();
  if (!scope.membership.in()) return;
  if (is_syncing()) {
    ++scope.counters.timeouts;
    end_.back_off();
    scope.membership.ask(scope.now);
    send_sync(scope);
    return;
  }
  if (!busy()) return;
  if (owes_data() &&
      !end_.has_contributed()) {  // no buffer was there, or the blocks were to arrive
    send_data(false, scope);
    return;
  }
  const auto what = end_.on_timer(owes_data(), waiting(scope));
  if (what == WaitingEnd::Say::kNothing) return look_at(end_.due(), scope);
  ++scope.counters.timeouts;
  scope.membership.ask(scope.now);
  say(what, true, scope);
  // Short packets are answered, and for so long no packet of any stream was: long ones are lost for
  // their length.
  if (end_.is_unanswered(scope.config.aggregator_timeout, scope.now))
    scope.membership.was_asked_in_vain(scope.now);
  await(scope);
}

/// `ask`: a contribution asks where the round stands.
void Stream::say(WaitingEnd::Say what, bool ask, Scope& scope) {
  switch (what) {
    case WaitingEnd::Say::kNothing:
      return;
    case WaitingEnd::Say::kContribution:
      return send_data(ask, scope);
    case WaitingEnd::Say::kAcknowledgement:
      return send_ack(scope);
    case WaitingEnd::Say::kProbe:
      return send_probe(scope);
  }
}

rounds::WaitingScope Stream::waiting(Scope& scope) {
  ShardMembership& membership = scope.membership;
  return {.rto = membership.path.rto,
          .recent = membership.path.recent,
          .rank = scope.config.rank,
          .ranks = scope.config.ranks,
          .by_group = membership.agreed().group != 0,
          .now = scope.now};
}

void Stream::await(Scope& scope) {
  end_.await(owes_data(), waiting(scope));
  look_at(end_.due(), scope);
}

void Stream::look_at(Time due, Scope& scope) {
  end_.look_at(due);
  scope.deadline = std::min(scope.deadline, due);
}

}  // namespace sluice::worker
