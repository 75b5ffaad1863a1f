// The stages of a round, in the order in which a contribution passes them.
#include "aggregator/engine/stream.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "common/protocol/build.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/wanted.hpp"

namespace sluice::aggregator {

using rounds::RoundLog;
namespace {

/// The first member that has left.
Rank first_absent(const RankSet& present) {
  std::uint16_t r = 0;
  while (present.contains(Rank{r})) ++r;
  return Rank{r};
}

}  // namespace

// --------------------------------------------------------------------------------- what arrives
Taken Stream::on_data(Rank w, const Packet& packet, Buffer buffer, Time now, PacketSink& sink) {
  const auto& data = packet.as<wire::Data>();
  const Round round{data.round};
  const bool ask = (data.flags & wire::kDataAsk) != 0;
  if (!rounds_.live()) return {DropReason::kUnfitting};
  if (round > rounds_.running()) return {DropReason::kFutureRound};

  Taken taken;
  taken.proves_liveness = rounds_.acknowledge(w, round);
  if (round < rounds_.running()) {  // finished; `round` may be ahead of what was acknowledged
    if (ask && round == rounds_.position(w))
      answer(w, round, 0, sink);
    else
      taken.drop = DropReason::kStaleRound;
  } else if (contributions_.has(w)) {
    taken.drop = DropReason::kDuplicate;
    if (ask) send_status(w, sink);
  } else if (!contributions_.awaits(w)) {
    taken.drop = DropReason::kUnfitting;
  } else if (round_.opens() && job_.present().size() < job_.session().ranks) {
    taken.ends_job =
        fail({.reason = wire::AbortReason::kRankLeft, .rank_a = first_absent(job_.present())});
    return taken;
  } else if (round_.opens() && op_ && !agree(w, packet)) {
    taken.ends_job = &failure_;
    return taken;
  } else if (round_.kind == Kind::kResumed && op_ && contradicts(packet)) {
    taken.ends_job = fail({.reason = wire::AbortReason::kCannotResume, .rank_a = w});
    return taken;
  } else if (!(op_ ? fits(w, packet) : begin_op(w, packet))) {
    taken.drop = DropReason::kUnfitting;
  } else {
    sink.enter(Stage::kSum);
    take(w, packet, std::move(buffer), now);
    taken.proves_liveness = true;
  }
  try_finish(now, sink);
  return taken;
}

Taken Stream::on_position(Rank w, Round position, Time now, PacketSink& sink) {
  if (!rounds_.live()) return {DropReason::kUnfitting};
  if (position > rounds_.running()) return {DropReason::kFutureRound};
  if (!rounds_.acknowledge(w, position)) return {DropReason::kStaleRound};
  try_finish(now, sink);
  return {DropReason::kNone, true};
}

Taken Stream::on_probe(Rank w, Round position, std::uint64_t have, Time now, PacketSink& sink) {
  ++job_.engine.counters.probes_received;
  if (!rounds_.live()) return {DropReason::kUnfitting};
  if (position > rounds_.running()) return {DropReason::kFutureRound};
  const bool advanced = rounds_.acknowledge(w, position);
  try_finish(now, sink);
  if (position != rounds_.position(w)) return {DropReason::kStaleRound, advanced};
  answer(w, position, have, sink);
  return {DropReason::kNone, advanced};
}

// ------------------------------------------------------------------------------- resynchronisation
/// A worker reports which results it has applied. When all workers have, the stream goes live.
Taken Stream::on_sync(Rank w, Round applied, Time now, PacketSink& sink) {
  Taken taken{.proves_liveness = true};
  charge(now);
  switch (rounds_.sync(w, applied)) {
    case RoundLog::Synced::kKnown:
      taken = {DropReason::kDuplicate};
      [[fallthrough]];
    case RoundLog::Synced::kAwaitsOthers:
      send_status(w, sink);
      break;
    case RoundLog::Synced::kContradiction:
      taken.ends_job = fail({.reason = wire::AbortReason::kCannotResume, .rank_a = w});
      break;
    case RoundLog::Synced::kLive:
      round_.kind = Kind::kResumed;
      ++job_.engine.counters.streams_resynchronised;
      job_.present().for_each([&](Rank r) { send_status(r, sink); });
  }
  return taken;
}

// -------------------------------------------------------------------------------- opening rounds
/// Compares the op of a packet of an opening round with the op that the first rank named.
bool Stream::agree(Rank w, const Packet& packet) {
  const auto* theirs = packet.descriptor();
  if (theirs == nullptr) return true;  // the packet is of no opening round: fits() refuses it
  const auto& shape = packet.shape();
  const wire::Descriptor& ours = op_->descriptor;
  const bool is_keyed = sums_pairs();
  const struct {
    wire::Field field;
    std::uint64_t ours, theirs;
  } comparisons[] = {
      {wire::Field::kOpNumber, op_->number, packet.as<wire::Data>().op},
      {wire::Field::kCollective, ours.collective, theirs->collective},
      {wire::Field::kOpType, ours.op_type, theirs->op_type},
      {wire::Field::kReduction, ours.reduction, theirs->reduction},
      {wire::Field::kRoot, ours.root, theirs->root},
      {is_keyed ? wire::Field::kKeyBound : wire::Field::kElementCount, this->shape().element_count,
       shape.element_count},
      {wire::Field::kWireType, this->shape().wire_type, shape.wire_type},
      {is_keyed ? wire::Field::kRowElements : wire::Field::kBlockElements,
       this->shape().block_elements, shape.block_elements},
      {wire::Field::kThreshold, is_keyed ? ours.begin : wire::U64(),
       is_keyed ? theirs->begin : wire::U64()},
      {wire::Field::kRoundingSeed, ours.rounding_seed, theirs->rounding_seed},
      {wire::Field::kLayout, ours.layout, theirs->layout},
      {wire::Field::kTag, ours.tag, theirs->tag},
  };
  for (const auto& c : comparisons) {
    if (c.ours == c.theirs) continue;
    fail(
        {wire::AbortReason::kOpMismatch, c.field, op_->named_by, w, c.ours, c.theirs, op_->number});
    return false;
  }
  return true;
}

/// Takes the op from the first packet of an opening round, if the stream can take the packet.
bool Stream::begin_op(Rank w, const Packet& packet) {
  if (packet.descriptor() == nullptr) return false;
  const bool resumed = round_.kind == Kind::kResumed;
  const bool begun = packet.is_keyed() ? keyed_.begin(packet, id_, job_.session(), resumed)
                                       : combiner_.begin(packet, id_, job_.session(), resumed);
  if (!begun) return false;
  op_ = {.number = packet.as<wire::Data>().op,
         .named_by = w,
         .sums = packet.is_keyed() ? RunningOp::Sums::kPairs : RunningOp::Sums::kBlocks,
         .descriptor = *packet.descriptor()};
  if (!fits(w, packet)) op_.reset();
  return op_.has_value();
}

/// Whether a contribution to a resumed round is about another place in the same op.
bool Stream::contradicts(const Packet& packet) const {
  if (packet.is_keyed() != sums_pairs()) return false;  // fits() refuses it
  return sums_pairs() ? keyed_.contradicts(packet) : combiner_.contradicts(packet);
}

/// Whether the running round can take this contribution from this rank.
bool Stream::fits(Rank w, const Packet& packet) const {
  const auto& data = packet.as<wire::Data>();
  if (data.op != op_->number || ((data.flags & wire::kDataOpening) != 0) != round_.opens())
    return false;
  if (packet.is_keyed() != sums_pairs()) return false;
  if (sums_pairs()) return keyed_.fits(packet);
  return combiner_.fits(packet,
                        round_.opens() ? std::span<const BlockIndex>() : contributions_.next_of(w));
}

void Stream::take(Rank w, const Packet& packet, Buffer buffer, Time now) {
  ++job_.engine.counters.contributions;
  ++job_.counters.contributions;
  job_.counters.received_bytes += buffer.bytes().size();
  const auto& data = packet.as<wire::Data>();
  arrived((data.flags & wire::kDataAsk) != 0 || round_.repeated_to.contains(w), now);
  job_.window.observe(data.window);
  if (round_.opens()) wants_[w.value] = *packet.descriptor();
  if (sums_pairs()) {
    keyed_.take(w, packet, std::move(buffer), job_.engine.scratch);
    contributions_.take(w);
    return;
  }
  const auto add = [&](Rank r, const Packet& ready) { combiner_.add(r, ready); };
  if (!contributions_.take(w, packet, std::move(buffer), add))
    ++job_.engine.counters.contributions_held;
}

// ------------------------------------------------------------------------------------ its time
/// What the running round waits for. If it has just received the last contribution: what it has
/// waited for.
WaitCause Stream::waits_for() const {
  if (!rounds_.live() || rounds_.replaying()) return WaitCause::kRecovery;
  if (round_.delay == Delay::kPacketMemory) return WaitCause::kPacketMemory;
  if (round_.delay == Delay::kAcknowledgement) return WaitCause::kAcknowledgement;
  if (job_.retirement.begun()) return WaitCause::kRetirement;
  if (!round_.begun) return round_.opens() ? WaitCause::kNoOp : WaitCause::kNextRound;
  return contributions_.complete() ? round_.begun->last : WaitCause::kContribution;
}

/// A contribution has arrived. It is late if it, or the result before it, was sent again.
void Stream::arrived(bool is_late, Time now) {
  const WaitCause ended = is_late ? WaitCause::kRetransmission : WaitCause::kContribution;
  if (round_.begun) {
    round_.begun->last = ended;
    return;
  }
  const WaitCause waited_for = waits_for();
  charge(is_late && waited_for == WaitCause::kNextRound ? ended : waited_for, now);
  round_.begun = {now, ended};
}

// ---------------------------------------------------------------------------- finishing a round
RankSet Stream::waited_for() const {
  RankSet set = contributions_.outstanding();
  rounds_.too_far_behind().for_each([&](Rank r) { set.insert(r); });
  return set;
}

/// Finishes the running round if nothing is lacking, and then the next ones that await no rank.
void Stream::try_finish(Time now, PacketSink& sink) {
  while (may_finish(now)) {
    sink.enter(Stage::kBuild);
    sums_pairs() ? finish_keyed(now, sink) : finish(now, sink);
    if (stalled()) break;
  }
}

bool Stream::may_finish(Time now) {
  if (!op_ || !contributions_.complete()) return false;
  if (rounds_.may_finish()) return true;
  delay(Delay::kAcknowledgement, now);
  return false;
}

void Stream::finish(Time now, PacketSink& sink) {
  std::array<BlockIndex, wire::kMaxColumns> storage;
  const std::span<BlockIndex> want(storage.data(), combiner_.geometry().columns);
  contributions_.want_next(want);
  Buffer result = build_result(want, sink);
  if (!result) return delay(Delay::kPacketMemory, now);
  combiner_.count(want, job_.counters);
  finished(std::move(result), now, sink);
  start_round(want);
}

void Stream::finish_keyed(Time now, PacketSink& sink) {
  sink.enter(Stage::kSum);
  KeyedScratch& scratch = job_.engine.scratch;
  const std::size_t room = keyed_result_room(job_.session());
  const auto merged = keyed_.merge(scratch.run().first(room), scratch);
  sink.enter(Stage::kBuild);
  Buffer result = build_keyed_result(merged, sink);
  if (!result) return delay(Delay::kPacketMemory, now);
  finished(std::move(result), now, sink);
  const RankSet contributors = keyed_.start_round(merged, room, scratch);
  start_round(merged.next == kNoKey ? Kind::kOpening : Kind::kFollowing);
  if (round_.opens())
    contributions_.await_all();
  else
    contributions_.await(contributors);
}

/// The running round has all contributions, but cannot end yet.
void Stream::delay(Delay by, Time now) {
  if (round_.delay == by) return;
  charge(now);
  round_.delay = by;
  const bool stalled = by == Delay::kPacketMemory;
  ++(stalled ? job_.engine.counters.rounds_stalled : job_.engine.counters.rounds_awaiting_ack);
  ++(stalled ? job_.counters.rounds_stalled : job_.counters.rounds_awaiting_ack);
}

/// The running round has ended: sends the result to all ranks.
void Stream::finished(Buffer result, Time now, PacketSink& sink) {
  ++job_.engine.counters.rounds_finished;
  ++job_.counters.rounds;
  charge(now);
  if (round_.begun) job_.counters.round_time.observe(now - round_.begun->at);
  if (rounds_.replaying()) ++job_.engine.counters.rounds_replayed;
  sink.enter(Stage::kTransmit);
  deliver(result, sink);
  sink.enter(Stage::kBuild);
  rounds_.finish(std::move(result));
}

/// The RESULT of the running round, with the same bytes for every worker; empty if the pool is
/// empty.
Buffer Stream::build_result(std::span<const BlockIndex> want, PacketSink& sink) {
  const std::uint8_t columns = combiner_.geometry().columns;
  const std::size_t size =
      wire::block_packet_bytes<wire::Result>(columns, false, combiner_.sums_bytes());
  const Session& session = job_.session();
  const Protection protection = job_.protection();
  assert(size + protection.trailer_bytes() <= session.payload_bytes);
  Buffer buffer = sink.allocate(size + protection.trailer_bytes());
  if (!buffer) return buffer;

  auto packet = wire::BlockPacket<wire::Result>::begin(buffer.writable().first(size), session.job,
                                                       columns, false);
  fill(packet.fixed);
  for (std::uint8_t c = 0; c < columns; ++c) packet.columns[c].next = want[c].value;
  combiner_.write(packet.columns, packet.payload);
  protect(buffer.writable(), protection);
  return buffer;
}

/// Fills in what a RESULT says about the running round.
void Stream::fill(wire::Result& result) const {
  result.delivery.epoch = job_.session().epoch;
  result.delivery.delivery_token = job_.session().delivery_token;
  result.delivery.stream = id_.value;
  result.delivery.window = job_.window.value();
  result.round = rounds_.running().value;
  result.op = op_->number;
  result.shape = shape();
  result.completing_rank = contributions_.last().value;
  result.lag = static_cast<std::uint16_t>(rounds_.lag());
}

Buffer Stream::build_keyed_result(const KeyedCombiner::Merged& merged, PacketSink& sink) {
  const std::size_t size = sizeof(wire::KeyValueResult) + merged.run.size();
  const Protection protection = job_.protection();
  Buffer buffer = sink.allocate(size + protection.trailer_bytes());
  if (!buffer) return buffer;
  const auto out = buffer.writable().first(size);
  auto* const packet = ::new (out.data()) wire::KeyValueResult;
  packet->result.delivery.header =
      wire::header_of(wire::Kind::kKeyValueResult, job_.session().job, size);
  fill(packet->result);
  packet->horizon = keyed_.horizon();
  packet->next = merged.next;
  for (std::size_t i = 0; i < merged.rejected.size(); ++i) packet->rejected[i] = merged.rejected[i];
  packet->run_bytes = static_cast<std::uint32_t>(merged.run.size());
  std::copy(merged.run.begin(), merged.run.end(), out.data() + sizeof(wire::KeyValueResult));
  protect(buffer.writable(), protection);
  return buffer;
}

void Stream::deliver(const Buffer& result, PacketSink& sink) {
  job_.engine.counters.results_sent += job_.present().size();
  RankSet rest = job_.present();
  if (!job_.multicast().paths().empty()) rest -= deliver_by_group(result, sink);
  const bool has_sums = !sums_pairs() && !combiner_.is_empty();
  const std::span<const Endpoint> members = job_.endpoints();
  Buffer brief;
  std::uint64_t bytes = 0;
  rest.for_each([&](Rank r) {
    const bool whole = !has_sums || lacks_a_sum(r);
    if (!whole) {
      if (!brief) brief = without_sums(result, sink);
      ++job_.engine.counters.results_withheld;
    }
    const Buffer& wanted = whole ? result : brief;
    bytes += wanted.bytes().size();
    sink.send(members[r.value], wanted.share());
  });
  job_.counters.sent_bytes += bytes;
}

/// Sends the RESULT to the group if most of the ranks that receive it lack a sum: otherwise, sums
/// that few ranks lack would fill the links of all. Returns the ranks that it reaches.
RankSet Stream::deliver_by_group(const Buffer& result, PacketSink& sink) {
  const bool has_sums = !sums_pairs() && !combiner_.is_empty();
  RankSet reached;
  for (const Multicast::Path& path : job_.multicast().paths()) {
    const unsigned receiving = path.receiving.size();
    unsigned lacking = 0;
    path.receiving.for_each([&](Rank r) { lacking += !has_sums || lacks_a_sum(r); });
    if (receiving < 2 || 2 * lacking <= receiving) continue;
    sink.send(path.group, result.share());
    ++job_.engine.counters.group_packets;
    job_.counters.sent_bytes += result.bytes().size();
    job_.engine.counters.results_by_group += receiving;
    reached |= path.receiving;
  }
  return reached;
}

/// Whether the rank wants a sum of the running round. It does not need a moved block of which it is
/// the only owner.
bool Stream::lacks_a_sum(Rank w) const {
  const bool moves = wire::moves(wire::Collective{op_->descriptor.collective});
  const auto current = combiner_.current();
  for (std::uint8_t c = 0; c < current.size(); ++c) {
    if (combiner_.is_empty(c) || (moves && combiner_.is_of_one(c, w))) continue;
    if (wants(wants_[w.value], combiner_.geometry(), current[c])) return true;
  }
  return false;
}

/// The same RESULT without sums, for ranks that lack none of them. If the pool is empty, it is the
/// RESULT itself.
Buffer Stream::without_sums(const Buffer& result, PacketSink& sink) const {
  const std::size_t size =
      wire::block_packet_bytes<wire::Result>(combiner_.geometry().columns, false, 0);
  const Protection protection = job_.protection();
  Buffer buffer = sink.allocate(size + protection.trailer_bytes());
  if (!buffer) return result.share();
  const auto out = buffer.writable().first(size);
  unprotect(result.bytes(), out, protection);
  auto* columns = reinterpret_cast<wire::Column*>(out.data() + sizeof(wire::Result));
  for (std::uint8_t c = 0; c < combiner_.geometry().columns; ++c)
    if (columns[c].flags != 0) columns[c].flags = wire::kColumnWithheld;
  protect(buffer.writable(), protection);
  return buffer;
}

void Stream::start_round(std::span<const BlockIndex> want) {
  combiner_.start_round(want);
  const bool is_over =
      std::all_of(want.begin(), want.end(), [](BlockIndex b) { return b == kNoBlock; });
  start_round(is_over ? Kind::kOpening : Kind::kFollowing);
  if (round_.opens())
    contributions_.await_all();
  else
    contributions_.await_owners(want);
}

void Stream::start_round(Kind kind) {
  round_ = {.kind = kind};
  if (round_.opens()) op_.reset();
}

// ------------------------------------------------------------------------- ranks that fell behind
/// Answers a worker that awaits round `from`: sends it the results that it lacks (bit i of `have`:
/// it holds result from + 1 + i), or the ranks that the round waits for.
void Stream::answer(Rank w, Round from, std::uint64_t have, PacketSink& sink) {
  if (from == rounds_.running()) return send_status(w, sink);
  round_.repeated_to.insert(w);
  rounds_.for_each_result(from, have, [&](const Buffer& result) {
    ++job_.engine.counters.results_repeated;
    ++job_.counters.results_repeated;
    job_.counters.sent_bytes += result.bytes().size();
    job_.multicast().repaired(w);
    sink.send(job_.endpoints()[w.value], result.share());
  });
}

void Stream::send_status(Rank w, PacketSink& sink) {
  auto status = wire::make<wire::Status>(job_.session().job);
  status.round = rounds_.running().value;
  status.live = rounds_.live() ? 1 : 0;
  status.delivery.window = job_.window.value();
  if (rounds_.live()) status.waiting = waited_for().to_bytes();
  if (send_small(w, status, sink)) ++job_.engine.counters.statuses_sent;
}

/// Sends a packet of fixed size to one worker. Returns false if the pool is empty.
template <class T>
bool Stream::send_small(Rank w, T packet, PacketSink& sink) {
  const Protection protection = job_.protection();
  Buffer buffer = sink.allocate(sizeof packet + protection.trailer_bytes());
  if (!buffer) {
    ++job_.engine.counters.control_packets_lost;
    return false;
  }
  packet.delivery.epoch = job_.session().epoch;
  packet.delivery.delivery_token = job_.session().delivery_token;
  packet.delivery.stream = id_.value;
  std::memcpy(buffer.writable().data(), &packet, sizeof packet);
  protect(buffer.writable(), protection);
  sink.send(job_.endpoints()[w.value], std::move(buffer));
  return true;
}

}  // namespace sluice::aggregator
