#include "aggregator/engine/members.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "common/protocol/packet.hpp"
#include "common/protocol/text_field.hpp"

namespace sluice::aggregator {
namespace {

using wire::AbortReason;

constexpr int kSilentIntervals = 3;        // of KEEPALIVE; then a contended member counts as gone
constexpr std::uint64_t kSignsOfLife = 2;  // one may have been in flight when the process ended

}  // namespace

// ------------------------------------------------------------------------------- being a member
void Members::begin(const Formation::Agreement& agreed, const Candidates& candidates, Time now,
                    ControlPackets& out) {
  const Session& session = agreed.session;
  assert(candidates.size() == session.ranks);
  session_ = session;
  resumed_ = agreed.resumed;
  members_.assign(session.ranks, Member());
  endpoints_.assign(session.ranks, Endpoint());
  present_ = RankSet::first(session.ranks);
  for (const auto& [rank, candidate] : candidates) {
    Member& member = members_[rank];
    member.nonce = candidate.join.nonce;
    member.serial = candidate.join.serial;
    member.token = config_.unique();
    member.opener = opener_of(Rank{rank});
    member.seen = now;
    endpoints_[rank] = candidate.endpoint;
  }
  assert(std::all_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.token != 0; }));
  multicast_.begin(session.group, endpoints_, config_.keep_alive_interval());
  formed_at_ = now;
  welcome_due_ = after(now, config_.keep_alive_interval());
  for (std::uint16_t r = 0; r < session.ranks; ++r) welcome(Rank{r}, out);
}

void Members::welcome(Rank r, ControlPackets& out) const {
  auto packet = wire::make<wire::Welcome>(record_.job);
  set_text(packet.build, record_.config.build);
  const Member& member = members_[r.value];
  packet.nonce = member.nonce;
  packet.incarnation = config_.incarnation;
  packet.token = member.token;
  packet.generation = session_.generation;
  packet.epoch = session_.epoch;
  packet.delivery_token = session_.delivery_token;
  packet.streams = session_.streams;
  packet.block_elements = session_.block_elements;
  packet.payload_bytes = session_.payload_bytes;
  packet.history = session_.history;
  packet.lanes = config_.lanes;
  packet.group = session_.group;
  packet.flags =
      static_cast<std::uint8_t>((resumed_ ? wire::kWelcomeResume : 0) |
                                (session_.authenticated ? wire::kWelcomeAuthenticate : 0) |
                                (session_.encrypted ? wire::kWelcomeEncrypt : 0) |
                                (session_.has_hosts ? wire::kWelcomeHosts : 0));
  packet.keep_alive_ms = static_cast<std::uint16_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(config_.keep_alive_interval()).count());
  out.push(endpoints_[r.value], packet, record_.protection);
}

void Members::repeat_welcomes(Time now, ControlPackets& out) {
  if (now < welcome_due_) return;
  welcome_due_ = kNever;
  present_.for_each([&](Rank r) {
    if (members_[r.value].spoke) return;
    welcome(r, out);
    welcome_due_ = after(now, config_.keep_alive_interval());
  });
}

Time Members::all_must_have_spoken() const {
  const bool all = !resumed_ || std::all_of(members_.begin(), members_.end(),
                                            [](const Member& member) { return member.spoke; });
  return all ? kNever : after(formed_at_, kSilentIntervals * config_.keep_alive_interval());
}

/// The opener for the member's current nonce and token.
std::shared_ptr<Opener> Members::opener_of(Rank r) const {
  const Member& member = members_[r.value];
  return record_.protection.opener_of(session_, {r, member.nonce, member.token});
}

bool Members::has_token(std::uint64_t token) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return token == member.token || token == member.former_token;
  });
}

void Members::on_keep_alive(Rank r, const wire::KeepAlive& packet, Time now, ControlPackets& out) {
  Member& member = members_[r.value];
  if (packet.number > member.keep_alive) {
    member.keep_alive = packet.number;
    member.seen = now;
    if (session_.group != 0) judge_group(r, packet, now);
  }
  auto ack = wire::make<wire::KeepAliveAck>(record_.job);
  ack.epoch = session_.epoch;
  ack.number = packet.number;
  ack.delivery_token = session_.delivery_token;
  out.push(endpoints_[r.value], ack, record_.protection);
}

/// Reports when a member begins to miss the group, and when it receives it again.
void Members::judge_group(Rank r, const wire::KeepAlive& packet, Time now) {
  Member& member = members_[r.value];
  multicast_.on_keep_alive(r, packet.newest_beacon, packet.beacons_received, now);
  const bool changed =
      member.reported_missing ? multicast_.receives_group(r) : multicast_.misses_group(r);
  if (!changed) return;
  member.reported_missing = !member.reported_missing;
  record_.report({.kind = member.reported_missing ? JobEvent::Kind::kMissesGroup
                                                  : JobEvent::Kind::kReceivesGroup,
                  .session = session_,
                  .rank = r});
}

void Members::send_beacon(Time now, ControlPackets& out) {
  if (now < multicast_.beacon_due()) return;
  auto beacon = wire::make<wire::Beacon>(record_.job);
  beacon.epoch = session_.epoch;
  beacon.delivery_token = session_.delivery_token;
  beacon.number = multicast_.next_beacon(now);
  for (const Multicast::Path& path : multicast_.paths())
    if (path.members.size() > 1) out.push(path.group, beacon, record_.protection);
}

void Members::on_leave(Rank r, std::uint64_t token, Departure departure, bool may_leave,
                       ControlPackets& out) {
  members_[r.value].departure = departure;
  if (present_.contains(r)) {
    if (!may_leave) return;
    present_.erase(r);
    multicast_.left(r);
    members_[r.value].contender.reset();  // it may join once the others have left, too
  }
  auto left = wire::make<wire::Left>(record_.job);
  left.token = token;
  out.push(endpoints_[r.value], left, record_.protection);
}

// ------------------------------------------------------------------------- joins beside a member
Members::JoinCase Members::judge(const wire::Join& join) const {
  assert(join.rank < session_.ranks);
  const Member& member = members_[join.rank];
  if (!present_.contains(Rank{join.rank})) return JoinCase::kWaitsForOthers;
  if (member.nonce == join.nonce) return JoinCase::kRepeated;
  if (join.serial <= member.serial) return JoinCase::kStale;
  if (is_another_process(join)) return JoinCase::kAnotherProcess;
  if (went_on_elsewhere(join)) return JoinCase::kElsewhere;
  if (join.generation != 0 && join.generation == session_.generation) return JoinCase::kRejoins;
  return JoinCase::kSpeaksOfOtherLife;
}

/// Whether the rank comes from another epoch of this generation, or has made progress that it
/// cannot have made here. Then another aggregator has welcomed all ranks, later or at the same
/// time, and they went there.
bool Members::went_on_elsewhere(const wire::Join& join) const {
  if (join.generation == session_.generation)
    return join.epoch != 0 && join.epoch != session_.epoch;
  return has_progress(join) && !resumed_ && config_.shard == 0 &&
         std::none_of(members_.begin(), members_.end(),
                      [](const Member& member) { return member.spoke; });
}

/// Whether the sender names this generation but was never welcomed to it here, while the member
/// was. Then shard 0 had received nothing from the member, and gave its place to another process.
bool Members::is_another_process(const wire::Join& join) const {
  return join.generation == session_.generation && join.epoch == 0 && members_[join.rank].spoke;
}

void Members::rebind(Rank r, const Endpoint& to, const wire::Join& join, Time now,
                     ControlPackets& out) {
  Member& member = members_[r.value];
  member.nonce = join.nonce;
  member.serial = join.serial;
  member.former_token = std::exchange(member.token, config_.unique());
  member.former_opener = std::exchange(member.opener, opener_of(r));
  member.seen = now;
  endpoints_[r.value] = to;
  multicast_.rebound(r, to);
  welcome(r, out);
}

void Members::contend(const Endpoint& from, const wire::Join& join, Time now) {
  Member& member = members_[join.rank];
  if (!member.contender || member.contender->join.nonce != join.nonce)
    member.contender = Contender{from, join, now, member.keep_alive};
  member.contender->join.serial = join.serial;
}

/// When a contended member that stays silent counts as gone.
Time Members::contention_ends(const Member& member) const {
  return after(std::max(member.contender->since, member.seen),
               kSilentIntervals * config_.keep_alive_interval());
}

std::optional<Members::Contender> Members::settle_contention(Time now, ControlPackets& out) {
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    Member& member = members_[r];
    if (!member.contender) continue;
    const Contender contender = *member.contender;
    const std::uint64_t signs = member.keep_alive - contender.keep_alive_at_start;
    if (signs >= kSignsOfLife) {
      member.contender.reset();
      record_.tombstones.ended(contender.join.nonce, about(AbortReason::kDuplicateRank, Rank{r}));
      record_.answered_again(contender.endpoint, contender.join, out);
    } else if (now < contention_ends(member)) {
      continue;
    } else if (!member.spoke && !resumed_ && !has_progress(contender.join)) {
      const AbortInfo why = about(AbortReason::kDuplicateRank, Rank{r});
      record_.tombstones.token_ended(
          member.token, {.left = false, .generation = session_.generation, .why = why});
      record_.tombstones.ended(member.nonce, why);
      member.contender.reset();
      rebind(Rank{r}, contender.endpoint, contender.join, now, out);
      member.former_token = 0;  // it belongs to another process
    } else {
      return contender;
    }
  }
  return std::nullopt;
}

// ------------------------------------------------------------------------------- lost members
std::optional<AbortInfo> Members::failed(Time now) const {
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    const Duration silence = silence_of(Rank{r}, now);
    if (present_.contains(Rank{r}) && silence >= config_.liveness_timeout)
      return about(AbortReason::kRankSilent, Rank{r}, silence);
  }
  return std::nullopt;
}

Time Members::next_deadline() const {
  Time next = std::min({all_must_have_spoken(), welcome_due_, multicast_.beacon_due()});
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    const Member& member = members_[r];
    if (present_.contains(Rank{r}))
      next = std::min(next, after(member.seen, config_.liveness_timeout));
    if (member.contender) next = std::min(next, contention_ends(member));
  }
  return next;
}

void Members::excuse_pause(Duration pause) {
  formed_at_ += pause;
  for (Member& member : members_) {
    member.seen += pause;
    if (member.contender) member.contender->since += pause;
  }
}

std::optional<AbortInfo> Members::on_disconnect(std::uint16_t port_id, Time now) {
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    Member& member = members_[r];
    if (member.contender && member.contender->endpoint.port_id == port_id) member.contender.reset();
    if (endpoints_[r].port_id != port_id || !present_.contains(Rank{r})) continue;
    present_.erase(Rank{r});
    multicast_.left(Rank{r});
    return about(AbortReason::kRankDisconnected, Rank{r}, now - member.seen);
  }
  return std::nullopt;
}

void Members::abort_all(const AbortInfo& info, ControlPackets& out) const {
  present_.for_each([&](Rank r) {
    out.push(endpoints_[r.value], to_packet(info, record_.job, session_.generation, 0),
             record_.protection);
  });
}

void Members::leave_tombstones(const Tombstone& tombstone) {
  for (const Member& member : members_) {
    record_.tombstones.token_ended(member.token, tombstone);
    if (member.former_token != 0) record_.tombstones.token_ended(member.former_token, tombstone);
    if (!tombstone.left) record_.tombstones.ended(member.nonce, tombstone.why);
  }
  record_.tombstones.ended(session_.generation, tombstone.left
                                                    ? AbortInfo{AbortReason::kGenerationOver}
                                                    : tombstone.why);
}

}  // namespace sluice::aggregator
