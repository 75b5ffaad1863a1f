// What one stream does of a keyed op: which run of pairs it sends, and what a result changes (docs/
// protocol.md, "Keyed streams").
#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "common/protocol/build.hpp"
#include "common/protocol/keyed.hpp"
#include "worker/engine/stream.hpp"

namespace sluice::worker {

/// Begins with the first of this rank's chunks.
void Stream::begin_keyed(Operation& op, const Scope& scope) {
  run_ = {};
  run_.extent = op.keyed()->run_from(id_, 0, run_room(scope.membership.agreed()));
}

/// The run that this rank sent last is used up: the next one.
void Stream::take_next_run(const Operation& op, const Scope& scope) {
  const std::size_t end = run_.extent.end;
  const std::uint64_t horizon = run_.horizon;
  run_ = {};
  run_.horizon = horizon;
  run_.extent = op.keyed()->run_from(id_, end, run_room(scope.membership.agreed()));
}

/// Whether a result is one that the running round can end with, as far as this rank can tell.
bool Stream::fits_keyed(const Packet& packet, Scope& scope) {
  const auto& result = packet.as<wire::KeyValueResult>();
  const KeyedOperation& op = *running_op(scope).keyed();
  const wire::Shape shape = wire::shape_of(op.geometry());
  if (result.result.op != op_ || !wire::same(packet.shape(), shape)) return false;
  if (!run_.is_sent || result.horizon != run_.horizon) return false;
  return result.next <= run_.extent.following;  // else a chunk of ours would be lost
}

/// Takes the sums of the round awaited, and finds out whether another run is wanted. False if they
/// cannot be those of this round.
bool Stream::apply_keyed(const Packet& packet, Scope& scope) {
  const auto& result = packet.as<wire::KeyValueResult>();
  Operation& op = running_op(scope);
  const auto keys = op.keyed()->store(id_, packet.run(), result.horizon, result.next);
  if (!keys) return false;
  auto& mine = contribution(position());
  if (mine.round != position()) describe_keyed(op, mine);
  mine.next_horizon = result.next;
  op.statistics.blocks_received += *keys;
  op.keyed()->add_rejected(result.rejected);
  first_ = owner_ = false;
  run_.horizon = result.next;
  if (run_.horizon == kNoChunk) {
    run_ = {};
    running_ = false;
    scope.ops.finish_on_stream(op_++);
  } else if (run_.horizon == run_.extent.following) {
    take_next_run(op, scope);
    owner_ = true;
  }
  return true;
}

/// Says what this rank has for the round awaited: the run that it sent last.
void Stream::describe_keyed(const Operation& op, Contribution& mine) const {
  assert(running_ && !replaying());
  mine.round = position();
  mine.op = op_;
  mine.first = first_;
  mine.owner = owner_;
  mine.is_keyed = true;
  mine.shape = wire::shape_of(op.keyed()->geometry());
  mine.descriptor = op.descriptor();
  mine.blocks = run_.bytes;
  mine.packet = run_.packet ? run_.packet.share() : Buffer();
  mine.bytes = run_.bytes.size();
  mine.horizon = run_.horizon;
  mine.following = run_.extent.following;
}

/// Contributes to the round awaited, with a run that is written now or with what was kept of it.
void Stream::send_keyed(bool ask, Scope& scope) {
  Contribution& mine = contribution(position());
  const bool kept = mine.round == position();
  const bool opening = (kept ? mine.first : first_) || resumed_;
  const std::size_t run_bytes = kept ? mine.bytes : run_.extent.bytes;
  const std::size_t head =
      sizeof(wire::KeyValueData) + (opening ? sizeof(wire::Descriptor) : std::size_t{0});
  const std::size_t size = head + run_bytes;
  Buffer buffer = allocate(size, scope);
  if (!buffer) return retry_soon(scope);

  const bool is_new = !kept && !run_.is_sent;
  std::byte* const out = buffer.writable().data();
  if (is_new) {
    const std::span at(out + head, run_bytes);
    Operation& op = running_op(scope);
    op.keyed()->write(id_, run_.extent, op.rounder(), at);
    op.statistics.blocks_sent += run_.extent.end - run_.extent.begin;
    run_.bytes = at;
    run_.is_sent = true;
  }
  if (!kept) describe_keyed(running_op(scope), mine);
  if (!is_new) std::copy(mine.blocks.begin(), mine.blocks.end(), out + head);

  auto* const packet = ::new (out) wire::KeyValueData;
  packet->data.member.header = wire::header_of(wire::Kind::kKeyValueData, scope.config.job, size);
  fill(packet->data, mine, opening, ask, scope);
  packet->horizon = mine.horizon;
  packet->following = mine.following;
  packet->run_bytes = static_cast<std::uint32_t>(run_bytes);
  if (opening) ::new (out + sizeof(wire::KeyValueData)) wire::Descriptor(mine.descriptor);

  count_data(scope);
  if (is_new && run_bytes != 0) {
    run_.packet = send_and_keep(std::move(buffer), scope);
    mine.packet = run_.packet.share();
  } else {
    seal(buffer, scope);
    scope.sink.send(scope.membership.aggregator(), std::move(buffer));
  }
  await(scope);
}

}  // namespace sluice::worker
