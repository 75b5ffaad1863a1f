// The engine's part that lets ranks go, and sends them away when it retires (rules 25 and 26 of
// docs/protocol.md).
#include <algorithm>

#include "aggregator/engine/engine.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/abort_info.hpp"

namespace sluice::aggregator {
namespace {

/// How often ranks are asked for their positions on behalf of one that wants to leave.
constexpr Duration kPollInterval = std::chrono::milliseconds(10);

/// How often a member is asked for a KEEPALIVE, to which it is told that it is not known here.
constexpr Duration kSendAwayInterval = std::chrono::milliseconds(20);

bool is_departure(wire::AbortReason reason) {
  return reason == wire::AbortReason::kRankLeft || reason == wire::AbortReason::kRankAborted;
}

/// Whether a rank may pass this on: of ranks and shards that the session has, and not what members
/// do not believe (`ShardMembership::is_aborted`), who would wait for the job's end in vain.
bool can_be_told(const AbortInfo& why, const Session& session) {
  if (why.reason == wire::AbortReason::kNotAuthenticated) return false;
  if (why.reason == wire::AbortReason::kAggregatorLost && why.value_a >= session.shards)
    return false;
  if (is_departure(why.reason) && why.value_a > kLastDeparture) return false;
  return why.rank_a.value < session.ranks && why.rank_b.value < session.ranks;
}

/// Why a rank ends the job for all: as it says, or that it does.
AbortInfo cause_of(const wire::Leave& leave, Rank rank, const Session& session) {
  if (leave.reason != 0)
    if (const AbortInfo why = to_info(leave); can_be_told(why, session)) return why;
  return {.reason = wire::AbortReason::kRankAborted, .rank_a = rank};
}

/// Of a rank that leaves others their job: it speaks for itself alone.
Departure departure_of(const wire::Leave& leave) {
  const AbortInfo why = to_info(leave);
  const bool by_exception = why.reason == wire::AbortReason::kRankLeft &&
                            why.value_a == static_cast<std::uint64_t>(Departure::kByException);
  return by_exception ? Departure::kByException : Departure::kByChoice;
}

}  // namespace

void Engine::on_leave(Job& job, Rank rank, const wire::Leave& leave, Time now, PacketSink& sink) {
  Membership& membership = job.membership;
  if (leave.abort != 0) {
    abort(job, cause_of(leave, rank, membership.roster().session()), now, rank);
    return;
  }
  // Someone may still need what this rank holds: all who remain must have every result.
  bool settled = true;
  bool busy = false;
  auto scope = scope_of(job, now, sink);
  for (Stream& stream : job.streams) {
    stream.on_leave(rank, scope);
    settled &= stream.rounds().settled(membership.roster().present());
    busy |= stream.busy();
  }
  membership.on_leave(rank, leave.member.token, departure_of(leave), settled, control_);
  settle(job, now);
  if (!membership.active()) return;
  if (settled && busy) {
    abort(job, {.reason = wire::AbortReason::kRankLeft, .rank_a = rank}, now);
  } else if (settled) {
    job.poll_due = kNever;
  } else if (job.poll_due == kNever) {  // most often all leave together: no need to ask
    job.poll_due = after(now, kPollInterval);
  } else if (now >= job.poll_due) {
    job.poll_due = after(now, kPollInterval);
    poll_laggards(job);
  }
}

/// Asks for the positions of those who are behind on a stream, as far as we know: of some ranks
/// now, and of the next ones the next time.
void Engine::poll_laggards(Job& job) {
  const std::uint16_t ranks = job.membership.roster().session().ranks;
  int polled = 0;
  for (std::uint16_t i = 0; i < ranks && polled < limits::kPolledAtOnce; ++i) {
    const Rank rank{job.poll_next};
    job.poll_next = static_cast<std::uint16_t>((job.poll_next + 1) % ranks);
    if (job.membership.roster().present().contains(rank) && poll(job, rank)) ++polled;
  }
}

/// One POLL for all streams on which the rank is behind, or for some hundred of them. False if it
/// is on none.
bool Engine::poll(Job& job, Rank rank) {
  const Session& session = job.membership.roster().session();
  const auto is_behind = [&](const Stream& stream) { return stream.rounds().is_behind(rank); };
  const auto& streams = job.streams;
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
    control_.push(job.membership.roster().endpoints()[rank.value], packet,
                  job.membership.record().protection);
  }
  return any;
}

// --------------------------------------------------------------------------------------- retiring
namespace {

/// Of a job whose ranks are about to leave the last packets count: its members stay.
bool is_whole(const Membership& membership) {
  const Roster& roster = membership.roster();
  return roster.present().size() == roster.session().ranks;
}

RankSet members_here(const Membership& membership, const RankSet& sent_away) {
  RankSet here = membership.roster().present();
  return here -= sent_away;
}

}  // namespace

void Engine::retire(Time now, PacketSink& sink) {
  retiring_ = true;
  for (const auto& [id, job] : jobs_)
    for (Stream& stream : job->streams) stream.retire(now, job->counters);
  ask_who_stays(now);
  flush(sink);
}

bool Engine::retired() const {
  return std::ranges::all_of(jobs_, [](const auto& entry) {
    const Job& job = *entry.second;
    return !job.membership.active() || members_here(job.membership, job.sent_away).empty();
  });
}

/// A POLL for no stream asks for a KEEPALIVE.
void Engine::ask_who_stays(Time now) {
  for (auto& [id, job] : jobs_) {
    const Membership& membership = job->membership;
    if (!membership.active() || !is_whole(membership)) continue;
    const Session& session = membership.roster().session();
    auto poll = wire::make<wire::Poll>(session.job);
    poll.delivery.epoch = session.epoch;
    poll.delivery.delivery_token = session.delivery_token;
    poll.delivery.stream = session.shard;
    members_here(membership, job->sent_away).for_each([&](Rank r) {
      control_.push(membership.roster().endpoints()[r.value], poll, membership.record().protection);
    });
  }
  deadline_ = after(now, kSendAwayInterval);
}

/// The member has proven who it is by this KEEPALIVE.
void Engine::send_away(Job& job, const Endpoint& from, const Packet& keep_alive) {
  if (!is_whole(job.membership)) return;
  control_.push(from, *refusal_of(from, keep_alive, config_), job.membership.record().protection);
  const Rank rank{keep_alive.member().rank};
  if (job.sent_away.contains(rank) ||
      !job.membership.said_something_new(rank, keep_alive.as<wire::KeepAlive>()))
    return;
  job.sent_away.insert(rank);
  if (!members_here(job.membership, job.sent_away).empty()) return;
  ++counters_.jobs_sent_away;
  tell({.kind = JobEvent::Kind::kSentAway, .session = job.membership.roster().session()});
}

}  // namespace sluice::aggregator
