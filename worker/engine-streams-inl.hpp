// The worker engine's data path: what one stream does when a result, a status or its timer comes
// (rules 7-11 of docs/protocol.md).
#pragma once

#include <algorithm>
#include <cstring>

#include "worker/engine.hpp"

namespace sluice::worker {

/// When to ask the pool again that was empty.
inline constexpr Duration kPoolRetry = std::chrono::microseconds(200);

/// Whether this rank has a block for the round. An owner may find that it has none: its block lay
/// beyond the search's horizon when it was announced.
inline bool travels(Operation& op, const ColumnState& column) {
  return column.owned() && op.is_nonzero(column.current);
}

// ---------------------------------------------------------------------------------- moving on
/// Does what the stream's position asks for: begins an op, sends, acknowledges, or rests.
template <PacketSink Sink>
void Engine<Sink>::advance(StreamId s, Time now, Sink& sink) {
  StreamState& x = streams_[s.value];
  ShardSession& session = shard_of(s);
  if (!session.in() || state_ == State::kJoining || x.syncing) return;  // frozen
  if (!x.running && !begin_next_op(s)) {
    x.due = kNever;  // idle: nobody can pass us, no timer is needed
    return;
  }
  if (x.owes_data()) {
    send_data(s, false, now, sink);
  } else {
    const std::uint64_t silent_rounds = x.position - x.told;
    if (silent_rounds >= session.agreed().history / 2u) send_ack(s, sink);
    arm(x, after(now, session.rto.value()));
  }
}

/// The next op that uses this stream, if it was submitted.
template <PacketSink Sink>
bool Engine<Sink>::begin_next_op(StreamId s) {
  StreamState& x = streams_[s.value];
  x.op = std::max(x.op, first_op_);
  const OpNumber end = first_op_ + ops_.size();
  while (x.op < end && !op_of(x)->geometry().uses(s)) ++x.op;
  if (x.op == end) return false;
  Operation& op = *op_of(x);
  x.running = x.first = true;
  ++running_streams_;
  x.owner = x.held = false;
  x.backoffs = x.data_sends = x.probe_sends = 0;
  for (std::uint8_t c = 0; c < op.geometry().columns; ++c) {
    ColumnState& column = x.columns[c];
    column.current = op.geometry().first_index(s, c);
    column.at = op.next_nonzero(column.current);
    column.after = column.owned() ? op.next_nonzero(op.following(column.current)) : column.at;
    x.owner |= column.owned();
  }
  return true;
}

// --------------------------------------------------------------------------------- what arrives
template <PacketSink Sink>
DropReason Engine<Sink>::on_stream(const Packet& packet, Buffer buffer, Time now, Sink& sink) {
  using wire::Kind;
  const StreamId s{packet.delivery().stream};
  if (stream_at(s) == nullptr) return DropReason::kBadStream;
  if (!shard_of(s).is_ours(packet.delivery())) return DropReason::kWrongEpoch;
  if (sessions_[0]->claims_no_progress()) return DropReason::kNotJoined;  // of all shards' streams
  if (!shard_of(s).protection().accepts(packet)) return DropReason::kNotAuthentic;
  switch (packet.kind()) {
    case Kind::kResult:
      return on_result(s, packet, std::move(buffer), now, sink);
    case Kind::kStatus:
      return on_status(s, packet.as<wire::Status>(), now, sink);
    case Kind::kPoll:
      if (streams_[s.value].syncing) return DropReason::kStaleRound;
      send_ack(s, sink);
      return DropReason::kNone;
    default:
      return on_fetch(s, Round{packet.as<wire::Fetch>().round}, sink);
  }
}

template <PacketSink Sink>
DropReason Engine<Sink>::on_result(StreamId s, const Packet& packet, Buffer buffer, Time now,
                                   Sink& sink) {
  StreamState& x = streams_[s.value];
  const std::size_t history = x.kept.size();
  const Round round{packet.as<wire::Result>().round};
  if (round < x.position) return DropReason::kStaleRound;
  if (round - x.position >= history) return DropReason::kFutureRound;
  auto& place = x.kept[round.value % history];
  if (place.buffer && place.round == round) return DropReason::kDuplicate;
  place = {round, packet, std::move(buffer)};
  const Round lowest{round.value - packet.as<wire::Result>().lag};
  x.forget_results(std::min(lowest, x.position));
  x.syncing = false;  // there would be none of this epoch otherwise
  if (round > x.position) {
    ++counters_.results_early;
    if (x.gap_probed != x.position) {
      x.gap_probed = x.position;
      send_probe(s, now, sink);
    }
    return DropReason::kNone;
  }

  shard_of(s).heard(now);
  sample_round_trip(s, packet, now);
  for (;;) {
    const auto& next = x.kept[x.position.value % history];
    if (!next.buffer || next.round != x.position) break;
    if ((!x.running && !begin_next_op(s)) || !fits(s, next.packet)) {
      fail_protocol("the result of round " + std::to_string(x.position.value) + " on stream " +
                    std::to_string(s.value) + " does not fit the op that runs there");
      return DropReason::kUnfitting;
    }
    apply(s, next.packet);
  }
  x.backoffs = 0;
  x.held = false;
  advance(s, now, sink);
  return DropReason::kNone;
}

/// Whether a result is one that the running round can end with, as far as this rank can tell.
template <PacketSink Sink>
bool Engine<Sink>::fits(StreamId s, const Packet& packet) {
  StreamState& x = streams_[s.value];
  const auto& result = packet.as<wire::Result>();
  if (!x.running || result.op != x.op) return false;
  Operation& op = *op_of(x);
  const Geometry& geometry = op.geometry();
  if (!wire::same(packet.shape(), wire::shape_of(geometry))) return false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const ColumnState& mine = x.columns[c++];
    const bool present = (column.flags & wire::kColumnPresent) != 0;
    if (BlockIndex{column.index} != mine.current) return false;
    if (!present && travels(op, mine)) return false;         // our block would be lost
    if (BlockIndex{column.next} > mine.after) return false;  // and here the next one
    if (column.next != kNoBlock.value &&
        (column.next - mine.current.value) % geometry.stride() != 0)
      return false;
  }
  return true;
}

/// Takes the sums of the awaited round and moves to the next.
template <PacketSink Sink>
void Engine<Sink>::apply(StreamId s, const Packet& packet) {
  StreamState& x = streams_[s.value];
  Operation& op = *op_of(x);
  ++counters_.results_applied;
  ++op.statistics.packets_received;
  op.statistics.bytes_received += packet.bytes().size();
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> sum) {
    op.store(x.columns[c].current, sum);
    ++op.statistics.blocks_received;
  });
  bool done = true;
  x.owner = false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    ColumnState& mine = x.columns[c++];
    const BlockIndex want{column.next};
    const bool present = (column.flags & wire::kColumnPresent) != 0;
    if (travels(op, mine)) ++op.statistics.blocks_sent;  // here: a round may be begun twice
    if (mine.current != kNoBlock)
      op.store_zeros(present ? op.following(mine.current) : mine.current, want);
    mine.current = want;
    mine.at = mine.after;  // the first own block after the finished one
    if (mine.owned()) mine.after = op.next_nonzero(op.following(want));
    x.owner |= mine.owned();
    done &= want == kNoBlock;
  }
  ++x.position;
  x.first = false;
  x.awaited = {};
  x.data_sends = x.probe_sends = 0;
  if (done) finish_on_stream(x);
}

template <PacketSink Sink>
void Engine<Sink>::sample_round_trip(StreamId s, const Packet& packet, Time now) {
  const StreamState& x = streams_[s.value];
  const bool completed_it = packet.as<wire::Result>().completing_rank == config_.rank.value;
  if (completed_it && x.data_sends == 1) shard_of(s).rto.sample(now - x.data_sent_at);
}

template <PacketSink Sink>
DropReason Engine<Sink>::on_status(StreamId s, const wire::Status& status, Time now, Sink& sink) {
  StreamState& x = streams_[s.value];
  if (status.live == 0) return x.syncing ? DropReason::kNone : DropReason::kStaleRound;
  if (std::exchange(x.syncing, false)) {
    x.backoffs = 0;
    if (Round{status.round} > x.position) {
      send_probe(s, now, sink);
      arm(x, after(now, shard_of(s).rto.value()));
    } else {
      advance(s, now, sink);
    }
    return DropReason::kNone;
  }
  if (!x.running || status.round != x.position.value) return DropReason::kStaleRound;
  if (x.probe_sends == 1) shard_of(s).rto.sample(now - x.probe_sent_at);
  x.probe_sends = 0;
  x.awaited = RankSet::from_bytes(status.waiting);
  if (!x.awaited.contains(config_.rank)) {
    x.held = true;  // our contribution is in: others are late
  } else if (x.owes_data()) {
    x.held = false;
    send_data(s, false, now, sink);
  } else {
    send_ack(s, sink);
  }
  return DropReason::kNone;
}

/// The aggregator lacks a result that its predecessor delivered.
template <PacketSink Sink>
DropReason Engine<Sink>::on_fetch(StreamId s, Round round, Sink& sink) {
  const StreamState& x = streams_[s.value];
  const auto& kept = x.kept[round.value % x.kept.size()];
  if (!kept.buffer || kept.round != round || round >= x.position)
    return DropReason::kNotResynchronising;
  const auto result = kept.packet.body();
  Buffer buffer = allocate(s, sizeof(wire::Give) + result.size(), sink);
  if (!buffer) return DropReason::kNoBuffer;
  auto give = member_packet<wire::Give>(s);
  give.member.header.length = static_cast<std::uint16_t>(sizeof give + result.size());
  give.round = round.value;
  std::memcpy(buffer.writable().data(), &give, sizeof give);
  const auto given = buffer.writable().subspan(sizeof give, result.size());
  std::memcpy(given.data(), result.data(), result.size());
  unprotect(given);
  ++counters_.results_given;
  send(s, std::move(buffer), sink);
  return DropReason::kNone;
}

template <PacketSink Sink>
RankSet Engine<Sink>::awaited(OpNumber op) const {
  RankSet ranks;
  for (const StreamState& x : streams_)
    if (x.running && x.op == op) ranks |= x.awaited;
  return ranks;
}

// ---------------------------------------------------------------------------------------- timer
template <PacketSink Sink>
void Engine<Sink>::on_timer(StreamId s, Time now, Sink& sink) {
  StreamState& x = streams_[s.value];
  x.due = kNever;
  if (!shard_of(s).in()) return;
  if (x.syncing) {
    ++counters_.timeouts;
    ++x.backoffs;
    send_sync(s, now, sink);
    return;
  }
  if (!x.running) return;
  if (x.owes_data() && x.data_sends == 0) {  // the pool was empty
    send_data(s, false, now, sink);
    return;
  }
  ++counters_.timeouts;
  ++x.backoffs;
  // Mostly another rank is late, not our packet lost: ask first, it costs little.
  if (x.owes_data() && !x.held && x.backoffs > 1)
    send_data(s, true, now, sink);
  else
    send_probe(s, now, sink);
  arm(x, after(now, shard_of(s).rto.backed_off(x.backoffs)));
}

template <PacketSink Sink>
void Engine<Sink>::arm(StreamState& x, Time due) {
  x.due = due;
  deadline_ = std::min(deadline_, due);
}

// -------------------------------------------------------------------------------------- sending
template <PacketSink Sink>
void Engine<Sink>::send_data(StreamId s, bool ask, Time now, Sink& sink) {
  StreamState& x = streams_[s.value];
  Operation& op = *op_of(x);
  const Geometry& geometry = op.geometry();
  std::size_t payload = 0;
  for (std::uint8_t c = 0; c < geometry.columns; ++c)
    if (travels(op, x.columns[c])) payload += geometry.bytes_of(x.columns[c].current);
  const std::size_t size = wire::block_packet_bytes<wire::Data>(geometry.columns, x.first, payload);
  Buffer buffer = allocate(s, size, sink);
  if (!buffer) {
    counters_.drops.count(DropReason::kNoBuffer);
    arm(x, after(now, kPoolRetry));
    return;
  }

  auto packet = wire::BlockPacket<wire::Data>::begin(buffer.writable().first(size), config_.job,
                                                     geometry.columns, x.first);
  packet.fixed.member.token = shard_of(s).token();
  packet.fixed.member.rank = config_.rank.value;
  packet.fixed.member.stream = s.value;
  packet.fixed.round = x.position.value;
  packet.fixed.op = x.op;
  packet.fixed.shape = wire::shape_of(geometry);
  packet.fixed.flags =
      static_cast<std::uint8_t>((x.first ? wire::kDataFirst : 0) | (ask ? wire::kDataAsk : 0));
  if (x.first) *packet.descriptor = op.descriptor();
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    const ColumnState& mine = x.columns[c];
    wire::Column& column = packet.columns[c];
    column.index = mine.current.value;
    column.next = mine.after.value;
    if (!travels(op, mine)) continue;
    column.flags = wire::kColumnPresent;
    const std::size_t bytes = geometry.bytes_of(mine.current);
    op.load(mine.current, packet.payload);
    packet.payload += bytes;
  }

  if (x.data_sends++ == 0) {
    ++counters_.data_sent;
  } else {
    ++counters_.data_resent;
    ++op.statistics.retransmissions;
  }
  x.data_sent_at = now;
  x.told = x.position;
  send(s, std::move(buffer), sink);
  arm(x, after(now, shard_of(s).rto.backed_off(x.backoffs)));
}

template <PacketSink Sink>
void Engine<Sink>::send_ack(StreamId s, Sink& sink) {
  StreamState& x = streams_[s.value];
  auto ack = member_packet<wire::Ack>(s);
  ack.position = x.position.value;
  if (!send_small(s, ack, sink)) return;
  ++counters_.acks_sent;
  x.told = x.position;
}

template <PacketSink Sink>
void Engine<Sink>::send_probe(StreamId s, Time now, Sink& sink) {
  StreamState& x = streams_[s.value];
  auto probe = member_packet<wire::Probe>(s);
  probe.position = x.position.value;
  std::uint64_t have = 0;
  for (const auto& kept : x.kept)
    if (kept.buffer && kept.round > x.position)
      have |= std::uint64_t{1} << (kept.round - x.position - 1);
  probe.have = have;
  if (!send_small(s, probe, sink)) return;
  ++counters_.probes_sent;
  if (Operation* op = x.running ? op_of(x) : nullptr) ++op->statistics.retransmissions;
  ++x.probe_sends;
  x.probe_sent_at = now;
  x.told = x.position;
}

/// Where this rank stands: what it awaits, and its next blocks.
template <PacketSink Sink>
void Engine<Sink>::send_sync(StreamId s, Time now, Sink& sink) {
  StreamState& x = streams_[s.value];
  arm(x, after(now, shard_of(s).rto.backed_off(x.backoffs)));
  auto sync = member_packet<wire::Sync>(s);
  sync.position = x.position.value;
  sync.op = x.op;
  std::array<wire::SyncColumn, wire::kMaxColumns> columns;
  std::size_t size = sizeof sync;
  if (x.running) {
    const Operation& op = *op_of(x);
    sync.shape = wire::shape_of(op.geometry());
    sync.descriptor = op.descriptor();
    sync.flags = static_cast<std::uint8_t>(wire::kSyncRunning | (x.first ? wire::kSyncFirst : 0));
    for (std::uint8_t c = 0; c < op.geometry().columns; ++c) {
      const ColumnState& mine = x.columns[c];
      columns[c].index = mine.current.value;
      columns[c].at = mine.at.value;
      columns[c].after = mine.after.value;
    }
    size += op.geometry().columns * sizeof(wire::SyncColumn);
  }
  Buffer buffer = allocate(s, size, sink);
  if (!buffer) {
    counters_.drops.count(DropReason::kNoBuffer);
    return;
  }
  sync.member.header.length = static_cast<std::uint16_t>(size);
  std::memcpy(buffer.writable().data(), &sync, sizeof sync);
  std::memcpy(buffer.writable().data() + sizeof sync, columns.data(), size - sizeof sync);
  ++counters_.syncs_sent;
  x.told = x.position;
  send(s, std::move(buffer), sink);
}

template <PacketSink Sink>
template <class T>
T Engine<Sink>::member_packet(StreamId s) {
  T packet = wire::make<T>(config_.job);
  packet.member.token = shard_of(s).token();
  packet.member.rank = config_.rank.value;
  packet.member.stream = s.value;
  return packet;
}

/// Room for a packet of a stream and for what protects it.
template <PacketSink Sink>
typename Sink::Buffer Engine<Sink>::allocate(StreamId s, std::size_t body, Sink& sink) {
  return sink.allocate(body + protection_of(s).trailer_bytes());
}

template <PacketSink Sink>
void Engine<Sink>::send(StreamId s, Buffer buffer, Sink& sink) {
  protect(buffer.writable(), protection_of(s));
  ++counters_.packets_sent;
  StreamState& x = streams_[s.value];
  if (Operation* op = x.running ? op_of(x) : nullptr) {
    ++op->statistics.packets_sent;
    op->statistics.bytes_sent += buffer.bytes().size();
  }
  sink.send(shard_of(s).aggregator(), std::move(buffer));
}

template <PacketSink Sink>
template <class T>
bool Engine<Sink>::send_small(StreamId s, const T& packet, Sink& sink) {
  Buffer buffer = allocate(s, sizeof packet, sink);
  if (!buffer) {
    counters_.drops.count(DropReason::kNoBuffer);
    return false;
  }
  std::memcpy(buffer.writable().data(), &packet, sizeof packet);
  send(s, std::move(buffer), sink);
  return true;
}

}  // namespace sluice::worker
