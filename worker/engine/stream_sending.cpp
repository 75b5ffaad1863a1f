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

/// How many bytes a DATA of this contribution has, without what protects it.
std::size_t packet_bytes(const Contribution& mine, bool opening) {
  if (!mine.is_keyed)
    return wire::block_packet_bytes<wire::Data>(mine.shape.columns, opening, mine.bytes);
  return sizeof(wire::KeyValueData) + (opening ? sizeof(wire::Descriptor) : 0) + mine.bytes;
}

}  // namespace

// --------------------------------------------------------------------------------- contributions
/// Says what this rank has for the round awaited. Blocks that are not written yet are its size
/// alone.
void Stream::describe(Operation& op, Contribution& mine) const {
  assert(running_ && !replaying());  // what is replayed is sent as it was kept
  mine.round = position();
  mine.op = op_;
  mine.first = opens_op();
  mine.owner = source().owns();
  mine.descriptor = op.descriptor();
  source().describe(op, mine);
}

/// Contributes to the round awaited: with blocks that are written now, or with what was kept of
/// them.
void Stream::send_data(bool ask, Scope& scope) {
  assert(!is_syncing() && owes_data());
  Contribution& mine = contribution(position());
  const bool kept = mine.round == position();
  if (!kept) {
    Operation& op = running_op(scope);
    if (!source().has_arrived(op)) return look_at(after(scope.now, kArrivalRetry), scope);
    describe(op, mine);
  }
  const bool opening = mine.first || resumes();
  const std::size_t size = packet_bytes(mine, opening);
  Buffer buffer = allocate(size, scope);
  if (!buffer) {
    if (!kept) mine.round = kNoRound;  // nothing of it was sent
    return retry_soon(scope);
  }

  const std::span out = buffer.writable().first(size);
  std::byte* const blocks = out.data() + size - mine.bytes;
  const bool is_new = mine.blocks.empty() && mine.bytes != 0;
  if (is_new) {
    source().load(running_op(scope), mine, blocks);
    mine.blocks = {blocks, mine.bytes};
  } else {
    std::copy(mine.blocks.begin(), mine.blocks.end(), blocks);
  }
  if (mine.is_keyed)
    write_head_of_pairs(out, mine, opening, ask, scope);
  else
    write_head_of_blocks(out, mine, opening, ask, scope);

  count_data(scope);
  if (is_new) {
    mine.packet = send_and_keep(std::move(buffer), scope);
  } else {
    seal(buffer, scope);
    scope.sink.send(scope.membership.aggregator(), std::move(buffer));
  }
  if (!kept) source().keep(mine);
  await(scope);
}

void Stream::write_head_of_blocks(std::span<std::byte> out, const Contribution& mine, bool opening,
                                  bool ask, const Scope& scope) const {
  const std::uint8_t width = mine.shape.columns;
  auto packet = wire::BlockPacket<wire::Data>::begin(out, scope.config.job, width, opening);
  fill(packet.fixed, mine, opening, ask, scope);
  if (opening) *packet.descriptor = mine.descriptor;
  std::copy_n(mine.columns.begin(), width, packet.columns.begin());
}

void Stream::write_head_of_pairs(std::span<std::byte> out, const Contribution& mine, bool opening,
                                 bool ask, const Scope& scope) const {
  auto* const packet = ::new (out.data()) wire::KeyValueData;
  packet->data.member.header =
      wire::header_of(wire::Kind::kKeyValueData, scope.config.job, out.size());
  fill(packet->data, mine, opening, ask, scope);
  packet->horizon = mine.horizon;
  packet->following = mine.following;
  packet->run_bytes = static_cast<std::uint32_t>(mine.bytes);
  if (opening) ::new (out.data() + sizeof(wire::KeyValueData)) wire::Descriptor(mine.descriptor);
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
  data.window = scope.membership.path.window.own();
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
