// How a stream comes alive again after an aggregator's death (rules 21-23 of docs/protocol.md).
//
// Each worker tells by SYNC where it stands. The front, A, is the round to run: all results below
// it exist, and whoever awaits A holds every one that another can still lack. A worker at the front
// owes its part of round A, so its next block is its first one at or after the current; one that is
// behind has its last contribution in a finished round, so its next is the first one after.
#pragma once

#include "aggregator/stream.hpp"

namespace sluice::aggregator {

template <PacketSink Sink>
Taken Stream<Sink>::on_sync(Rank w, const Packet& packet, Buffer buffer, Scope& scope) {
  if (live_ || held_[w.value].buffer) {
    send_status(w, scope);
    return {DropReason::kDuplicate};
  }
  if (!fits_session(packet, scope.session)) return {DropReason::kUnfitting};
  held_[w.value] = {packet, std::move(buffer)};
  waiting_in_hold_.insert(w);
  if (waiting_in_hold_.size() < scope.session.ranks) {
    send_status(w, scope);
    return {DropReason::kNone, true};
  }
  if (!resynchronise(scope.session)) {
    Taken taken;
    taken.contradiction = true;
    return taken;
  }
  live_ = true;
  waiting_in_hold_.clear();
  for (Held& held : held_) held = {};
  ++scope.counters.streams_resynchronised;
  scope.present.for_each([&](Rank r) { send_status(r, scope); });
  return {DropReason::kNone, true};
}

/// Whether a SYNC tells of an op as it is cut in this session, and of blocks that this stream has.
template <PacketSink Sink>
bool Stream<Sink>::fits_session(const Packet& sync, const Session& session) const {
  if (sync.sync_columns().empty()) return true;  // idle
  const auto geometry = geometry_of(sync, sync.as<wire::Sync>().op, session);
  if (!geometry) return false;
  const auto on_column = [&](std::uint32_t index, std::uint32_t first) {
    return index == kNoBlock.value || (index - first) % geometry->stride() == 0;
  };
  for (std::uint8_t c = 0; const wire::SyncColumn& column : sync.sync_columns()) {
    const std::uint32_t first = geometry->first_index(id_, c++).value;
    if (!on_column(column.index, first) || !on_column(column.after, first)) return false;
  }
  return true;
}

/// All have told where they stand. False if that cannot be.
template <PacketSink Sink>
bool Stream<Sink>::resynchronise(const Session& session) {
  Round lowest{~std::uint64_t{0}};
  for (std::uint16_t r = 0; r < session.ranks; ++r) {
    positions_[r] = Round{held_[r].packet.template as<wire::Sync>().position};
    lowest = std::min(lowest, positions_[r]);
    running_ = std::max(running_, positions_[r]);
  }
  if (running_ - lowest > session.history) return false;
  kept_from_ = lowest;
  bool mid_op = false;
  for (std::uint16_t r = 0; r < session.ranks; ++r) {
    if (positions_[r] != running_) continue;
    donor_ = Rank{r};
    const unsigned flags = held_[r].packet.template as<wire::Sync>().flags;
    mid_op = (flags & wire::kSyncRunning) != 0 && (flags & wire::kSyncFirst) == 0;
    if (mid_op) break;
  }
  return !mid_op || resume_op(donor_, session);
}

/// The op goes on in which `front` awaits its second round or a later one.
template <PacketSink Sink>
bool Stream<Sink>::resume_op(Rank front, const Session& session) {
  const Packet& told = held_[front.value].packet;
  const OpNumber op = told.as<wire::Sync>().op;
  run_op(front, told, op, *geometry_of(told, op, session));
  op_known_ = true;
  first_ = false;
  for (std::uint8_t c = 0; const wire::SyncColumn& column : told.sync_columns())
    current_[c++] = BlockIndex{column.index};

  for (std::uint16_t r = 0; r < session.ranks; ++r) {
    const Packet& sync = held_[r].packet;
    if (sync.sync_columns().empty() || sync.as<wire::Sync>().op != op ||
        !wire::same(sync.shape(), shape_))
      return false;
    const bool at_front = positions_[r] == running_;
    for (std::uint8_t c = 0; const wire::SyncColumn& column : sync.sync_columns()) {
      if (at_front && BlockIndex{column.index} != current_[c]) return false;
      next_of(Rank{r})[c++] = BlockIndex{at_front ? column.at : column.after};
    }
  }
  std::array<BlockIndex, wire::kMaxColumns> least;
  const std::span<BlockIndex> want(least.data(), geometry_.columns);
  want_next(want, session);
  if (!std::equal(want.begin(), want.end(), current_.begin())) return false;
  outstanding_.clear();
  expect_owners(session);
  return true;
}

/// Asks the donor for a result of an earlier epoch.
template <PacketSink Sink>
void Stream<Sink>::fetch(Round r, Scope& scope) {
  auto packet = wire::make<wire::Fetch>(scope.session.job);
  packet.round = r.value;
  if (send_small(donor_, packet, scope)) ++scope.counters.results_fetched;
}

/// A result of an earlier epoch: into the history and to all who lack it.
template <PacketSink Sink>
Taken Stream<Sink>::on_give(const Packet& packet, Scope& scope) {
  const Session& session = scope.session;
  const Round round{packet.as<wire::Give>().round};
  if (!live_ || round >= running_ || running_ - round > session.history)
    return {DropReason::kNotResynchronising};
  Buffer& place = history_[round.value % session.history];
  if (place || round < lowest_position()) return {DropReason::kDuplicate};
  const auto given = packet.given();
  place = scope.sink.allocate(given.size() + scope.protection.trailer_bytes());
  if (!place) return {DropReason::kNoBuffer};
  auto out = place.writable();
  std::memcpy(out.data(), given.data(), given.size());
  auto& result = *reinterpret_cast<wire::Result*>(out.data());
  result.delivery.epoch = session.epoch;
  result.delivery.delivery_token = session.delivery_token;
  protect(out, scope.protection);
  ++scope.counters.results_given;
  scope.present.for_each([&](Rank r) {
    if (positions_[r.value] <= round) scope.sink.send(scope.members[r.value], place.share());
  });
  return {};
}

}  // namespace sluice::aggregator
