#include "worker/engine/keyed_rounds.hpp"

#include "common/protocol/build.hpp"
#include "common/protocol/keyed.hpp"

namespace sluice::worker {

/// Begins with the first of this rank's pairs.
void KeyedRounds::begin(Operation& op, StreamId stream, const Session& session) {
  stream_ = stream;
  room_ = run_room(session);
  horizon_ = 0;
  owns_ = false;
  take_run(op, {});
}

/// Takes the run that begins with this pair of ours: the run before it is done.
void KeyedRounds::take_run(Operation& op, KeyedOperation::At begin) {
  run_ = {};
  run_.extent = op.keyed()->run_from(stream_, begin, room_);
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
  op.statistics.blocks_sent += run_.extent.plan.coding.keys;
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
  owns_ = false;
  horizon_ = result.next;
  if (horizon_ == kNoKey) {
    run_ = {};
    return Applied::kDone;
  }
  if (horizon_ == run_.extent.following) {
    take_run(op, run_.extent.end);
    owns_ = true;
  }
  return Applied::kGoesOn;
}

}  // namespace sluice::worker
