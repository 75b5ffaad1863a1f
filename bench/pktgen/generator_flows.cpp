// The generator's flows: what each does next, and when.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "bench/pktgen/generator.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/protection.hpp"

namespace sluice::pktgen {

namespace {

/// When to ask the pool again that was empty.
constexpr Duration kPoolRetry = std::chrono::microseconds(200);

constexpr unsigned kMaxBackoffs = 10;

}  // namespace

// ------------------------------------------------------------------------------------ moving on
void Generator::begin_op(Flow& x, OpNumber op) {
  x.op = op;
  x.turn = schedule_->turn(x.stream, op);
  x.first = true;
  x.owned = 0;
  for (std::uint8_t c = 0; c < schedule_->geometry().columns; ++c) {
    x.rows[c] = 0;
    if (schedule_->owns(x.turn, x.rank, c, 0)) x.owned |= std::uint64_t{1} << c;
  }
}

void Generator::next_round(Flow& x) {
  ++x.position;
  x.first = false;
  x.sends = 0;
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

/// Sends, acknowledges or rests, as the flow's new position asks for.
void Generator::go_on(Flow& x, Time now, PacketSink& sink) {
  x.backoffs = 0;
  x.held = false;
  x.due = kNever;
  if (!x.running) return;
  if (x.owes()) return enqueue(x);
  if (x.position - x.told >= session().history / 2u) send_ack(x, sink);
  x.due = after(now, timeout_of(x));
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
  for (RankState& rank : ranks_) rank.session->abort(std::nullopt, control_);
  control_.flush(sink);
}

void Generator::leave(Time now, PacketSink& sink) {
  for (RankState& rank : ranks_) rank.session->leave(true, now, control_);
  control_.flush(sink);
}

bool Generator::left() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.session->state() == worker::ShardSession::State::kLeft;
  });
}

// ------------------------------------------------------------------------------------------ time
void Generator::on_time(Time now, PacketSink& sink) {
  if (now < look_due_) return;
  look_due_ = after(now, kLookPeriod);
  for (RankState& rank : ranks_)
    if (auto error = rank.session->on_time(now, control_)) failure_ = *error;
  for (Flow& x : flows_)
    if (now >= x.due) on_timer(x, now, sink);
  if (!control_.empty()) control_.flush(sink);
}

void Generator::on_timer(Flow& x, Time now, PacketSink& sink) {
  if (x.owes() && x.sends == 0) {  // the pool was empty
    send_data(x, false, now, sink);
    return;
  }
  ++tally_.timeouts;
  x.backoffs = static_cast<std::uint8_t>(std::min(x.backoffs + 1u, kMaxBackoffs));
  if (x.owes() && !x.held) {
    send_data(x, true, now, sink);
  } else {
    send_probe(x, sink);
    x.due = after(now, timeout_of(x));
  }
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
    x.due = after(now, kPoolRetry);
    return;
  }

  auto packet =
      wire::BlockPacket<wire::Data>::begin(buffer.writable(), options_.job, columns, x.first);
  packet.fixed = ranks_[x.rank.value].data;
  packet.fixed.member.header.length = static_cast<std::uint16_t>(size);
  packet.fixed.member.stream = x.stream.value;
  packet.fixed.round = x.position.value;
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

  if (x.sends == 0) {
    ++tally_.data_sent;
    tally_.block_bytes_sent += payload;
  } else {
    ++tally_.data_resent;
  }
  x.sends = static_cast<std::uint8_t>(std::min(x.sends + 1, 2));  // one, or more
  x.sent_at = now;
  x.told = x.position;
  x.due = after(now, timeout_of(x));
  send(x.rank, std::move(buffer), sink);
}

void Generator::send_ack(Flow& x, PacketSink& sink) {
  wire::Ack ack = wire::make<wire::Ack>(options_.job);
  ack.position = x.position.value;
  if (send_small(x, ack, sink)) ++tally_.acks_sent;
}

void Generator::send_probe(Flow& x, PacketSink& sink) {
  wire::Probe probe = wire::make<wire::Probe>(options_.job);
  probe.position = x.position.value;
  probe.have = x.early;
  if (send_small(x, probe, sink)) ++tally_.probes_sent;
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
  x.told = x.position;
  send(x.rank, std::move(buffer), sink);
  return true;
}

void Generator::send(Rank r, Buffer buffer, PacketSink& sink) {
  protect(buffer.writable(), {.integrity = options_.integrity});
  sink.send(ranks_[r.value].session->aggregator(), std::move(buffer));
}

}  // namespace sluice::pktgen
