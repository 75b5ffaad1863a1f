#include "aggregator/engine/leaving.hpp"

#include <algorithm>

#include "common/base/limits.hpp"

namespace sluice::aggregator {
namespace {

/// How often ranks are asked for their positions while another rank wants to leave.
constexpr Duration kPollInterval = std::chrono::milliseconds(10);

bool is_departure(wire::AbortReason reason) {
  return reason == wire::AbortReason::kRankLeft || reason == wire::AbortReason::kRankAborted;
}

/// Whether a LEAVE may give this reason: its ranks and shards are of the session, and the members
/// believe it (`ShardMembership::is_aborted`). They would ignore an ABORT with another reason, and
/// wait in vain for the job's end.
bool can_be_passed_on(const AbortInfo& why, const Session& session) {
  if (why.reason == wire::AbortReason::kNotAuthenticated) return false;
  if (why.reason == wire::AbortReason::kAggregatorLost && why.value_a >= session.shards)
    return false;
  if (is_departure(why.reason) && why.value_a > kLastDeparture) return false;
  return why.rank_a.value < session.ranks && why.rank_b.value < session.ranks;
}

/// Polls the rank for all streams on which it is behind, kPolledStreams in each POLL. Returns false
/// if it is behind on none.
bool poll(Rank rank, std::span<const Stream> streams, const JobMembership& membership,
          ControlPackets& out) {
  const Session& session = membership.members().session();
  const auto is_behind = [&](const Stream& stream) { return stream.rounds().is_behind(rank); };
  bool any = false;
  for (std::size_t first = 0; first < streams.size(); first += wire::kPolledStreams) {
    auto packet = wire::make<wire::Poll>(session.job);
    const std::size_t end = std::min(streams.size(), first + wire::kPolledStreams);
    bool asks = false;
    for (std::size_t i = first; i < end; ++i) {
      if (!is_behind(streams[i])) continue;
      packet.streams[(i - first) / 8] |= static_cast<std::uint8_t>(1 << (i - first) % 8);
      asks = any = true;
    }
    if (!asks) continue;
    packet.delivery.epoch = session.epoch;
    packet.delivery.delivery_token = session.delivery_token;
    packet.delivery.stream = static_cast<std::uint16_t>(first * session.shards + session.shard);
    out.push(membership.members().endpoints()[rank.value], packet, membership.record().protection);
  }
  return any;
}

}  // namespace

AbortInfo cause_of(const wire::Leave& leave, Rank rank, const Session& session) {
  if (leave.reason != 0)
    if (const AbortInfo why = to_info(leave); can_be_passed_on(why, session)) return why;
  return {.reason = wire::AbortReason::kRankAborted, .rank_a = rank};
}

Departure departure_of(const wire::Leave& leave) {
  const AbortInfo why = to_info(leave);
  const bool by_exception = why.reason == wire::AbortReason::kRankLeft &&
                            why.value_a == static_cast<std::uint64_t>(Departure::kByException);
  return by_exception ? Departure::kByException : Departure::kByChoice;
}

void LeavePolls::on_wait(std::span<const Stream> streams, const JobMembership& membership, Time now,
                         ControlPackets& out) {
  const bool is_first = due_ == kNever;  // usually all leave together, and need no POLL
  if (!is_first && now < due_) return;
  due_ = after(now, kPollInterval);
  if (!is_first) poll_some(streams, membership, out);
}

/// Polls ranks that are behind on a stream, as far as we know: a limited number in each call, in
/// turn.
void LeavePolls::poll_some(std::span<const Stream> streams, const JobMembership& membership,
                           ControlPackets& out) {
  const Members& members = membership.members();
  const std::uint16_t ranks = members.session().ranks;
  int polled = 0;
  for (std::uint16_t i = 0; i < ranks && polled < limits::kPolledAtOnce; ++i) {
    const Rank rank{next_};
    next_ = static_cast<std::uint16_t>((next_ + 1) % ranks);
    if (members.present().contains(rank) && poll(rank, streams, membership, out)) ++polled;
  }
}

}  // namespace sluice::aggregator
