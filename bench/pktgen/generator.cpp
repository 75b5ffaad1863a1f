// Joining, received packets, and the flows: the next action of each, and its time.
#include "bench/pktgen/generator.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/random_id.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/protection.hpp"

namespace sluice::pktgen {
namespace {

/// How long to wait after the pool was empty.
constexpr Duration kPoolRetry = std::chrono::microseconds(200);

}  // namespace

// -------------------------------------------------------------------------------------- joining
Generator::Generator(const GeneratorOptions& options, const Endpoint& aggregator)
    : options_(options), ranks_(options.workers) {
  for (std::uint16_t r = 0; r < options.workers; ++r) {
    worker::EngineConfig& config = ranks_[r].config;
    config.job = options.job;
    config.rank = Rank{r};
    config.ranks = options.workers;
    config.integrity = options.integrity;
    config.aggregator_timeout = options.aggregator_timeout;
    config.rto.min = options.rto_min;
    config.unique = random_id;
    Endpoint place = aggregator;
    place.local_udp_port = static_cast<std::uint16_t>(options.first_udp_port + r);
    ranks_[r].membership =
        std::make_unique<worker::ShardMembership>(config, options.lane, 1, place);
  }
}

void Generator::start(const std::optional<Session>& decided, Time now, PacketSink& sink) {
  Session wanted = decided.value_or(Session());
  if (!decided) {
    wanted.streams = options_.streams;
    wanted.block_elements = options_.block_elements;
    wanted.payload_bytes = options_.payload_bytes;
  }
  for (RankState& rank : ranks_) rank.membership->begin_join(wanted, true, now, control_);
  control_.flush(sink);
}

/// One more rank has joined. With the last one, the session is known, and the first op begins.
void Generator::welcomed() {
  const auto is_in = [](const RankState& rank) { return rank.membership->in(); };
  if (active() || !std::all_of(ranks_.begin(), ranks_.end(), is_in)) return;
  schedule_.emplace(session(), options_.pattern);
  const Geometry& geometry = schedule_->geometry();
  values_.emplace(geometry.type.element(), geometry.block_elements);
  columns_bytes_ = geometry.columns * sizeof(wire::Column);
  descriptor_.collective = static_cast<std::uint8_t>(wire::Collective::kAllReduce);
  descriptor_.op_type = geometry.type.code();
  descriptor_.reduction = static_cast<std::uint8_t>(Reduction::kSum);
  for (RankState& rank : ranks_) {
    rank.data = wire::make<wire::Data>(options_.job);
    rank.data.member.token = rank.membership->token();
    rank.data.member.rank = rank.config.rank.value;
    rank.data.shape = wire::shape_of(geometry);
  }
  running_ = ranks_.size() * session().streams_of(options_.lane);
  ready_.resize(running_);
  flows_.reserve(running_);
  for (unsigned s = options_.lane; s < geometry.streams; s += session().shards)
    for (const RankState& rank : ranks_) {
      Flow& x = flows_.emplace_back(Flow{.stream = StreamId{static_cast<std::uint16_t>(s)},
                                         .rank = rank.config.rank,
                                         .end = rounds::WaitingEnd(session().history)});
      begin_op(x, 0);
      enqueue(x);
    }
}

// --------------------------------------------------------------------------------- what arrives
std::optional<Rank> Generator::rank_at(std::uint16_t udp_port) const {
  if (is_source_port_of(options_.lane, udp_port))
    return at_source_ports_[udp_port - first_source_port(options_.lane)];
  const Rank r{static_cast<std::uint16_t>(udp_port - options_.first_udp_port)};
  return r.value < ranks_.size() ? std::optional(r) : std::nullopt;
}

/// The UDP port alone tells which rank a packet is for. If the aggregator chooses a port that
/// another rank has, the rank keeps its own.
wire::Challenge Generator::with_own_port(Rank r, wire::Challenge challenge) {
  wire::U16& told = challenge.source_ports[options_.lane];
  if (told == 0) return challenge;
  auto& holder = at_source_ports_[told - first_source_port(options_.lane)];
  if (!holder) holder = r;
  if (holder != r) told = 0;
  return challenge;
}

void Generator::receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink) {
  const auto at = rank_at(from.local_udp_port);
  if (!at) return tally_.drops.count(DropReason::kUnknownToken);
  const Rank r = *at;
  const std::span<const std::byte> bytes = buffer.bytes();
  DropReason drop = on_result(r, bytes, now, sink);
  if (drop == DropReason::kBadKind) {
    Packet packet;
    drop = Packet::parse(bytes, packet);
    if (drop == DropReason::kNone && wire::is_upstream(packet.kind()))
      drop = DropReason::kWrongDirection;
    if (drop == DropReason::kNone) drop = on_other(r, from, packet, now, sink);
  }
  if (drop != DropReason::kNone) tally_.drops.count(drop);
  if (!control_.empty()) control_.flush(sink);
}

/// The path of nearly every packet. It only looks at the fixed part; columns and blocks are only
/// read if check() is called. kBadKind: the packet is not a RESULT.
DropReason Generator::on_result(Rank r, std::span<const std::byte> bytes, Time now,
                                PacketSink& sink) {
  wire::Result result;
  if (const DropReason drop = read_result(r, bytes, result); drop != DropReason::kNone) return drop;
  using Came = rounds::WaitingEnd::Came;
  Flow& x = flow(StreamId{result.delivery.stream}, r);
  const Round round{result.round};
  const bool without_us = round == x.end.position() && x.owes() && !x.end.has_contributed();
  if (round >= x.end.position() && (!x.running || without_us)) return DropReason::kFutureRound;
  const Came came = x.end.on_result(round, waiting(x, now));
  if (came == Came::kStale) return DropReason::kStaleRound;
  if (came == Came::kFuture) return DropReason::kFutureRound;
  if (came == Came::kTwice) return DropReason::kDuplicate;
  ++tally_.results;
  tally_.block_bytes_received += bytes.size() - sizeof result - columns_bytes_;
  if (came != Came::kAwaited) {
    ++tally_.results_early;
    if (came == Came::kNewGap) send_probe(x, now, sink);
  } else {
    sample_latency(x, result, now);
    if (options_.check_every != 0 && --until_check_ == 0) check(x, bytes);
    apply(x, now, sink);
  }
  return DropReason::kNone;
}

/// Copies the fixed part of a RESULT of our session.
DropReason Generator::read_result(Rank r, std::span<const std::byte> bytes,
                                  wire::Result& result) const {
  if (bytes.size() < sizeof result) return DropReason::kBadKind;
  std::memcpy(&result, bytes.data(), sizeof result);
  const wire::Header& header = result.delivery.header;
  if (header.kind != static_cast<std::uint8_t>(wire::Kind::kResult) ||
      header.magic != wire::kMagic || header.version != wire::kVersion)
    return DropReason::kBadKind;
  if (!active() || header.job != options_.job) return DropReason::kNotJoined;
  if (header.length != bytes.size() || bytes.size() < sizeof result + columns_bytes_)
    return DropReason::kBadLength;
  if (!ranks_[r.value].membership->is_ours(result.delivery)) return DropReason::kWrongEpoch;
  const bool known = session().serves(StreamId{result.delivery.stream});
  return known ? DropReason::kNone : DropReason::kBadStream;
}

void Generator::sample_latency(const Flow& x, const wire::Result& result, Time now) {
  if (!x.end.measures_round_trip() || result.completing_rank != x.rank.value) return;
  const Duration took = now - x.end.contributed_at();
  latencies_.record(static_cast<std::uint64_t>(took.count()));
  ranks_[x.rank.value].membership->path.rto.sample(took);
}

/// The awaited result has come. It ends its round, and further rounds whose results came early.
void Generator::apply(Flow& x, Time now, PacketSink& sink) {
  bool next_is_here;
  do {
    next_is_here = x.end.next();
    next_round(x);
  } while (next_is_here);
  go_on(x, now, sink);
}

DropReason Generator::on_other(Rank r, const Endpoint& from, const Packet& packet, Time now,
                               PacketSink& sink) {
  using wire::Kind;
  worker::ShardMembership& membership = *ranks_[r.value].membership;
  const auto taken = [](bool by_membership) {
    return by_membership ? DropReason::kNone : DropReason::kNotJoined;
  };
  switch (packet.kind()) {
    case Kind::kChallenge:
      return taken(membership.on_challenge(from, with_own_port(r, packet.as<wire::Challenge>()),
                                           now, control_));
    case Kind::kPending:
      return taken(membership.on_pending(packet.as<wire::Pending>(), now));
    case Kind::kWelcome:
      if (!membership.on_welcome(from, packet.as<wire::Welcome>(), now))
        return DropReason::kNotJoined;
      welcomed();
      return DropReason::kNone;
    case Kind::kVersions:
      return taken(membership.on_versions(packet.as<wire::Versions>()));
    case Kind::kKeepAliveAck:
      return taken(membership.on_keep_alive_ack(packet.as<wire::KeepAliveAck>(), now));
    case Kind::kLeft:
      if (!membership.is_left(packet.as<wire::Left>())) return DropReason::kNotJoined;
      membership.end();
      return DropReason::kNone;
    case Kind::kAbort:
      if (!membership.is_aborted(packet.as<wire::Abort>())) return DropReason::kNotJoined;
      ended(membership, to_error(to_info(packet.as<wire::Abort>()), options_.job));
      return DropReason::kNone;
    case Kind::kRefused:
      if (!membership.is_refused(from, packet.as<wire::Refused>())) return DropReason::kNotJoined;
      ended(membership,
            Error(ErrorCode::kAggregatorLost, "the aggregator was restarted meanwhile"));
      return DropReason::kNone;
    default:
      return on_delivery(r, packet, now, sink);
  }
}

/// The job is over; for ranks that are leaving, this is as good as LEFT.
void Generator::ended(worker::ShardMembership& membership, const Error& why) {
  if (membership.leaving())
    membership.end();
  else
    failure_ = why;
}

/// Handles STATUS and POLL.
DropReason Generator::on_delivery(Rank r, const Packet& packet, Time now, PacketSink& sink) {
  const StreamId s{packet.delivery().stream};
  if (!active()) return DropReason::kNotJoined;
  if (!ranks_[r.value].membership->is_ours(packet.delivery())) return DropReason::kWrongEpoch;
  if (!session().serves(s)) return DropReason::kBadStream;
  Flow& x = flow(s, r);
  if (packet.kind() == wire::Kind::kPoll) {
    const auto& polled = packet.as<wire::Poll>().streams;
    const std::size_t streams = schedule_->geometry().streams;
    for (std::size_t i = 0; i < wire::kPolledStreams; ++i) {
      const std::size_t stream = s.value + i * session().shards;
      if (stream < streams && (polled[i / 8] >> i % 8 & 1) != 0)
        send_ack(flow(StreamId{static_cast<std::uint16_t>(stream)}, r), sink);
    }
    return DropReason::kNone;
  }
  if (packet.kind() != wire::Kind::kStatus) return DropReason::kUnfitting;

  const auto& status = packet.as<wire::Status>();
  if (!x.running || Round{status.round} != x.end.position()) return DropReason::kStaleRound;
  if (x.end.has_probed_once()) ranks_[r.value].membership->path.rto.sample(now - x.end.probed_at());
  const bool awaits_us = RankSet::from_bytes(status.waiting).contains(r);
  say(x, x.end.on_status(awaits_us, x.owes(), x.first, waiting(x, now)), false, now, sink);
  return DropReason::kNone;
}

/// Compares a result of the awaited round with the correct one.
void Generator::check(const Flow& x, std::span<const std::byte> bytes) {
  until_check_ = options_.check_every;
  ++tally_.results_checked;
  Packet packet;
  const bool right = Packet::parse(bytes, packet) == DropReason::kNone && is_right(x, packet);
  if (!right) ++tally_.results_wrong;
}

bool Generator::is_right(const Flow& x, const Packet& packet) const {
  const std::uint8_t columns = schedule_->geometry().columns;
  const wire::Shape& shape = ranks_.front().data.shape;
  if (packet.as<wire::Result>().op != x.op || !wire::same(packet.shape(), shape)) return false;
  std::uint64_t present = 0;
  std::uint64_t expected = 0;
  bool right = true;
  for (std::uint8_t c = 0; c < columns; ++c) {
    const wire::Column& column = packet.columns()[c];
    const Row row = x.rows[c];
    const bool done = row == kNoRow;
    const Row next = done ? kNoRow : schedule_->next_wanted(x.turn, c, row);
    right &= column.index == schedule_->block(x.turn, c, row).value;
    right &= column.next == schedule_->block(x.turn, c, next).value;
    if (!done && !schedule_->owners(x.turn, c, row).empty()) expected |= std::uint64_t{1} << c;
  }
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> sums) {
    present |= std::uint64_t{1} << c;
    right = right && x.rows[c] != kNoRow &&
            values_->is_sum(sums, schedule_->owners(x.turn, c, x.rows[c]),
                            schedule_->block(x.turn, c, x.rows[c]));
  });
  return right && present == expected;
}

// ------------------------------------------------------------------------------------ moving on
void Generator::begin_op(Flow& x, OpNumber op) {
  x.op = op;
  x.end.begin_op();
  x.turn = schedule_->turn(x.stream, op);
  x.first = true;
  x.owned = 0;
  for (std::uint8_t c = 0; c < schedule_->geometry().columns; ++c) {
    x.rows[c] = 0;
    if (schedule_->owns(x.turn, x.rank, c, 0)) x.owned |= std::uint64_t{1} << c;
  }
}

void Generator::next_round(Flow& x) {
  x.first = false;
  x.owned = 0;
  bool done = true;
  for (std::uint8_t c = 0; c < schedule_->geometry().columns; ++c) {
    Row& row = x.rows[c];
    if (row == kNoRow) continue;
    row = schedule_->next_wanted(x.turn, c, row);
    if (row == kNoRow) continue;
    done = false;
    if (schedule_->owns(x.turn, x.rank, c, row)) x.owned |= std::uint64_t{1} << c;
  }
  if (!done) return;
  ++tally_.ops_done;
  if (x.op < last_op_) {
    begin_op(x, x.op + 1);
  } else {
    x.running = false;
    --running_;
  }
}

/// Sends, acknowledges or rests, as the flow's new position requires.
void Generator::go_on(Flow& x, Time now, PacketSink& sink) {
  x.end.rest();
  if (!x.running) return;
  if (x.owes()) return enqueue(x);
  if (x.end.owes_acknowledgement()) send_ack(x, sink);
  x.end.begin(now);
  x.end.await(false, waiting(x, now));
}

void Generator::enqueue(Flow& x) {
  std::size_t end = ready_begin_ + ready_count_++;
  if (end >= ready_.size()) end -= ready_.size();
  ready_[end] = &x;
}

std::size_t Generator::send_ready(std::size_t most, Time now, PacketSink& sink) {
  const std::size_t count = std::min(most, ready_count_);
  for (std::size_t n = 0; n < count; ++n) {
    send_data(*ready_[ready_begin_], false, now, sink);
    if (++ready_begin_ == ready_.size()) ready_begin_ = 0;
  }
  ready_count_ -= count;
  return count;
}

void Generator::finish() {
  last_op_ = 0;
  for (const Flow& x : flows_) last_op_ = std::max(last_op_, x.op);
}

void Generator::give_up(PacketSink& sink) {
  tally_.results_missed += running_;
  ready_count_ = 0;
  for (Flow& x : flows_) x.end.rest();
  for (RankState& rank : ranks_) rank.membership->abort(std::nullopt, control_);
  control_.flush(sink);
}

void Generator::leave(Time now, PacketSink& sink) {
  for (RankState& rank : ranks_) rank.membership->leave(true, {}, now, control_);
  control_.flush(sink);
}

bool Generator::left() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.membership->state() == worker::ShardMembership::State::kLeft;
  });
}

// ------------------------------------------------------------------------------------------ time
void Generator::on_time(Time now, PacketSink& sink) {
  if (now < look_due_) return;
  look_due_ = after(now, kLookPeriod);
  for (RankState& rank : ranks_)
    if (auto error = rank.membership->on_time(now, control_)) failure_ = *error;
  for (Flow& x : flows_)
    if (now >= x.end.due()) on_timer(x, now, sink);
  if (!control_.empty()) control_.flush(sink);
}

void Generator::on_timer(Flow& x, Time now, PacketSink& sink) {
  if (x.owes() && !x.end.has_contributed()) {  // the pool was empty
    send_data(x, false, now, sink);
    return;
  }
  const Say what = x.end.on_timer(x.owes(), waiting(x, now));
  if (what == Say::kNothing) return;
  ++tally_.timeouts;
  say(x, what, true, now, sink);
  x.end.await(x.owes(), waiting(x, now));
}

rounds::WaitingScope Generator::waiting(const Flow& x, Time now) const {
  worker::ShardMembership& membership = *ranks_[x.rank.value].membership;
  return {.rto = membership.path.rto,
          .recent = membership.path.recent,
          .rank = x.rank,
          .ranks = options_.workers,
          .by_group = membership.agreed().group != 0,
          .now = now};
}

/// `ask`: DATA asks for the state of the round. Messages that wait in the queue are sent then.
void Generator::say(Flow& x, Say what, bool ask, Time now, PacketSink& sink) {
  if (what == Say::kContribution && x.end.has_contributed()) send_data(x, ask, now, sink);
  if (what == Say::kAcknowledgement) send_ack(x, sink);
  if (what == Say::kProbe) send_probe(x, now, sink);
}

// --------------------------------------------------------------------------------------- sending
void Generator::send_data(Flow& x, bool ask, Time now, PacketSink& sink) {
  const std::uint8_t columns = schedule_->geometry().columns;
  const std::size_t payload =
      static_cast<std::size_t>(std::popcount(x.owned)) * values_->block_bytes();
  const std::size_t size = wire::block_packet_bytes<wire::Data>(columns, x.first, payload);
  Buffer buffer = sink.allocate(size);
  if (!buffer) {
    ++tally_.no_buffer;
    x.end.look_at(after(now, kPoolRetry));
    return;
  }

  auto packet =
      wire::BlockPacket<wire::Data>::begin(buffer.writable(), options_.job, columns, x.first);
  packet.fixed = ranks_[x.rank.value].data;
  packet.fixed.member.header.length = static_cast<std::uint16_t>(size);
  packet.fixed.member.stream = x.stream.value;
  packet.fixed.round = x.end.position().value;
  packet.fixed.op = x.op;
  packet.fixed.flags =
      static_cast<std::uint8_t>((x.first ? wire::kDataOpening : 0) | (ask ? wire::kDataAsk : 0));
  if (x.first) *packet.descriptor = descriptor_;
  for (std::uint8_t c = 0; c < columns; ++c) {
    wire::Column& column = packet.columns[c];
    const Row row = x.rows[c];
    const Row next = row == kNoRow ? kNoRow : schedule_->next_own(x.turn, x.rank, c, row);
    const BlockIndex block = schedule_->block(x.turn, c, row);
    column.index = block.value;
    column.next = schedule_->block(x.turn, c, next).value;
    if ((x.owned >> c & 1) == 0) continue;
    column.flags = wire::kColumnPresent;
    values_->write(packet.payload, x.rank, block);
    packet.payload += values_->block_bytes();
  }

  if (!x.end.has_contributed()) {
    x.end.begin(now);
    ++tally_.data_sent;
    tally_.block_bytes_sent += payload;
  } else {
    ++tally_.data_resent;
  }
  x.end.contributed(now);
  x.end.await(true, waiting(x, now));
  send(x.rank, std::move(buffer), sink);
}

void Generator::send_ack(Flow& x, PacketSink& sink) {
  wire::Ack ack = wire::make<wire::Ack>(options_.job);
  ack.position = x.end.position().value;
  if (!send_small(x, ack, sink)) return;
  ++tally_.acks_sent;
  x.end.acknowledged();
}

void Generator::send_probe(Flow& x, Time now, PacketSink& sink) {
  wire::Probe probe = wire::make<wire::Probe>(options_.job);
  probe.position = x.end.position().value;
  probe.have = x.end.early();
  if (!send_small(x, probe, sink)) return;
  ++tally_.probes_sent;
  x.end.probed(now);
}

template <class T>
bool Generator::send_small(Flow& x, T packet, PacketSink& sink) {
  Buffer buffer = sink.allocate(sizeof packet);
  if (!buffer) {
    ++tally_.no_buffer;
    return false;
  }
  packet.member = ranks_[x.rank.value].data.member;
  packet.member.header = wire::header_of(wire::KindOf<T>::kValue, options_.job, sizeof packet);
  packet.member.stream = x.stream.value;
  std::memcpy(buffer.writable().data(), &packet, sizeof packet);
  send(x.rank, std::move(buffer), sink);
  return true;
}

void Generator::send(Rank r, Buffer buffer, PacketSink& sink) {
  protect(buffer.writable(), {.integrity = options_.integrity});
  sink.send(ranks_[r.value].membership->aggregator(), std::move(buffer));
}

}  // namespace sluice::pktgen
