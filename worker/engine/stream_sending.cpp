// What one stream sends: this rank's contribution to the round awaited, and the small packets that
// tell or ask for positions.
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "common/protocol/build.hpp"
#include "common/protocol/protection.hpp"
#include "worker/engine/stream.hpp"

namespace sluice::worker {

namespace {

/// When to ask the pool again that was empty.
constexpr Duration kPoolRetry = std::chrono::microseconds(200);
/// When to look again whether a device has copied the blocks.
constexpr Duration kArrivalRetry = std::chrono::microseconds(20);

/// Writes the blocks, one after the other, and their scales.
void load_blocks(const Operation& op, Contribution& mine, std::byte* out) {
  for (std::size_t c = 0; c < mine.shape.columns; ++c) {
    wire::Column& column = mine.columns[c];
    if (column.flags != wire::kColumnPresent) continue;
    const BlockIndex b{column.index};
    column.scale = op.load(b, out);
    out += op.geometry().bytes_of(b);
  }
}

}  // namespace

// --------------------------------------------------------------------------------- contributions
/// Says what this rank has for the round awaited, but for the blocks.
void Stream::describe(Operation& op, Contribution& mine) const {
  assert(running_ && !replaying());  // what is replayed is sent as it was kept
  const Geometry& geometry = op.geometry();
  mine.round = position();
  mine.op = op_;
  mine.first = first_;
  mine.owner = owner_;
  mine.is_keyed = false;
  mine.shape = wire::shape_of(geometry);
  mine.descriptor = op.descriptor();
  mine.blocks = {};
  mine.packet = {};
  mine.bytes = 0;
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    const ColumnState& state = columns_[c];
    wire::Column& column = mine.columns[c] = {};
    column.index = state.current.value;
    column.next = state.after.value;
    if (!travels(op, state)) continue;
    column.flags = wire::kColumnPresent;
    mine.bytes += geometry.bytes_of(state.current);
  }
}

/// Whether the round awaited, to which this rank owes a contribution, is one of a keyed op.
bool Stream::awaits_keyed(Scope& scope) {
  return replaying() ? contribution(position()).is_keyed : running_op(scope).keyed() != nullptr;
}

void Stream::send_data(bool ask, Scope& scope) {
  assert(!syncing_ && owes_data());
  if (awaits_keyed(scope))
    send_keyed(ask, scope);
  else
    send_blocks(ask, scope);
}

/// Contributes to the round awaited: with the tensor's blocks, or with what was kept of them.
void Stream::send_blocks(bool ask, Scope& scope) {
  Contribution& mine = contribution(position());
  const bool kept = mine.round == position();
  if (!kept && !has_arrived(running_op(scope)))
    return look_at(after(scope.now, kArrivalRetry), scope);
  if (!kept) describe(running_op(scope), mine);
  const bool opening = mine.first || resumed_;
  const std::uint8_t width = mine.shape.columns;
  const std::size_t size = wire::block_packet_bytes<wire::Data>(width, opening, mine.bytes);
  Buffer buffer = allocate(size, scope);
  if (!buffer) {
    if (!kept) mine.round = kNoRound;  // nothing of it was sent
    return retry_soon(scope);
  }

  auto packet = wire::BlockPacket<wire::Data>::begin(buffer.writable().first(size),
                                                     scope.config.job, width, opening);
  fill(packet.fixed, mine, opening, ask, scope);
  if (opening) *packet.descriptor = mine.descriptor;
  if (kept) {
    std::copy(mine.blocks.begin(), mine.blocks.end(), packet.payload);
  } else if (mine.bytes != 0) {
    load_blocks(running_op(scope), mine, packet.payload);
    mine.blocks = {packet.payload, mine.bytes};
  }
  std::copy_n(mine.columns.begin(), width, packet.columns.begin());

  count_data(scope);
  if (kept || mine.bytes == 0) {
    seal(buffer, scope);
    scope.sink.send(scope.membership.aggregator(), std::move(buffer));
  } else {
    mine.packet = send_and_keep(std::move(buffer), scope);
  }
  await(scope);
}

/// What a DATA says of this rank and of the op.
void Stream::fill(wire::Data& data, const Contribution& mine, bool opening, bool ask,
                  const Scope& scope) const {
  data.member.token = scope.membership.token();
  data.member.rank = scope.config.rank.value;
  data.member.stream = id_.value;
  data.round = position().value;
  data.op = mine.op;
  data.shape = mine.shape;
  data.window = scope.membership.window.own();
  data.flags =
      static_cast<std::uint8_t>((opening ? wire::kDataOpening : 0) | (ask ? wire::kDataAsk : 0));
}

/// A contribution goes out.
void Stream::count_data(Scope& scope) {
  if (!end_.has_contributed()) {
    ++scope.counters.data_sent;
  } else {
    ++scope.counters.data_resent;
    if (Operation* const op = current_op(scope)) ++op->statistics.retransmissions;
  }
  end_.contributed(scope.now);
}

/// Whether the blocks of the round can be read.
bool Stream::has_arrived(Operation& op) const {
  if (!op.is_on_device()) return true;
  return std::all_of(columns_.begin(), columns_.begin() + op.geometry().columns,
                     [&](const ColumnState& column) {
                       return !travels(op, column) || op.has_arrived(column.current);
                     });
}

/// The pool was empty.
void Stream::retry_soon(Scope& scope) {
  scope.counters.drops.count(DropReason::kNoBuffer);
  look_at(after(scope.now, kPoolRetry), scope);
}

// ---------------------------------------------------------------------------------- small packets
void Stream::send_ack(Scope& scope) {
  auto ack = member_packet<wire::Ack>(scope);
  ack.position = position().value;
  if (!send_small(ack, scope)) return;
  ++scope.counters.acks_sent;
  end_.acknowledged();
}

void Stream::send_probe(Scope& scope) {
  auto probe = member_packet<wire::Probe>(scope);
  probe.position = position().value;
  probe.have = end_.early();
  if (!send_small(probe, scope)) return;
  ++scope.counters.probes_sent;
  if (Operation* op = current_op(scope)) ++op->statistics.retransmissions;
  end_.probed(scope.now);
}

void Stream::send_sync(Scope& scope) {
  await(scope);
  auto sync = member_packet<wire::Sync>(scope);
  sync.applied = applied_.value;
  if (send_small(sync, scope)) ++scope.counters.syncs_sent;
}

template <class T>
T Stream::member_packet(Scope& scope) const {
  T packet = wire::make<T>(scope.config.job);
  packet.member.token = scope.membership.token();
  packet.member.rank = scope.config.rank.value;
  packet.member.stream = id_.value;
  return packet;
}

/// Room for a packet of a stream and for what protects it.
Buffer Stream::allocate(std::size_t body, Scope& scope) const {
  return scope.sink.allocate(body + protection_of(scope).trailer_bytes());
}

Protection Stream::protection_of(Scope& scope) {
  return scope.membership.protection().of(wire::Kind::kData);
}

/// Protects a packet that goes out, and counts it.
void Stream::seal(Buffer& buffer, Scope& scope) {
  protect(buffer.writable(), protection_of(scope));
  count_sent(buffer, scope);
}

/// Sends a DATA, and gives it back to be read from: where it is encrypted, a copy goes out. Without
/// a buffer for that it is as lost on the way.
Buffer Stream::send_and_keep(Buffer buffer, Scope& scope) {
  const Protection protection = protection_of(scope);
  const Endpoint& to = scope.membership.aggregator();
  if (!protection.encrypts()) {
    seal(buffer, scope);
    return scope.sink.send_and_keep(to, std::move(buffer));
  }
  Buffer sealed = scope.sink.allocate(buffer.bytes().size());
  if (!sealed) {
    scope.counters.drops.count(DropReason::kNoBuffer);
    return buffer;
  }
  protection.sealer->seal(buffer.writable(), sealed.writable());
  count_sent(sealed, scope);
  scope.sink.send(to, std::move(sealed));
  return buffer;
}

void Stream::count_sent(const Buffer& buffer, Scope& scope) {
  ++scope.counters.packets_sent;
  if (Operation* op = current_op(scope)) {
    ++op->statistics.packets_sent;
    op->statistics.bytes_sent += buffer.bytes().size();
  }
}

template <class T>
bool Stream::send_small(const T& packet, Scope& scope) {
  Buffer buffer = allocate(sizeof packet, scope);
  if (!buffer) {
    scope.counters.drops.count(DropReason::kNoBuffer);
    return false;
  }
  std::memcpy(buffer.writable().data(), &packet, sizeof packet);
  seal(buffer, scope);
  scope.sink.send(scope.membership.aggregator(), std::move(buffer));
  return true;
}

}  // namespace sluice::worker
