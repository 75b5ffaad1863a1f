// The worker engine's data path: what one stream does when a result, a status or its timer comes
// (rules 7-11 of docs/protocol.md).
#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/engine.hpp"

namespace sluice::worker {

namespace {

/// When to ask the pool again that was empty.
constexpr Duration kPoolRetry = std::chrono::microseconds(200);

/// Whether this rank has a block for the round. An owner may find that it has none: its block lay
/// beyond the search's horizon when it was announced.
bool travels(Operation& op, const ColumnState& column) {
  return column.owned() && op.is_nonzero(column.current);
}

/// Says what this rank has for the round awaited, but for the blocks. Returns their bytes.
std::size_t describe(const Stream& x, Operation& op, Contribution& mine) {
  const Geometry& geometry = op.geometry();
  mine.round = x.position;
  mine.op = x.op;
  mine.first = x.first;
  mine.owner = x.owner;
  mine.shape = wire::shape_of(geometry);
  mine.descriptor = op.descriptor();
  mine.blocks = {};
  mine.packet = {};
  std::size_t bytes = 0;
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    const ColumnState& state = x.columns[c];
    wire::Column& column = mine.columns[c] = {};
    column.index = state.current.value;
    column.next = state.after.value;
    if (!travels(op, state)) continue;
    column.flags = wire::kColumnPresent;
    bytes += geometry.bytes_of(state.current);
  }
  return bytes;
}

void load_blocks(const Operation& op, std::span<const wire::Column> columns, std::byte* out) {
  for (const wire::Column& column : columns) {
    if (column.flags == 0) continue;
    const BlockIndex b{column.index};
    op.load(b, out);
    out += op.geometry().bytes_of(b);
  }
}

/// Whether a result is one that a round can end with which has ended here before.
bool ends_again(const Contribution& mine, const Packet& packet) {
  if (packet.as<wire::Result>().op != mine.op || !wire::same(packet.shape(), mine.shape))
    return false;
  const auto columns = packet.columns();
  return std::equal(columns.begin(), columns.end(), mine.columns.begin(),
                    [](const wire::Column& result, const wire::Column& own) {
                      return result.index == own.index && (own.flags == 0 || result.flags != 0);
                    });
}

/// Whether this rank need not be sent the sum of a column: it wants none, or what it has
/// contributed may be all of it.
bool may_be_withheld(Stream& x, Operation& op, const ColumnState& column) {
  if (!op.wants(column.current)) return true;
  const auto& mine = x.contribution(x.position);
  return op.moves() && travels(op, column) && mine.round == x.position && !mine.blocks.empty();
}

/// Of the sums that a result lacks, those that this rank alone has.
void store_own(const Contribution& mine, const Packet& result, Operation& op) {
  if (mine.blocks.empty()) return;
  const std::byte* block = mine.blocks.data();
  for (std::uint8_t c = 0; const wire::Column& column : result.columns()) {
    const wire::Column& own = mine.columns[c++];
    if (own.flags == 0) continue;
    const BlockIndex b{own.index};
    const std::size_t size = op.geometry().bytes_of(b);
    if (column.flags == wire::kColumnWithheld && op.wants(b)) {
      op.store(b, {block, size});
      ++op.statistics.blocks_received;
    }
    block += size;
  }
}

}  // namespace

// ---------------------------------------------------------------------------------- moving on
/// Does what the stream's position asks for: begins an op, sends, acknowledges, or rests.
void Engine::advance(StreamId s, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  ShardSession& session = shard_of(s);
  if (!session.in() || state_ == State::kJoining || x.syncing) return;  // frozen
  if (!x.busy() && !begin_next_op(s)) {
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
bool Engine::begin_next_op(StreamId s) {
  Stream& x = streams_[s.value];
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
DropReason Engine::on_stream(const Packet& packet, Buffer buffer, Time now, KeepingSink& sink) {
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
    default:
      return on_poll(s, packet.as<wire::Poll>(), sink);
  }
}

DropReason Engine::on_result(StreamId s, const Packet& packet, Buffer buffer, Time now,
                             KeepingSink& sink) {
  Stream& x = streams_[s.value];
  const auto& result = packet.as<wire::Result>();
  const Round round{result.round};
  if (x.syncing) return DropReason::kUnfitting;  // no round of this epoch can have ended
  if (round < x.position) return DropReason::kStaleRound;
  if (round - x.position >= x.early.size() || result.lag >= x.early.size())
    return DropReason::kFutureRound;
  x.forget_contributions(std::min(Round{round.value - result.lag}, x.position));
  if (round > x.position) {
    auto& place = x.early[round.value % x.early.size()];
    if (place.buffer) return DropReason::kDuplicate;
    place = {packet, std::move(buffer)};
    ++counters_.results_early;
    if (x.gap_probed != x.position) {
      x.gap_probed = x.position;
      send_probe(s, now, sink);
    }
    return DropReason::kNone;
  }

  shard_of(s).heard(now);
  sample_round_trip(s, packet, now);
  if (!take(s, packet)) return DropReason::kUnfitting;
  for (;;) {
    const auto next = std::exchange(x.early[x.position.value % x.early.size()], {});
    if (!next.buffer) break;
    if (!take(s, next.packet)) return DropReason::kUnfitting;
  }
  x.backoffs = 0;
  x.held = false;
  advance(s, now, sink);
  return DropReason::kNone;
}

/// The result of the round awaited moves the stream to the next. False, and the job has failed, if
/// it cannot be that.
bool Engine::take(StreamId s, const Packet& packet) {
  Stream& x = streams_[s.value];
  if ((!x.busy() && !begin_next_op(s)) || !fits(s, packet)) {
    fail_protocol("the result of round " + std::to_string(x.position.value) + " on stream " +
                  std::to_string(s.value) + " does not fit the op that runs there");
    return false;
  }
  if (x.repeating())
    ++counters_.rounds_repeated;  // for others: here it was applied when it ended first
  else
    apply(s, packet);
  ++x.position;
  x.applied = std::max(x.applied, x.position);
  x.resumed = false;
  x.awaited = {};
  x.data_sends = x.probe_sends = 0;
  return true;
}

/// Whether a result is one that the running round can end with, as far as this rank can tell.
bool Engine::fits(StreamId s, const Packet& packet) {
  Stream& x = streams_[s.value];
  const auto& result = packet.as<wire::Result>();
  if (x.repeating()) return ends_again(x.contribution(x.position), packet);
  if (result.op != x.op) return false;
  Operation& op = *op_of(x);
  const Geometry& geometry = op.geometry();
  if (!wire::same(packet.shape(), wire::shape_of(geometry))) return false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const ColumnState& mine = x.columns[c++];
    if (BlockIndex{column.index} != mine.current) return false;
    if (column.flags == 0 && travels(op, mine)) return false;  // our block would be lost
    if (column.flags == wire::kColumnWithheld && !may_be_withheld(x, op, mine)) return false;
    if (BlockIndex{column.next} > mine.after) return false;  // and here the next one
    if (column.next != kNoBlock.value &&
        (column.next - mine.current.value) % geometry.stride() != 0)
      return false;
  }
  return true;
}

/// Takes the sums of the round awaited, and looks ahead.
void Engine::apply(StreamId s, const Packet& packet) {
  Stream& x = streams_[s.value];
  Operation& op = *op_of(x);
  auto& mine = x.contribution(x.position);
  if (mine.round != x.position) describe(x, op, mine);
  ++counters_.results_applied;
  ++op.statistics.packets_received;
  op.statistics.bytes_received += packet.bytes().size();
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> sum) {
    op.store(x.columns[c].current, sum);
    ++op.statistics.blocks_received;
  });
  if (op.moves()) store_own(mine, packet, op);
  bool done = true;
  x.owner = false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    ColumnState& state = x.columns[c++];
    const BlockIndex want{column.next};
    const bool has_sum = column.flags != 0;
    if (travels(op, state)) ++op.statistics.blocks_sent;  // here: a round may be begun twice
    if (state.current != kNoBlock)
      op.store_zeros(has_sum ? op.following(state.current) : state.current, want);
    state.current = want;
    state.at = state.after;  // the first own block after the finished one
    if (state.owned()) state.after = op.next_nonzero(op.following(want));
    x.owner |= state.owned();
    done &= want == kNoBlock;
  }
  x.first = false;
  if (done) finish_on_stream(x);
}

void Engine::sample_round_trip(StreamId s, const Packet& packet, Time now) {
  const Stream& x = streams_[s.value];
  const bool completed_it = packet.as<wire::Result>().completing_rank == config_.rank.value;
  if (completed_it && x.data_sends == 1) shard_of(s).rto.sample(now - x.data_sent_at);
}

DropReason Engine::on_status(StreamId s, const wire::Status& status, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  if (status.live == 0) return x.syncing ? DropReason::kNone : DropReason::kStaleRound;
  if (x.syncing) {
    go_live(s, Round{status.round}, now, sink);
    return DropReason::kNone;
  }
  if (!x.busy() || status.round != x.position.value) return DropReason::kStaleRound;
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

/// The aggregator wants to know our position on some of its streams, from `first` on.
DropReason Engine::on_poll(StreamId first, const wire::Poll& poll, KeepingSink& sink) {
  DropReason drop = DropReason::kStaleRound;
  for (std::size_t i = 0; i < wire::kPolledStreams; ++i) {
    const std::size_t s = first.value + i * sessions_.size();
    if (s >= streams_.size()) break;
    if ((poll.streams[i / 8] >> i % 8 & 1) == 0 || streams_[s].syncing) continue;
    send_ack(StreamId{static_cast<std::uint16_t>(s)}, sink);
    drop = DropReason::kNone;
  }
  return drop;
}

/// The aggregator has taken the stream over and begins with this round, the first whose result some
/// rank lacks.
void Engine::go_live(StreamId s, Round round, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  const bool known = round == x.applied || x.contribution(round).round == round;
  if (round < x.kept_from || round > x.applied || !known) {
    fail_protocol("an aggregator resumes stream " + std::to_string(s.value) + " with round " +
                  std::to_string(round.value) + ", but this rank awaits round " +
                  std::to_string(x.applied.value) + " and knows of none before " +
                  std::to_string(x.kept_from.value));
    return;
  }
  x.syncing = false;
  x.resumed = true;
  x.position = x.told = round;
  x.backoffs = 0;
  advance(s, now, sink);
}

RankSet Engine::awaited(OpNumber op) const {
  RankSet ranks;
  for (const Stream& x : streams_)
    if (x.running && x.op == op) ranks |= x.awaited;
  return ranks;
}

// ---------------------------------------------------------------------------------------- timer
void Engine::on_timer(StreamId s, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  x.due = kNever;
  if (!shard_of(s).in()) return;
  if (x.syncing) {
    ++counters_.timeouts;
    ++x.backoffs;
    shard_of(s).ask(now);
    send_sync(s, now, sink);
    return;
  }
  if (!x.busy()) return;
  if (x.owes_data() && x.data_sends == 0) {  // the pool was empty
    send_data(s, false, now, sink);
    return;
  }
  ++counters_.timeouts;
  ++x.backoffs;
  shard_of(s).ask(now);
  // Mostly another rank is late, not our packet lost: ask first, it costs little.
  if (x.owes_data() && !x.held && x.backoffs > 1)
    send_data(s, true, now, sink);
  else
    send_probe(s, now, sink);
  arm(x, after(now, shard_of(s).rto.backed_off(x.backoffs)));
}

void Engine::arm(Stream& x, Time due) {
  x.due = due;
  deadline_ = std::min(deadline_, due);
}

// -------------------------------------------------------------------------------------- sending
/// Contributes to the round awaited: with the tensor's blocks, or with what was kept of them.
void Engine::send_data(StreamId s, bool ask, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  Contribution& mine = x.contribution(x.position);
  const bool kept = mine.round == x.position;
  std::size_t payload = mine.blocks.size();
  if (!kept) payload = describe(x, *op_of(x), mine);
  const bool opening = mine.first || x.resumed;
  const std::uint8_t width = mine.shape.columns;
  const std::size_t size = wire::block_packet_bytes<wire::Data>(width, opening, payload);
  Buffer buffer = allocate(s, size, sink);
  if (!buffer) {
    if (!kept) mine.round = kNoRound;
    counters_.drops.count(DropReason::kNoBuffer);
    arm(x, after(now, kPoolRetry));
    return;
  }

  auto packet = wire::BlockPacket<wire::Data>::begin(buffer.writable().first(size), config_.job,
                                                     width, opening);
  packet.fixed.member.token = shard_of(s).token();
  packet.fixed.member.rank = config_.rank.value;
  packet.fixed.member.stream = s.value;
  packet.fixed.round = x.position.value;
  packet.fixed.op = mine.op;
  packet.fixed.shape = mine.shape;
  packet.fixed.flags =
      static_cast<std::uint8_t>((opening ? wire::kDataOpening : 0) | (ask ? wire::kDataAsk : 0));
  if (opening) *packet.descriptor = mine.descriptor;
  std::copy_n(mine.columns.begin(), width, packet.columns.begin());
  if (kept)
    std::copy(mine.blocks.begin(), mine.blocks.end(), packet.payload);
  else
    load_blocks(*op_of(x), packet.columns, packet.payload);

  if (x.data_sends++ == 0) {
    ++counters_.data_sent;
  } else {
    ++counters_.data_resent;
    if (Operation* op = current_op(x)) ++op->statistics.retransmissions;
  }
  x.data_sent_at = now;
  x.told = x.position;
  seal(s, buffer);
  if (kept || payload == 0) {
    sink.send(shard_of(s).aggregator(), std::move(buffer));
  } else {
    mine.blocks = {packet.payload, payload};
    mine.packet = sink.send_and_keep(shard_of(s).aggregator(), std::move(buffer));
  }
  arm(x, after(now, shard_of(s).rto.backed_off(x.backoffs)));
}

void Engine::send_ack(StreamId s, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  auto ack = member_packet<wire::Ack>(s);
  ack.position = x.position.value;
  if (!send_small(s, ack, sink)) return;
  ++counters_.acks_sent;
  x.told = x.position;
}

void Engine::send_probe(StreamId s, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  auto probe = member_packet<wire::Probe>(s);
  probe.position = x.position.value;
  std::uint64_t have = 0;
  for (const auto& early : x.early)
    if (early.buffer)
      have |= std::uint64_t{1} << (early.packet.as<wire::Result>().round - x.position.value - 1);
  probe.have = have;
  if (!send_small(s, probe, sink)) return;
  ++counters_.probes_sent;
  if (Operation* op = current_op(x)) ++op->statistics.retransmissions;
  ++x.probe_sends;
  x.probe_sent_at = now;
  x.told = x.position;
}

void Engine::send_sync(StreamId s, Time now, KeepingSink& sink) {
  Stream& x = streams_[s.value];
  arm(x, after(now, shard_of(s).rto.backed_off(x.backoffs)));
  auto sync = member_packet<wire::Sync>(s);
  sync.applied = x.applied.value;
  if (send_small(s, sync, sink)) ++counters_.syncs_sent;
}

template <class T>
T Engine::member_packet(StreamId s) {
  T packet = wire::make<T>(config_.job);
  packet.member.token = shard_of(s).token();
  packet.member.rank = config_.rank.value;
  packet.member.stream = s.value;
  return packet;
}

/// Room for a packet of a stream and for what protects it.
Buffer Engine::allocate(StreamId s, std::size_t body, KeepingSink& sink) {
  return sink.allocate(body + protection_of(s).trailer_bytes());
}

void Engine::send(StreamId s, Buffer buffer, KeepingSink& sink) {
  seal(s, buffer);
  sink.send(shard_of(s).aggregator(), std::move(buffer));
}

/// Protects a packet that goes out, and counts it.
void Engine::seal(StreamId s, Buffer& buffer) {
  protect(buffer.writable(), protection_of(s));
  ++counters_.packets_sent;
  Stream& x = streams_[s.value];
  if (Operation* op = current_op(x)) {
    ++op->statistics.packets_sent;
    op->statistics.bytes_sent += buffer.bytes().size();
  }
}

template <class T>
bool Engine::send_small(StreamId s, const T& packet, KeepingSink& sink) {
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
