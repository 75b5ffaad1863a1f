#include "aggregator/engine/job_membership.hpp"

#include <algorithm>
#include <cassert>

#include "common/protocol/text_field.hpp"

namespace sluice::aggregator {

using wire::AbortReason;
using wire::Field;

std::optional<wire::Refused> refusal_of(const Endpoint& from, const Packet& packet,
                                        const EngineConfig& config) {
  if (packet.kind() != wire::Kind::kKeepAlive) return std::nullopt;
  auto refused = wire::make<wire::Refused>(packet.job());
  refused.token = packet.member().token;
  refused.incarnation = config.incarnation;
  refused.number = packet.as<wire::KeepAlive>().number;
  refused.shard = config.shard;
  const auto place = config.place ? config.place(from.port_id) : EngineConfig::Place{};
  refused.ipv4 = place.ipv4;
  refused.udp_port = place.udp_port;
  return refused;
}

// -------------------------------------------------------------------------------------- joining
DropReason JobMembership::on_join(const Endpoint& from, const wire::Join& join, Time now,
                                  ControlPackets& out) {
  if (idle()) {
    record_.protection = record_.config.protection_of(record_.job);  // the secret may be new
    record_.name.clear();
  }
  return active_ ? join_active(from, join, now, out) : join_forming(from, join, now, out);
}

DropReason JobMembership::join_active(const Endpoint& from, const wire::Join& join, Time now,
                                      ControlPackets& out) {
  using Case = Members::JoinCase;
  const std::uint16_t ranks = members_.session().ranks;
  const Rank rank{join.rank};
  if (join.world_size != ranks) {
    const AbortInfo mismatch{
        AbortReason::kJoinMismatch, Field::kWorldSize, Rank{0}, rank, ranks, join.world_size, 0};
    record_.refuse(from, join, mismatch, out);
    return DropReason::kBadJoin;
  }
  switch (members_.judge(join)) {
    case Case::kWaitsForOthers:
      record_.send_pending(from, join, formation_.absent(join), out);
      return DropReason::kNone;
    case Case::kRepeated:
      members_.welcome(rank, out);
      return DropReason::kNone;
    case Case::kStale:
      return DropReason::kStaleJoin;
    case Case::kAnotherProcess:
      abort(about(AbortReason::kRankRestarted, rank), out);
      record_.answered_again(from, join, out);
      return DropReason::kBadJoin;
    case Case::kElsewhere:
      abandon_formation();
      return join_forming(from, join, now, out);
    case Case::kRejoins:
      members_.rebind(rank, from, join, now, out);
      return DropReason::kNone;
    case Case::kSpeaksOfOtherLife:
      break;
  }
  if (record_.config.shard == 0) return contend(from, join, now, out);
  // Shard 0 has begun another generation. Ours ends when all ranks have joined for the new one.
  return join_forming(from, join, now, out);
}

/// A process that asks for a member's place waits for the outcome, unless its join is void or names
/// a generation or an attempt that has ended.
DropReason JobMembership::contend(const Endpoint& from, const wire::Join& join, Time now,
                                  ControlPackets& out) {
  if (record_.answered_again(from, join, out)) return DropReason::kBadJoin;
  if (record_.is_void(join)) return DropReason::kStaleJoin;
  members_.contend(from, join, now);
  record_.send_pending(from, join, formation_.absent(join), out);
  return DropReason::kNone;
}

DropReason JobMembership::join_forming(const Endpoint& from, const wire::Join& join, Time now,
                                       ControlPackets& out) {
  const DropReason drop = formation_.on_join(from, join, now, out);
  if (drop != DropReason::kNone) return drop;
  // Some ranks may know only the job's number.
  if (std::string name = text_of(join.name); !name.empty()) record_.name = std::move(name);
  if (formation_.complete(now))
    form(now, out);
  else
    record_.send_pending(from, join, formation_.absent(join), out);
  return DropReason::kNone;
}

void JobMembership::form(Time now, ControlPackets& out) {
  if (active_) {
    const AbortInfo over;  // no reason: all ranks have moved on, so none gets an ABORT
    end({.left = false, .generation = members_.session().generation, .why = over});
  }
  assert(formation_.complete(now));
  const Formation::Agreement agreed = formation_.agree(buffers_claimed_);
  record_.protection.begin_session(agreed.session);
  members_.begin(agreed, formation_.candidates(), now, out);
  const auto other_build = formation_.other_build();
  formation_.clear();
  record_.void_joins();
  active_ = true;
  record_.report({.kind = agreed.resumed ? JobEvent::Kind::kResumed : JobEvent::Kind::kFormed,
                  .session = agreed.session});
  if (!other_build) return;
  record_.report({.kind = JobEvent::Kind::kOtherBuild,
                  .session = agreed.session,
                  .rank = other_build->rank,
                  .build = other_build->build,
                  .others = other_build->others});
}

// -------------------------------------------------------------------------------- while it lives
/// Sends nothing if the answer would be longer than the packet. A KEEPALIVE, which is long enough,
/// will follow.
void JobMembership::answer_unknown(const Endpoint& from, const Packet& packet,
                                   ControlPackets& out) const {
  const std::uint64_t token = packet.member().token;
  if (active_ && members_.has_token(token)) return;
  const Tombstone* const ended = record_.tombstones.of_token(token);
  if (ended == nullptr) {
    if (const auto refused = refusal_of(from, packet, record_.config))
      out.push(from, *refused, record_.protection);
  } else if (ended->left) {
    auto left = wire::make<wire::Left>(record_.job);
    left.token = token;
    out.push(from, left, record_.protection);
  } else if (packet.bytes().size() >= sizeof(wire::Abort) + wire::kTrailerBytes) {
    out.push(from, to_packet(ended->why, record_.job, ended->generation, 0), record_.protection);
  }
}

void JobMembership::on_leave(Rank r, std::uint64_t token, Departure departure, bool may_leave,
                             ControlPackets& out) {
  members_.on_leave(r, token, departure, may_leave, out);
  if (members_.present().empty()) end({.left = true, .generation = members_.session().generation});
}

void JobMembership::on_time(Time now, ControlPackets& out) {
  if (active_) {
    if (const auto failure = members_.failed(now)) {
      abort(*failure, out);
      return;
    }
    const auto contender = members_.settle_contention(now, out);
    const bool restarted = contender && members_.has_spoken(Rank{contender->join.rank});
    if (restarted) {
      abort(about(AbortReason::kRankRestarted, Rank{contender->join.rank}), out);
      formation_.hold(contender->endpoint, contender->join, now);
      if (formation_.complete(now)) form(now, out);
      return;
    }
    members_.repeat_welcomes(now, out);
    members_.send_beacon(now, out);
    if (contender || now >= members_.all_must_have_spoken()) {
      abandon_formation();
      record_.void_joins();
      return;
    }
  }
  formation_.on_time(now, out);
}

Time JobMembership::next_deadline() const {
  const Time next = formation_.next_deadline();
  return active_ ? std::min(next, members_.next_deadline()) : next;
}

void JobMembership::excuse_pause(Duration pause) {
  formation_.excuse_pause(pause);
  members_.excuse_pause(pause);
}

void JobMembership::on_disconnect(std::uint16_t port_id, Time now, ControlPackets& out) {
  formation_.on_disconnect(port_id, now, out);
  if (!active_) return;
  if (const auto failure = members_.on_disconnect(port_id, now)) abort(*failure, out);
}

// --------------------------------------------------------------------------------------- the end
void JobMembership::abort(const AbortInfo& info, ControlPackets& out,
                          std::optional<Rank> reported_by) {
  if (active_) {
    AbortInfo why = info;
    if (why.reason == AbortReason::kRankLeft && !reported_by)
      why.value_a = static_cast<std::uint64_t>(members_.departure_of(why.rank_a));
    members_.abort_all(why, out);
    end({.left = false, .generation = members_.session().generation, .why = why}, reported_by);
  } else {
    formation_.dismiss(info, out);
  }
}

/// Acts as if this aggregator had been killed: tokens are unknown from now on, and there are no new
/// tombstones.
void JobMembership::abandon_formation() {
  assert(active_);
  active_ = false;
  record_.report({.kind = JobEvent::Kind::kFormationAbandoned, .session = members_.session()});
}

void JobMembership::end(const Tombstone& tombstone, std::optional<Rank> reported_by) {
  assert(active_);
  members_.leave_tombstones(tombstone);
  JobEvent event{.kind = JobEvent::Kind::kLeft, .session = members_.session()};
  if (!tombstone.left) {
    event.kind = JobEvent::Kind::kAborted;
    event.reason = tombstone.why;
    event.reported_by = reported_by;
  }
  record_.report(event);
  active_ = false;
  record_.void_joins();
}

}  // namespace sluice::aggregator
