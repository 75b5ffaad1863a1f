// What one stream does when an op, a result, a status or its timer comes.
#include "worker/engine/stream.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "common/protocol/build.hpp"

namespace sluice::worker {

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
  assert(kept_from_ <= position_ && told_ <= position_ && position_ <= applied_);
  assert(applied_ - position_ <= contributions_.size());
  assert(running_ || !(first_ || owner_));
  const bool suspended = syncing_ || !scope.membership.in();
  assert(suspended || busy() == (due_ != kNever) || (is_held_back() && owes_data()));
}

/// Of a resumed stream every round from the position on will be finished again.
void Stream::start_epoch(bool resume, OpQueue& ops) {
  if (resume) {
    held_ = resumed_ = false;
    awaited_ = {};
    gap_probed_ = kNoRound;
    backoffs_ = data_sends_ = probe_sends_ = unanswered_ = 0;
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
  const auto& mine = contribution(position_);
  return mine.first || mine.owner || resumed_;
}

void Stream::advance(Scope& scope) {
  ShardMembership& membership = scope.membership;
  if (!membership.in() || syncing_) return;  // suspended
  const bool may_run = replaying() || membership.window.lets_run(turn(scope.ops));
  if (!busy() && !(may_run && begin_next_op(scope))) {
    due_ = kNever;  // idle: nobody can pass us, no timer is needed
    return;
  }
  if (owes_data() && !may_run) {
    due_ = kNever;  // until the engine lets it
    return;
  }
  begun_ = scope.now;
  if (owes_data()) {
    send_data(false, scope);
  } else {
    const std::uint64_t silent_rounds = position_ - told_;
    if (silent_rounds >= membership.agreed().history / 2u) send_ack(scope);
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
  op_began_ = position_;
  ops.begin_on_stream(op_);
  owner_ = held_ = false;
  backoffs_ = data_sends_ = probe_sends_ = 0;
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
  check_invariants(scope);
  const auto& result = packet.as<wire::Result>();
  const Round round{result.round};
  answered(scope);
  if (syncing_) return {DropReason::kUnfitting};  // no round of this epoch can have ended
  if (round < position_) {
    if (round == timed_out_) {  // it has come twice
      timed_out_ = kNoRound;
      if (!overtaken_) scope.membership.recent.asked_too_soon(scope.membership.rto.value());
      scope.membership.recent.in_vain(scope.membership.rto.value(), scope.config.ranks);
    }
    return {DropReason::kStaleRound};
  }
  if (round - position_ >= early_.size() || result.lag >= early_.size())
    return {DropReason::kFutureRound};
  forget_contributions(std::min(Round{round.value - result.lag}, position_));
  if (round > position_) {
    auto& early = early_[round.value % early_.size()];
    if (early.buffer) return {DropReason::kDuplicate};
    early = {packet, std::move(buffer)};
    ++scope.counters.results_early;
    if (gap_probed_ != position_) {
      gap_probed_ = position_;
      send_probe(scope);
    }
    return {};
  }

  scope.membership.heard(scope.now);
  scope.membership.recent.ended(begun_, scope.now);
  if (data_sends_ > 0) scope.membership.window.arrived();
  sample_round_trip(packet, scope);
  if (!take(packet, scope)) return {DropReason::kUnfitting, &failure_};
  for (;;) {
    const auto next = std::exchange(early_[position_.value % early_.size()], {});
    if (!next.buffer) break;
    assert(next.packet.as<wire::Result>().round == position_.value);
    if (!take(next.packet, scope)) return {DropReason::kUnfitting, &failure_};
  }
  backoffs_ = 0;
  held_ = false;
  advance(scope);
  return {};
}

/// The result of the round awaited moves the stream to the next. False, and the job cannot go
/// on, if it cannot be that.
bool Stream::take(const Packet& packet, Scope& scope) {
  assert(scope.membership.in());
  if ((!busy() && !begin_next_op(scope)) || !fits(packet, scope)) return refuse_result();
  if (replaying())
    ++scope.counters.rounds_replayed;  // for others: here it was applied when it ended first
  else if (!apply(packet, scope))
    return refuse_result();
  ++position_;
  applied_ = std::max(applied_, position_);
  resumed_ = false;
  awaited_ = {};
  data_sends_ = probe_sends_ = 0;
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
  failure_ = "the result of round " + std::to_string(position_.value) + " on stream " +
             std::to_string(id_.value) + " does not fit the op that runs there";
  return false;
}

/// Whether a result is one that the running round can end with, as far as this rank can tell.
bool Stream::fits(const Packet& packet, Scope& scope) {
  const auto& result = packet.as<wire::Result>();
  if (replaying()) return ends_again(contribution(position_), packet);
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
  const auto& mine = contribution(position_);
  return op.moves() && travels(op, column) && mine.round == position_ && !mine.blocks.empty();
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
  auto& mine = contribution(position_);
  if (mine.round != position_) describe(op, mine);
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
  if (!completed_it || data_sends_ != 1) return;
  const Duration took = scope.now - data_sent_at_;
  scope.membership.rto.sample(took);
  scope.counters.narrowed_by_delay += scope.membership.window.round_trip(took, scope.now);
}

Taken Stream::on_status(const wire::Status& status, Scope& scope) {
  check_invariants(scope);
  answered(scope);
  if (status.live == 0) return {syncing_ ? DropReason::kNone : DropReason::kStaleRound};
  if (syncing_) return go_live(Round{status.round}, scope);
  if (!busy() || status.round != position_.value) return {DropReason::kStaleRound};
  if (probe_sends_ == 1) scope.membership.rto.sample(scope.now - probe_sent_at_);
  probe_sends_ = 0;
  awaited_ = RankSet::from_bytes(status.waiting);
  RecentRounds& recent = scope.membership.recent;
  if (!awaited_.contains(scope.config.rank)) {
    held_ = true;  // our contribution is in: others are late
    if (!first_) recent.in_vain(scope.membership.rto.value(), scope.config.ranks);
  } else if (owes_data()) {
    held_ = false;
    recent.lost(scope.membership.rto.value());
    if (data_sends_ == 1)
      scope.counters.narrowed_by_loss += scope.membership.window.lost(data_sent_at_, scope.now);
    send_data(false, scope);
  } else {
    send_ack(scope);
  }
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
  position_ = told_ = round;
  backoffs_ = 0;
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
  due_ = kNever;
  if (!scope.membership.in()) return;
  if (syncing_) {
    ++scope.counters.timeouts;
    ++backoffs_;
    scope.membership.ask(scope.now);
    send_sync(scope);
    return;
  }
  if (!busy()) return;
  if (owes_data() && data_sends_ == 0) {  // there was no buffer, or the blocks were to arrive
    send_data(false, scope);
    return;
  }
  const RecentRounds& recent = scope.membership.recent;
  const RecentRounds::Waits waits = this->waits(scope);
  if (const Time late = recent.late_at(said_, waits); scope.now < late)
    return arm(recent.next_look(late, waits, scope.now), scope);
  ++scope.counters.timeouts;
  ++backoffs_;
  scope.membership.ask(scope.now);
  // Mostly another rank is late, not our packet lost: ask first, it costs little.
  if (owes_data() && !held_ && backoffs_ > 1)
    send_data(true, scope);
  else
    send_probe(scope);
  timed_out_ = position_;
  overtaken_ = recent.is_overtaken(said_, waits);
  count_unanswered(scope);
  await(scope);
}

/// Something was said of the round awaited, or nothing need be.
void Stream::await(Scope& scope) {
  said_ = scope.now;
  const RecentRounds::Waits waits = this->waits(scope);
  arm(after(scope.now, std::min(waits.timeout, waits.reordering)), scope);
}

void Stream::answered(Scope& scope) {
  unanswered_ = 0;
  scope.membership.answered(scope.now);
}

/// If KEEPALIVEs are answered, and nothing of any stream is for so long, what is lost is what is
/// long. (Of one stream among many so much may be lost by chance.)
void Stream::count_unanswered(Scope& scope) {
  constexpr unsigned kMany = 8;
  if (unanswered_++ == 0) unanswered_since_ = scope.now;
  if (unanswered_ >= kMany && scope.now - unanswered_since_ >= scope.config.aggregator_timeout)
    scope.membership.was_asked_in_vain(scope.now);
}

/// What is lost on its way to a group may be lost for all ranks: they do not all ask in one moment.
RecentRounds::Waits Stream::waits(Scope& scope) const {
  const RetransmissionTimeout& rto = scope.membership.rto;
  const bool by_group = scope.membership.agreed().group != 0;
  const Duration timeout = rto.backed_off(backoffs_);
  const Duration reordering = std::min(rto.reordering() * (1 << std::min(backoffs_, 8u)), timeout);
  const Duration own =
      by_group ? timeout * scope.config.rank.value / (4 * scope.config.ranks) : Duration{};
  return {.timeout = timeout + own,
          .reordering = reordering + own,
          .others_alone = held_ || !owes_data()};
}

void Stream::arm(Time due, Scope& scope) {
  due_ = due;
  scope.deadline = std::min(scope.deadline, due);
}

}  // namespace sluice::worker
