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

/// Whether a result is one that a round can end with which has ended here before.
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

/// Of the sums that a result lacks, those that this rank alone has.
void store_own(const Contribution& mine, const Packet& result, Operation& op) {
  std::span<const std::byte> blocks = mine.blocks;
  if (blocks.empty()) return;
  for (std::size_t c = 0; const wire::Column& column : result.columns()) {
    const wire::Column& own = mine.columns[c++];
    if (own.flags == 0) continue;
    const BlockIndex b{own.index};
    const std::size_t size = op.geometry().bytes_of(b);
    if (column.flags == wire::kColumnWithheld && op.wants(b)) {
      op.store(b, blocks.first(size));
      ++op.statistics.blocks_received;
    }
    blocks = blocks.subspan(size);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------- moving on
/// What holds whenever a packet or the timer comes.
void Stream::check_invariants(const Scope& scope) const {
  assert(kept_from_ <= position() && end_.told() <= position() && position() <= applied_);
  assert(applied_ - position() <= contributions_.size());
  assert(running_ || !(first_ || owner_));
  const bool suspended = syncing_ || !scope.membership.in();
  assert(suspended || busy() == (due() != kNever) || (is_held_back() && owes_data()));
}

/// Of a resumed stream every round from the position on will be finished again.
void Stream::start_epoch(bool resume, OpQueue& ops) {
  if (resume) {
    end_.forget_what_was_said();
    resumed_ = false;
    awaited_ = {};
    for (auto& result : early_) result = {};
  } else {
    if (running_) ops.withdraw_from_stream(op_);
    assert(!has_progress());
    *this = Stream(id_, streams_, static_cast<std::uint8_t>(early_.size()),
                   static_cast<std::uint8_t>(columns_.size()));
  }
  syncing_ = resume;
}

/// The aggregator has taken this rank in: goes on, or tells the position.
void Stream::on_welcome(Scope& scope) {
  if (syncing_) return send_sync(scope);
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
  if (!replaying()) return running_ && (first_ || owner_ || resumed_);
  const auto& mine = contribution(position());
  return mine.first || mine.owner || resumed_;
}

void Stream::advance(Scope& scope) {
  ShardMembership& membership = scope.membership;
  if (!membership.in() || syncing_) return;  // suspended
  const bool may_run = replaying() || membership.window.lets_run(turn(scope.ops));
  if (!busy() && !(may_run && begin_next_op(scope))) {
    end_.rest();  // idle: nobody can pass us, no timer is needed
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
  assert(!busy() && op.geometry().columns <= columns_.size());
  running_ = first_ = true;
  op_began_ = position();
  ops.begin_on_stream(op_);
  owner_ = false;
  end_.begin_op();
  if (op.keyed() != nullptr) {
    begin_keyed(op, scope);
    return true;
  }
  for (std::uint8_t c = 0; c < op.geometry().columns; ++c) {
    ColumnState& column = columns_[c];
    column.current = op.geometry().first_index(id_, c);
    column.at = op.next_nonzero(column.current);
    column.after = column.owned() ? op.next_nonzero(op.following(column.current)) : column.at;
    owner_ |= column.owned();
  }
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
  if (syncing_) return {DropReason::kUnfitting};  // no round of this epoch can have ended
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

  scope.membership.heard(scope.now);
  if (end_.has_contributed()) scope.membership.window.arrived();
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

/// Takes the result of the round awaited. False, and the job cannot go on, if it cannot be that.
bool Stream::take(const Packet& packet, Scope& scope) {
  assert(scope.membership.in());
  if ((!busy() && !begin_next_op(scope)) || !fits(packet, scope)) return refuse_result();
  if (replaying())
    ++scope.counters.rounds_replayed;  // for others: here it was applied when it ended first
  else if (!apply(packet, scope))
    return refuse_result();
  applied_ = std::max(applied_, Round{position().value + 1});
  resumed_ = false;
  awaited_ = {};
  return true;
}

double Stream::progress(OpNumber number, const Operation& op) const {
  if (!running_ || op_ != number || op.keyed() != nullptr) return 0;
  const Geometry& geometry = op.geometry();
  const auto blocks_from = [&](BlockIndex b) {
    return b == kNoBlock ? 0 : (geometry.blocks - 1 - b.value) / geometry.stride() + 1;
  };
  std::uint64_t all = 0, left = 0;
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    all += blocks_from(geometry.first_index(id_, c));
    left += blocks_from(columns_[c].current);
  }
  return all == 0 ? 0 : static_cast<double>(all - left) / static_cast<double>(all);
}

bool Stream::refuse_result() {
  failure_ = "the result of round " + std::to_string(position().value) + " on stream " +
             std::to_string(id_.value) + " does not fit the op that runs there";
  return false;
}

/// Whether a result is one that the running round can end with, as far as this rank can tell.
bool Stream::fits(const Packet& packet, Scope& scope) {
  const auto& result = packet.as<wire::Result>();
  if (replaying()) return ends_again(contribution(position()), packet);
  if (result.op != op_) return false;
  Operation& op = running_op(scope);
  if (packet.is_keyed() != (op.keyed() != nullptr)) return false;
  if (packet.is_keyed()) return fits_keyed(packet, scope);
  const Geometry& geometry = op.geometry();
  if (!wire::same(packet.shape(), wire::shape_of(geometry))) return false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const ColumnState& mine = columns_[c++];
    if (BlockIndex{column.index} != mine.current) return false;
    if (column.flags == 0 && travels(op, mine)) return false;  // our block would be lost
    if (column.flags == wire::kColumnWithheld && !may_be_withheld(op, mine)) return false;
    if (BlockIndex{column.next} > mine.after) return false;  // and here the next one
    if (column.next != kNoBlock.value && !geometry.in_one_column(column.next - mine.current.value))
      return false;
  }
  return true;
}

/// Whether this rank need not be sent the sum of a column: it wants none, or what it has
/// contributed may be all of it.
bool Stream::may_be_withheld(Operation& op, const ColumnState& column) const {
  if (!op.wants(column.current)) return true;
  const auto& mine = contribution(position());
  return op.moves() && travels(op, column) && mine.round == position() && !mine.blocks.empty();
}

/// Takes the sums of the round awaited, and looks ahead. False if they cannot be those of this
/// round.
bool Stream::apply(const Packet& packet, Scope& scope) {
  assert(running_ && !replaying());
  Operation& op = running_op(scope);
  ++scope.counters.results_applied;
  ++op.statistics.packets_received;
  op.statistics.bytes_received += packet.bytes().size();
  if (op.keyed() != nullptr) return apply_keyed(packet, scope);
  auto& mine = contribution(position());
  if (mine.round != position()) describe(op, mine);
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> sum) {
    op.store(columns_[c].current, sum, packet.columns()[c].scale);
    ++op.statistics.blocks_received;
  });
  if (op.moves()) store_own(mine, packet, op);
  op.finish_stores();
  bool done = true;
  owner_ = false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    ColumnState& state = columns_[c++];
    const BlockIndex want{column.next};
    const bool has_sum = column.flags != 0;
    if (travels(op, state)) ++op.statistics.blocks_sent;  // here: a round may be begun twice
    if (state.current != kNoBlock) op.end_round(state.current, want, has_sum);
    state.current = want;
    state.at = state.after;  // the first own block after the finished one
    assert(want <= state.at);
    if (state.owned()) state.after = op.next_nonzero(op.following(want));
    owner_ |= state.owned();
    done &= want == kNoBlock;
  }
  first_ = false;
  if (!done) return true;
  running_ = owner_ = false;
  scope.ops.finish_on_stream(op_++);
  return true;
}

void Stream::sample_round_trip(const Packet& packet, Scope& scope) const {
  const bool completed_it = packet.as<wire::Result>().completing_rank == scope.config.rank.value;
  if (!completed_it || !end_.measures_round_trip()) return;
  const Duration took = scope.now - end_.contributed_at();
  scope.membership.rto.sample(took);
  scope.counters.narrowed_by_delay += scope.membership.window.round_trip(took, scope.now);
}

Taken Stream::on_status(const wire::Status& status, Scope& scope) {
  check_invariants(scope);
  end_.answered();
  ShardMembership& membership = scope.membership;
  membership.answered(scope.now);
  if (status.live == 0) return {syncing_ ? DropReason::kNone : DropReason::kStaleRound};
  if (syncing_) return go_live(Round{status.round}, scope);
  if (!busy() || status.round != position().value) return {DropReason::kStaleRound};
  if (end_.has_probed_once()) membership.rto.sample(scope.now - end_.probed_at());
  awaited_ = RankSet::from_bytes(status.waiting);
  const bool awaits_us = awaited_.contains(scope.config.rank);
  const auto what = end_.on_status(awaits_us, owes_data(), first_, waiting(scope));
  if (what == WaitingEnd::Say::kContribution && end_.has_contributed_once())
    scope.counters.narrowed_by_loss += membership.window.lost(end_.contributed_at(), scope.now);
  say(what, false, scope);
  return {};
}

/// The aggregator wants to know the position.
DropReason Stream::on_poll(Scope& scope) {
  check_invariants(scope);
  if (syncing_) return DropReason::kStaleRound;
  send_ack(scope);
  return DropReason::kNone;
}

/// The aggregator has taken the stream over and begins with this round: the first whose result some
/// rank lacks.
Taken Stream::go_live(Round round, Scope& scope) {
  if (!can_replay_from(round)) {
    failure_ = "an aggregator resumes stream " + std::to_string(id_.value) + " with round " +
               std::to_string(round.value) + ", but this rank awaits round " +
               std::to_string(applied_.value) + " and knows of none before " +
               std::to_string(kept_from_.value);
    return {DropReason::kNone, &failure_};
  }
  syncing_ = false;
  resumed_ = true;
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
  if (syncing_) {
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
  // If KEEPALIVEs are answered, and nothing of any stream is for so long, what is lost is what is
  // long.
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
  return {.rto = membership.rto,
          .recent = membership.recent,
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
