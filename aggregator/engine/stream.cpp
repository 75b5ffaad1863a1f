// The stages of a round, in the order in which a contribution passes through them.
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
  } else if (opening_ && job_.present().size() < job_.session().ranks) {
    taken.ends_job =
        fail({.reason = wire::AbortReason::kRankLeft, .rank_a = first_absent(job_.present())});
    return taken;
  } else if (opening_ && op_known_ && !agree(w, packet)) {
    taken.ends_job = &failure_;
    return taken;
  } else if (resumed_ && op_known_ && contradicts(packet)) {
    taken.ends_job = fail({.reason = wire::AbortReason::kCannotResume, .rank_a = w});
    return taken;
  } else if ((opening_ && !op_known_ && !begin_op(w, packet)) || !fits(w, packet)) {
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
/// A worker tells which results it has applied. With all of them told, the stream goes live.
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
      resumed_ = true;
      ++job_.engine.counters.streams_resynchronised;
      job_.present().for_each([&](Rank r) { send_status(r, sink); });
  }
  return taken;
}

// -------------------------------------------------------------------------------- opening rounds
/// Compares the op of an opening round's packet with the op that the first rank named.
bool Stream::agree(Rank w, const Packet& packet) {
  const auto* theirs = packet.descriptor();
  if (theirs == nullptr) return true;  // none of an opening round: fits() refuses it
  const auto& shape = packet.shape();
  const struct {
    wire::Field field;
    std::uint64_t ours, theirs;
  } comparisons[] = {
      {wire::Field::kOpNumber, op_, packet.as<wire::Data>().op},
      {wire::Field::kCollective, descriptor_.collective, theirs->collective},
      {wire::Field::kOpType, descriptor_.op_type, theirs->op_type},
      {wire::Field::kReduction, descriptor_.reduction, theirs->reduction},
      {wire::Field::kRoot, descriptor_.root, theirs->root},
      {is_keyed_ ? wire::Field::kKeyBound : wire::Field::kElementCount, this->shape().element_count,
       shape.element_count},
      {wire::Field::kWireType, this->shape().wire_type, shape.wire_type},
      {is_keyed_ ? wire::Field::kRowElements : wire::Field::kBlockElements,
       this->shape().block_elements, shape.block_elements},
      {wire::Field::kThreshold, is_keyed_ ? descriptor_.begin : wire::U64(),
       is_keyed_ ? theirs->begin : wire::U64()},
      {wire::Field::kRoundingSeed, descriptor_.rounding_seed, theirs->rounding_seed},
      {wire::Field::kLayout, descriptor_.layout, theirs->layout},
      {wire::Field::kTag, descriptor_.tag, theirs->tag},
  };
  for (const auto& c : comparisons) {
    if (c.ours == c.theirs) continue;
    fail({wire::AbortReason::kOpMismatch, c.field, op_named_by_, w, c.ours, c.theirs, op_});
    return false;
  }
  return true;
}

/// Takes the op from the first packet of an opening round; it is known once that packet is taken.
bool Stream::begin_op(Rank w, const Packet& packet) {
  if (packet.descriptor() == nullptr) return false;
  const bool begun = packet.is_keyed() ? keyed_.begin(packet, id_, job_.session(), resumed_)
                                       : combiner_.begin(packet, id_, job_.session(), resumed_);
  if (!begun) return false;
  is_keyed_ = packet.is_keyed();
  op_ = packet.as<wire::Data>().op;
  op_named_by_ = w;
  descriptor_ = *packet.descriptor();
  return true;
}

/// Whether a contribution to a resumed round, of the same op, is about another place in it.
bool Stream::contradicts(const Packet& packet) const {
  if (packet.is_keyed() != is_keyed_) return false;  // fits() refuses it
  return is_keyed_ ? keyed_.contradicts(packet) : combiner_.contradicts(packet);
}

/// Whether a contribution is one that the running round can take from this rank.
bool Stream::fits(Rank w, const Packet& packet) const {
  const auto& data = packet.as<wire::Data>();
  if (data.op != op_ || ((data.flags & wire::kDataOpening) != 0) != opening_) return false;
  if (packet.is_keyed() != is_keyed_) return false;
  if (is_keyed_) return keyed_.fits(packet);
  return combiner_.fits(packet,
                        opening_ ? std::span<const BlockIndex>() : contributions_.next_of(w));
}

void Stream::take(Rank w, const Packet& packet, Buffer buffer, Time now) {
  ++job_.engine.counters.contributions;
  ++job_.counters.contributions;
  job_.counters.received_bytes += buffer.bytes().size();
  const auto& data = packet.as<wire::Data>();
  is_late_ = (data.flags & wire::kDataAsk) != 0 || (has_repeated_ && repeated_to_.contains(w));
  if (begun_ == kNever) {
    charge(now);
    begun_ = now;
  }
  job_.window.tell(data.window);
  op_known_ = true;
  if (opening_) wants_[w.value] = *packet.descriptor();
  if (is_keyed_) {
    keyed_.take(w, packet, std::move(buffer));
    contributions_.take(w);
    return;
  }
  const auto add = [&](Rank r, const Packet& ready) { combiner_.add(r, ready); };
  if (!contributions_.take(w, packet, std::move(buffer), add))
    ++job_.engine.counters.contributions_held;
}

// ------------------------------------------------------------------------------------ its time
/// What the running round waits for, or has waited for when all of that has just come.
WaitCause Stream::waits_for() const {
  if (!rounds_.live() || rounds_.replaying()) return WaitCause::kRecovery;
  if (stalled_) return WaitCause::kPacketMemory;
  if (awaited_ack_) return WaitCause::kAcknowledgement;
  if (retiring_) return WaitCause::kRetirement;
  if (opening_ && begun_ == kNever) return WaitCause::kNoOp;
  if (is_late_ && (begun_ == kNever || contributions_.complete()))
    return WaitCause::kRetransmission;
  return begun_ == kNever ? WaitCause::kNextRound : WaitCause::kContribution;
}

// ---------------------------------------------------------------------------- finishing a round
RankSet Stream::waited_for() const {
  RankSet set = contributions_.outstanding();
  rounds_.too_far_behind().for_each([&](Rank r) { set.insert(r); });
  return set;
}

/// Finishes the running round if nothing is lacking, and those behind it that await nobody.
void Stream::try_finish(Time now, PacketSink& sink) {
  while (may_finish(now)) {
    sink.enter(Stage::kBuild);
    is_keyed_ ? finish_keyed(now, sink) : finish(now, sink);
    if (stalled_) break;
  }
}

bool Stream::may_finish(Time now) {
  if (!op_known_ || !contributions_.complete()) return false;
  if (rounds_.may_finish()) return true;
  if (!awaited_ack_) {
    charge(now);
    awaited_ack_ = true;
    ++job_.engine.counters.rounds_awaiting_ack;
    ++job_.counters.rounds_awaiting_ack;
  }
  return false;
}

void Stream::finish(Time now, PacketSink& sink) {
  std::array<BlockIndex, wire::kMaxColumns> storage;
  const std::span<BlockIndex> want(storage.data(), combiner_.geometry().columns);
  contributions_.want_next(want);
  Buffer result = build_result(want, sink);
  if (!result) return stall(now);
  combiner_.count(want, job_.counters);
  finished(std::move(result), now, sink);
  start_round(want);
}

void Stream::finish_keyed(Time now, PacketSink& sink) {
  sink.enter(Stage::kSum);
  KeyedScratch& scratch = job_.engine.scratch;
  const auto merged = keyed_.merge(scratch.run().first(keyed_result_room(job_.session())), scratch);
  sink.enter(Stage::kBuild);
  Buffer result = build_keyed_result(merged, sink);
  if (!result) return stall(now);
  finished(std::move(result), now, sink);
  const RankSet used_up = keyed_.start_round(merged, scratch);
  start_round(merged.next == kNoChunk);
  if (opening_)
    contributions_.await_all();
  else
    contributions_.await(used_up);
}

/// The pool has no buffer for the result: it is built when it has.
void Stream::stall(Time now) {
  if (stalled_) return;
  charge(now);
  stalled_ = true;
  ++job_.engine.counters.rounds_stalled;
  ++job_.counters.rounds_stalled;
}

/// The running round has ended: all are told.
void Stream::finished(Buffer result, Time now, PacketSink& sink) {
  ++job_.engine.counters.rounds_finished;
  ++job_.counters.rounds;
  charge(now);
  if (begun_ != kNever) job_.counters.round_time.observe(now - std::exchange(begun_, kNever));
  if (rounds_.replaying()) ++job_.engine.counters.rounds_replayed;
  sink.enter(Stage::kTransmit);
  deliver(result, sink);
  sink.enter(Stage::kBuild);
  rounds_.finish(std::move(result));
}

/// The RESULT of the running round, the same bytes for every worker; empty if the pool is.
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

/// What a RESULT says of the running round.
void Stream::fill(wire::Result& result) const {
  result.delivery.epoch = job_.session().epoch;
  result.delivery.delivery_token = job_.session().delivery_token;
  result.delivery.stream = id_.value;
  result.delivery.window = job_.window.value();
  result.round = rounds_.running().value;
  result.op = op_;
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
  const bool has_sums = !is_keyed_ && !combiner_.is_empty();
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

/// To those who hear the group, if that is better than to each of them what he lacks: sums that few
/// lack would fill the links of all. Returns whom it has reached.
RankSet Stream::deliver_by_group(const Buffer& result, PacketSink& sink) {
  const bool has_sums = !is_keyed_ && !combiner_.is_empty();
  RankSet reached;
  for (const Multicast::Path& path : job_.multicast().paths()) {
    const unsigned hearing = path.hearing.size();
    unsigned lacking = 0;
    path.hearing.for_each([&](Rank r) { lacking += !has_sums || lacks_a_sum(r); });
    if (hearing < 2 || 2 * lacking <= hearing) continue;
    sink.send(path.group, result.share());
    ++job_.engine.counters.group_packets;
    job_.counters.sent_bytes += result.bytes().size();
    job_.engine.counters.results_by_group += hearing;
    reached |= path.hearing;
  }
  return reached;
}

/// Of the running round: it wants one that is not, moved, its own block and no other's.
bool Stream::lacks_a_sum(Rank w) const {
  const bool moves = wire::moves(wire::Collective{descriptor_.collective});
  const auto current = combiner_.current();
  for (std::uint8_t c = 0; c < current.size(); ++c) {
    if (combiner_.is_empty(c) || (moves && combiner_.is_of_one(c, w))) continue;
    if (wants(wants_[w.value], combiner_.geometry(), current[c])) return true;
  }
  return false;
}

/// The same RESULT for those who lack none of its sums; itself if the pool is empty.
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
  start_round(std::all_of(want.begin(), want.end(), [](BlockIndex b) { return b == kNoBlock; }));
  if (opening_)
    contributions_.await_all();
  else
    contributions_.await_owners(want);
}

void Stream::start_round(bool opening) {
  stalled_ = awaited_ack_ = resumed_ = is_late_ = has_repeated_ = false;
  opening_ = opening;
  if (opening_) op_known_ = false;
}

// ------------------------------------------------------------------------------- who fell behind
/// To the worker alone that awaits `from`: the results it lacks (bit i of `have`: it holds result
/// from + 1 + i), or who is waited for.
void Stream::answer(Rank w, Round from, std::uint64_t have, PacketSink& sink) {
  if (from == rounds_.running()) return send_status(w, sink);
  if (!std::exchange(has_repeated_, true)) repeated_to_.clear();
  repeated_to_.insert(w);
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

/// A packet of fixed size, to one worker; false if the pool is empty.
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
