#include "worker/engine/keyed_rounds.hpp"

#include <algorithm>

#include "common/protocol/build.hpp"
#include "common/protocol/keyed.hpp"

namespace sluice::worker {

/// Begins with the first of this rank's pairs.
void KeyedRounds::begin(Operation& op, StreamId stream, const Session& session) {
  stream_ = stream;
  room_ = run_room(session);
  result_room_ = keyed_result_room(session);
  horizon_ = 0;
  owns_ = false;
  take_run(op, {});
}

/// Takes the run that begins with this pair of ours. It replaces the run before it.
void KeyedRounds::take_run(Operation& op, KeyedOperation::At begin) {
  run_ = {};
  run_.extent = op.keyed()->run_from(stream_, begin, room_);
}

/// Takes the run that begins with the first of our pairs that is left.
void KeyedRounds::renew_run(Operation& op) {
  const auto [begin, passed] = op.keyed()->find(stream_, run_.extent.begin, horizon_);
  const std::size_t counted = std::max(run_.counted, run_.extent.plan.coding.keys) - passed;
  take_run(op, begin);
  run_.counted = counted;
}

/// The run that this rank sent last, or sends now.
void KeyedRounds::describe(Operation& op, Contribution& mine) const {
  mine.is_keyed = true;
  mine.shape = wire::shape_of(op.keyed()->geometry());
  mine.blocks = run_.bytes;
  mine.packet = run_.packet ? run_.packet.share() : Buffer();
  mine.bytes = run_.is_sent ? run_.bytes.size() : run_.extent.plan.bytes;
  mine.horizon = horizon_;
  mine.following = run_.extent.following;
}

void KeyedRounds::load(Operation& op, Contribution& mine, std::byte* out) {
  op.keyed()->write(stream_, run_.extent, op.rounder(), {out, mine.bytes});
  const std::size_t keys = run_.extent.plan.coding.keys;
  op.statistics.blocks_sent += keys - std::min(keys, run_.counted);
}

void KeyedRounds::keep(const Contribution& mine) {
  run_.is_sent = true;
  run_.bytes = mine.blocks;
  run_.packet = mine.packet ? mine.packet.share() : Buffer();
}

bool KeyedRounds::fits(Operation& op, const Packet& packet, const Contribution&) const {
  const auto& result = packet.as<wire::KeyValueResult>();
  if (!wire::same(packet.shape(), wire::shape_of(op.keyed()->geometry()))) return false;
  if (!run_.is_sent || result.horizon != horizon_) return false;
  return result.next <= run_.extent.following;  // else a pair of ours would be lost
}

/// Finds out whether another run is wanted, too.
RoundSource::Applied KeyedRounds::apply(Operation& op, const Packet& packet, Contribution& mine) {
  const auto& result = packet.as<wire::KeyValueResult>();
  const auto keys = op.keyed()->store(stream_, packet.run(), result.horizon, result.next);
  if (!keys) return Applied::kRefused;
  mine.next_horizon = result.next;
  op.statistics.blocks_received += *keys;
  op.keyed()->add_rejected(result.rejected);
  horizon_ = result.next;
  if (horizon_ == kNoKey) {
    owns_ = false;
    run_ = {};
    return Applied::kDone;
  }
  const std::uint64_t bound =
      renewal_bound(result.horizon, result.next, result.run_bytes, result_room_);
  owns_ = run_.extent.following < bound;
  if (owns_) renew_run(op);
  return Applied::kGoesOn;
}

}  // namespace sluice::worker
