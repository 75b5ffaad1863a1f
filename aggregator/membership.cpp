#include "aggregator/membership.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "aggregator/stream_memory.hpp"

namespace sluice::aggregator {
namespace {

using wire::AbortReason;
using wire::Field;

constexpr std::size_t kFewestStreams = 8;  // fewer leave a rank waiting for each round
constexpr int kSilentIntervals = 3;        // of KEEPALIVE, until a contended member counts as gone
constexpr int kForgottenAfter = 4;         // of KEEPALIVE, without a JOIN from somebody who waits
constexpr int kFreshFor = 2;               // a JOIN, for a job to form with it
constexpr std::uint64_t kSignsOfLife = 2;  // one may have been under way when it died

AbortInfo about(AbortReason reason, Rank rank, std::uint64_t value = 0) {
  AbortInfo info;
  info.reason = reason;
  info.rank_a = rank;
  info.value_a = value;
  return info;
}

std::uint64_t milliseconds(Duration d) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(d).count());
}

AbortInfo refusal(Field field, std::uint64_t asked, std::uint64_t limit) {
  AbortInfo info;
  info.reason = AbortReason::kRefusedSetting;
  info.field = field;
  info.value_a = asked;
  info.value_b = limit;
  return info;
}

/// Whether the worker has applied results of a life of the job.
bool has_progress(const wire::Join& join) {
  return join.generation != 0 && (join.flags & wire::kJoinVirgin) == 0;
}

}  // namespace

std::optional<wire::Refused> refusal_of(const Packet& packet, const EngineConfig& config) {
  if (packet.kind() != wire::Kind::kKeepAlive) return std::nullopt;
  auto refused = wire::make<wire::Refused>(packet.job());
  refused.token = packet.member().token;
  refused.incarnation = config.incarnation;
  refused.number = packet.as<wire::KeepAlive>().number;
  refused.shard = config.shard;
  return refused;
}

// -------------------------------------------------------------------------------------- joining
DropReason Membership::on_join(const Endpoint& from, const wire::Join& join, Time now,
                               ControlPackets& out) {
  if (idle()) protection_ = config_.protection_of(job_);  // the secret may be another by now
  return active() ? join_active(from, join, now, out) : join_forming(from, join, now, out);
}

std::optional<AbortInfo> Membership::invalid(const wire::Join& join, const EngineConfig& config,
                                             const JobProtection& protection) {
  if (join.world_size == 0 || join.world_size > kMaxRanks)
    return refusal(Field::kWorldSize, join.world_size, kMaxRanks);
  if (join.rank >= join.world_size) return refusal(Field::kRank, join.rank, join.world_size - 1u);
  if (join.shard != config.shard) return refusal(Field::kShard, join.shard, config.shard);
  if (join.shards != config.shards) return refusal(Field::kShards, join.shards, config.shards);
  if (join.streams > config.streams_max)
    return refusal(Field::kStreams, join.streams, config.streams_max);
  if (join.history != 0 &&
      (join.history < 2 || join.history > wire::kMaxHistory || !std::has_single_bit(join.history)))
    return refusal(Field::kHistory, join.history, wire::kMaxHistory);
  if (join.block_elements == 0 || join.block_elements > wire::kMaxBlockElements)
    return refusal(Field::kBlockElements, join.block_elements, wire::kMaxBlockElements);
  if ((join.flags & wire::kJoinAuthenticate) != 0 && !protection.has_secret())
    return about(AbortReason::kNotAuthenticated, Rank{join.rank});
  if (join.payload_bytes < wire::kMinPayload)
    return refusal(Field::kPayloadBytes, join.payload_bytes, wire::kMinPayload);
  if (config.shard != 0 || join.generation != 0) {  // decided already: it holds or it does not
    if (join.streams == 0) return refusal(Field::kStreams, 0, config.streams_max);
    if (join.history == 0) return refusal(Field::kHistory, 0, wire::kMaxHistory);
    if (join.payload_bytes > config.payload_bytes)
      return refusal(Field::kPayloadBytes, join.payload_bytes, config.payload_bytes);
  }
  return std::nullopt;
}

/// Where the join contradicts those of the ranks that wait already.
std::optional<AbortInfo> Membership::disagrees(const wire::Join& join) const {
  for (const auto& [rank, candidate] : candidates_) {
    const wire::Join& other = candidate.join;
    if (rank == join.rank) continue;
    const bool same_life = other.generation == join.generation;
    const auto wants = [&](std::uint64_t own, std::uint64_t others) {  // 0: what the other wants
      return same_life || (own != 0 && others != 0);
    };
    const struct {
      Field field;
      std::uint64_t other, own;
    } comparisons[] = {
        {Field::kWorldSize, other.world_size, join.world_size},
        {Field::kBlockElements, other.block_elements, join.block_elements},
        {Field::kStreams, other.streams, join.streams},
        {Field::kHistory, other.history, join.history},
    };
    for (const auto& c : comparisons)
      if (c.other != c.own && wants(c.own, c.other))
        return AbortInfo{
            AbortReason::kJoinMismatch, c.field, Rank{rank}, Rank{join.rank}, c.other, c.own, 0};
  }
  return std::nullopt;
}

DropReason Membership::join_active(const Endpoint& from, const wire::Join& join, Time now,
                                   ControlPackets& out) {
  if (join.world_size != session_.ranks) {
    refuse(from, join,
           AbortInfo{AbortReason::kJoinMismatch, Field::kWorldSize, Rank{0}, Rank{join.rank},
                     session_.ranks, join.world_size, 0},
           out);
    return DropReason::kBadJoin;
  }
  const Rank rank{join.rank};
  Member& member = members_[rank.value];
  if (!present_.contains(rank)) {  // it left and comes back before the others have left
    pend(from, join, out);
    return DropReason::kNone;
  }
  if (member.nonce == join.nonce) {
    welcome(rank, out);
    return DropReason::kNone;
  }
  if (join.serial <= member.serial) return DropReason::kStaleJoin;

  if (is_another_process(join)) {
    abort(about(AbortReason::kRankRestarted, rank), out);
    told_again(from, join, out);
    return DropReason::kBadJoin;
  }
  if (went_on_elsewhere(join)) {
    dissolve();
    return join_forming(from, join, now, out);
  }
  if (join.generation != 0 && join.generation == session_.generation) {
    rebind(rank, from, join, now, out);
    return DropReason::kNone;
  }
  if (config_.shard == 0) return contend(from, join, now, out);
  // Shard 0 has begun another life. Ours ends when all have heard of it, which they tell by
  // joining.
  return join_forming(from, join, now, out);
}

/// Whether a rank comes from another epoch of this life, or has made progress that it cannot have
/// made here: all were welcomed at another aggregator, since or at the same time, and went there.
bool Membership::went_on_elsewhere(const wire::Join& join) const {
  if (join.generation == session_.generation)
    return join.epoch != 0 && join.epoch != session_.epoch;
  return has_progress(join) && !resumed_ && config_.shard == 0 &&
         std::none_of(members_.begin(), members_.end(),
                      [](const Member& member) { return member.spoke; });
}

/// Whether somebody names this life who was never welcomed to it, while the member was: shard 0 had
/// not heard the member, and gave its place to another process.
bool Membership::is_another_process(const wire::Join& join) const {
  return join.generation == session_.generation && join.epoch == 0 && members_[join.rank].spoke;
}

/// Another process, or another attempt of the same one, takes the member's place. With a new token
/// whatever was said of the old one, and recorded, is void.
void Membership::rebind(Rank r, const Endpoint& to, const wire::Join& join, Time now,
                        ControlPackets& out) {
  Member& member = members_[r.value];
  member.nonce = join.nonce;
  member.serial = join.serial;
  member.former_token = std::exchange(member.token, config_.unique());
  member.seen = now;
  endpoints_[r.value] = to;
  welcome(r, out);
}

/// The member's place is asked for by somebody else: its next signs of life decide.
DropReason Membership::contend(const Endpoint& from, const wire::Join& join, Time now,
                               ControlPackets& out) {
  if (told_again(from, join, out)) return DropReason::kBadJoin;
  if (join.serial <= mark_) return DropReason::kStaleJoin;
  Member& member = members_[join.rank];
  if (!member.contender || member.contender->join.nonce != join.nonce)
    member.contender = Contender{from, join, now, member.keep_alive};
  member.contender->join.serial = join.serial;
  pend(from, join, out);
  return DropReason::kNone;
}

/// When a contended member that stays silent counts as gone.
Time Membership::contention_ends(const Member& member) const {
  return after(std::max(member.contender->since, member.seen),
               kSilentIntervals * config_.keep_alive_interval());
}

/// Who lost its place to a living member is refused; a member that fell silent has restarted. One
/// that was never heard has not begun: its place is free, unless it holds progress made elsewhere.
bool Membership::settle_contention(Time now, ControlPackets& out) {
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    Member& member = members_[r];
    if (!member.contender) continue;
    const Contender contender = *member.contender;
    const std::uint64_t signs = member.keep_alive - contender.keep_alive_at_start;
    if (signs >= kSignsOfLife) {
      member.contender.reset();
      tombstones_.ended(contender.join.nonce, about(AbortReason::kDuplicateRank, Rank{r}));
      told_again(contender.endpoint, contender.join, out);
    } else if (now < contention_ends(member)) {
      continue;
    } else if (!member.spoke && !resumed_ && !has_progress(contender.join)) {
      const AbortInfo why = about(AbortReason::kDuplicateRank, Rank{r});
      tombstones_.token_ended(member.token,
                              {.left = false, .generation = session_.generation, .why = why});
      tombstones_.ended(member.nonce, why);
      member.contender.reset();
      rebind(Rank{r}, contender.endpoint, contender.join, now, out);
      member.former_token = 0;  // of another process
    } else {
      abort(about(AbortReason::kRankRestarted, Rank{r}), out);
      candidates_[r] = Candidate{contender.endpoint,
                                 contender.join,
                                 contender.join.nonce,
                                 contender.join.serial,
                                 now,
                                 now};
      if (complete(now)) form(now, out);
      return true;
    }
  }
  return false;
}

DropReason Membership::join_forming(const Endpoint& from, const wire::Join& join, Time now,
                                    ControlPackets& out) {
  if (join.serial <= mark_) return DropReason::kStaleJoin;
  if (told_again(from, join, out)) return DropReason::kBadJoin;
  if (config_.shard != 0)  // who still speaks of another life will come again
    std::erase_if(candidates_, [&](const auto& entry) {
      return entry.second.join.generation != join.generation;
    });
  const auto found = candidates_.find(join.rank);
  if (found != candidates_.end()) {
    Candidate& held = found->second;
    if (join.serial < held.latest_serial) return DropReason::kStaleJoin;
    if (held.join.nonce != join.nonce && held.first_nonce == join.nonce) {
      // The first process is alive after the second one came: two have one number.
      tombstones_.ended(held.join.nonce, about(AbortReason::kDuplicateRank, Rank{join.rank}));
      told_again(held.endpoint, held.join, out);
    }
  }
  if (const auto disagreement = disagrees(join)) {
    candidates_[join.rank] = Candidate{from, join, join.nonce, join.serial, now, now};
    dismiss_candidates(*disagreement, out);
    return DropReason::kBadJoin;
  }
  Candidate& mine = candidates_[join.rank];
  if (mine.join.nonce != join.nonce) mine.since = now;
  mine.seen = now;
  mine.endpoint = from;
  mine.join = join;
  mine.latest_serial = join.serial;
  if (mine.first_nonce == 0) mine.first_nonce = join.nonce;
  end_broken_lives(out);
  if (candidates_.count(join.rank) == 0) return DropReason::kBadJoin;
  if (!complete(now)) {
    pend(from, join, out);
    return DropReason::kNone;
  }
  form(now, out);
  return DropReason::kNone;
}

/// Whoever has made progress can only go on with all others of that life: if some rank comes
/// without it, what that rank had is lost (rule 18). Only a JOIN that was asked for after the
/// others had come shows that: an earlier one may be what that very rank sent before the life
/// began.
void Membership::end_broken_lives(ControlPackets& out) {
  while (const auto rank = stranger()) {
    if (!conflict_serial_) conflict_serial_ = serials_.newest();
    if (candidates_[rank->value].join.serial <= *conflict_serial_) return;
    end_generation(holder()->join.generation, about(AbortReason::kRankRestarted, *rank), out);
  }
  conflict_serial_.reset();
}

/// Somebody who has made progress; null: nobody has.
const Membership::Candidate* Membership::holder() const {
  const auto found = std::find_if(candidates_.begin(), candidates_.end(), [](const auto& entry) {
    return has_progress(entry.second.join);
  });
  return found == candidates_.end() ? nullptr : &found->second;
}

/// A rank that comes from another life than the holder, if there is one of each.
std::optional<Rank> Membership::stranger() const {
  const Candidate* const held = holder();
  if (held == nullptr) return std::nullopt;
  const auto found = std::find_if(candidates_.begin(), candidates_.end(), [&](const auto& entry) {
    return entry.second.join.generation != held->join.generation;
  });
  return found == candidates_.end() ? std::nullopt : std::optional(Rank{found->first});
}

/// Whether all candidates name the same generation, or none does.
bool Membership::same_generation() const {
  const std::uint64_t generation = candidates_.begin()->second.join.generation;
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [&](const auto& entry) { return entry.second.join.generation == generation; });
}

/// A life that cannot go on: also the ranks that have made no progress in it are told.
void Membership::end_generation(std::uint64_t generation, const AbortInfo& why,
                                ControlPackets& out) {
  tombstones_.ended(generation, why);
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    const bool of_it = it->second.join.generation == generation;
    if (of_it) refuse(it->second.endpoint, it->second.join, why, out);
    it = of_it ? candidates_.erase(it) : std::next(it);
  }
}

/// All are there and go together: ranks of different lives, too, if none has made progress. What
/// one of them said a while ago may be true no more: it may be in at another aggregator by now.
bool Membership::complete(Time now) const {
  if (conflict_serial_ || candidates_.empty()) return false;
  if (candidates_.size() != candidates_.begin()->second.join.world_size) return false;
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [&](const auto& entry) { return is_fresh(entry.second, now); });
}

bool Membership::is_fresh(const Candidate& candidate, Time now) const {
  return now - candidate.seen <= kFreshFor * config_.keep_alive_interval();
}

/// Of a job that asks for no number, once its ranks and payload are known.
std::uint16_t Membership::default_streams() const {
  const auto is_far = [](const Endpoint& endpoint) { return endpoint.off_machine; };
  std::size_t streams = config_.streams;
  if (std::none_of(endpoints_.begin(), endpoints_.end(), is_far)) {
    const std::size_t round_bytes = std::size_t{session_.ranks} * session_.payload_bytes;
    const std::size_t fitting = config_.local_window_bytes / round_bytes;
    streams = std::min(streams, std::max({kFewestStreams, std::size_t{config_.shards}, fitting}));
  }
  return static_cast<std::uint16_t>(std::min(streams, streams_with_room()));
}

/// Of all shards, if they have as much room as this one: the job takes half of the packet buffers
/// that are left, and more only for the fewest streams that keep its ranks busy.
std::size_t Membership::streams_with_room() const {
  const std::size_t left = config_.buffers_max - buffers_claimed_;
  const std::size_t all = left / stream_buffers(session_);
  const std::size_t fewest = (kFewestStreams + config_.shards - 1) / config_.shards;
  const std::size_t in_pool = std::max(all / 2, std::min(all, fewest));
  const std::size_t here = std::min(in_pool, config_.job_memory_bytes_max / stream_bytes(session_));
  return std::max<std::size_t>(here, 1) * config_.shards;  // who has room for none is refused
}

void Membership::form(Time now, ControlPackets& out) {
  if (active()) {
    const AbortInfo over;  // all ranks have moved on: there is nobody to tell
    end({.left = false, .generation = session_.generation, .why = over});
  }
  const wire::Join& any = candidates_.begin()->second.join;
  session_ = Session();
  session_.job = job_;
  session_.ranks = any.world_size;
  session_.streams = 0;
  session_.history = config_.history;
  session_.block_elements = any.block_elements;
  session_.payload_bytes = config_.payload_bytes;
  session_.shard = config_.shard;
  session_.shards = config_.shards;
  session_.generation =
      same_generation() && any.generation != 0 ? std::uint64_t{any.generation} : config_.unique();
  resumed_ = holder() != nullptr;
  session_.epoch = config_.unique();
  session_.delivery_token = config_.unique();
  session_.authenticated = config_.authenticate_packets && protection_.has_secret();
  members_.assign(session_.ranks, Member());
  endpoints_.assign(session_.ranks, Endpoint());
  present_ = RankSet::first(session_.ranks);
  for (const auto& [rank, candidate] : candidates_) {
    if (candidate.join.streams != 0) session_.streams = candidate.join.streams;
    if (candidate.join.history != 0) session_.history = candidate.join.history;
    session_.payload_bytes =
        std::min<std::uint16_t>(session_.payload_bytes, candidate.join.payload_bytes);
    session_.authenticated |= (candidate.join.flags & wire::kJoinAuthenticate) != 0;
    Member& member = members_[rank];
    member.nonce = candidate.join.nonce;
    member.serial = candidate.join.serial;
    member.token = config_.unique();
    member.seen = now;
    endpoints_[rank] = candidate.endpoint;
  }
  if (session_.streams == 0) session_.streams = default_streams();
  protection_.begin_session(session_);
  candidates_.clear();
  conflict_serial_.reset();
  mark_ = serials_.newest();
  formed_at_ = now;
  welcome_due_ = after(now, config_.keep_alive_interval());
  state_ = State::kActive;
  events_.push_back(
      {.kind = resumed_ ? JobEvent::Kind::kResumed : JobEvent::Kind::kFormed, .session = session_});
  for (std::uint16_t r = 0; r < session_.ranks; ++r) welcome(Rank{r}, out);
}

/// To those who were never heard: their WELCOME may be lost, and they may ask elsewhere by now.
void Membership::repeat_welcomes(Time now, ControlPackets& out) {
  welcome_due_ = kNever;
  present_.for_each([&](Rank r) {
    if (members_[r.value].spoke) return;
    welcome(r, out);
    welcome_due_ = after(now, config_.keep_alive_interval());
  });
}

void Membership::welcome(Rank r, ControlPackets& out) const {
  auto packet = wire::make<wire::Welcome>(job_);
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
  packet.flags =
      static_cast<std::uint8_t>((resumed_ ? wire::kWelcomeResume : 0) |
                                (session_.authenticated ? wire::kWelcomeAuthenticate : 0));
  packet.keep_alive_ms = static_cast<std::uint16_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(config_.keep_alive_interval()).count());
  out.push(endpoints_[r.value], packet, protection_);
}

void Membership::pend(const Endpoint& to, const wire::Join& join, ControlPackets& out) const {
  auto packet = wire::make<wire::Pending>(job_);
  packet.nonce = join.nonce;
  packet.serial = join.serial;
  RankSet absent;
  if (candidates_.count(join.rank) != 0)
    RankSet::first(join.world_size).for_each([&](Rank r) {
      if (candidates_.count(r.value) == 0) absent.insert(r);
    });
  packet.absent = absent.to_bytes();
  out.push(to, packet, protection_);
}

/// Whether the join speaks of something that has ended; then it is told why.
bool Membership::told_again(const Endpoint& from, const wire::Join& join, ControlPackets& out) {
  const AbortInfo* const why = tombstones_.why_over(join);
  if (why == nullptr) return false;
  refuse(from, join, *why, out);
  return true;
}

void Membership::refuse(const Endpoint& to, const wire::Join& join, const AbortInfo& info,
                        ControlPackets& out) {
  JobEvent event{.kind = JobEvent::Kind::kRefused, .reason = info};
  event.session.job = job_;
  events_.push_back(event);
  out.push(to, to_packet(info, job_, join.generation, join.nonce), protection_);
}

// ------------------------------------------------------------------------------- being a member
std::optional<Rank> Membership::find(const wire::MemberHeader& member) const {
  if (!active() || member.rank >= session_.ranks || member.token == 0) return std::nullopt;
  const Member& known = members_[member.rank];
  if (member.token != known.token && member.token != known.former_token) return std::nullopt;
  return Rank{member.rank};
}

bool Membership::is_token_of_member(std::uint64_t token) const {
  return active() && std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
           return token == member.token || token == member.former_token;
         });
}

/// Nothing if the answer is longer than the packet: a KEEPALIVE, which is long enough, will follow.
void Membership::answer_unknown(const Endpoint& from, const Packet& packet,
                                ControlPackets& out) const {
  const std::uint64_t token = packet.member().token;
  if (is_token_of_member(token)) return;
  const Tombstone* const ended = tombstones_.of_token(token);
  if (ended == nullptr) {
    if (const auto refused = refusal_of(packet, config_)) out.push(from, *refused, protection_);
  } else if (ended->left) {
    auto left = wire::make<wire::Left>(job_);
    left.token = token;
    out.push(from, left, protection_);
  } else if (packet.bytes().size() >= sizeof(wire::Abort) + wire::kTrailerBytes) {
    out.push(from, to_packet(ended->why, job_, ended->generation, 0), protection_);
  }
}

void Membership::on_keep_alive(Rank r, std::uint64_t number, Time now, ControlPackets& out) {
  Member& member = members_[r.value];
  if (number > member.keep_alive) {
    member.keep_alive = number;
    member.seen = now;
  }
  auto ack = wire::make<wire::KeepAliveAck>(job_);
  ack.epoch = session_.epoch;
  ack.number = number;
  ack.delivery_token = session_.delivery_token;
  out.push(endpoints_[r.value], ack, protection_);
}

void Membership::on_leave(Rank r, std::uint64_t token, bool may_leave, ControlPackets& out) {
  if (present_.contains(r)) {
    if (!may_leave) return;
    present_.erase(r);
    members_[r.value].contender.reset();  // it may come when the others have left, too
  }
  auto left = wire::make<wire::Left>(job_);
  left.token = token;
  out.push(endpoints_[r.value], left, protection_);
  if (present_.empty()) end({.left = true, .generation = session_.generation});
}

// --------------------------------------------------------------------------------------- the end
void Membership::on_time(Time now, ControlPackets& out) {
  if (active()) {
    for (std::uint16_t r = 0; r < session_.ranks; ++r) {
      const Duration silence = now - members_[r].seen;
      if (!present_.contains(Rank{r}) || silence < config_.liveness_timeout) continue;
      abort(about(AbortReason::kRankSilent, Rank{r}, milliseconds(silence)), out);
      return;
    }
    if (settle_contention(now, out)) return;
    if (now >= welcome_due_) repeat_welcomes(now, out);
    if (now >= all_must_have_spoken()) {
      dissolve();
      mark_ = serials_.newest();
      return;
    }
  }
  forget_absentees(now);
  if (now >= formation_ends()) {
    dismiss_candidates(why_not_formed(now), out);
  }
}

/// A job with standbys may have been resumed here with a rank that went to another aggregator in
/// the same moment. Such a formation does as if it had been killed: its ranks are refused and join
/// anew, all at the first aggregator that answers.
Time Membership::all_must_have_spoken() const {
  const bool all = !resumed_ || std::all_of(members_.begin(), members_.end(),
                                            [](const Member& member) { return member.spoke; });
  return all ? kNever : after(formed_at_, kSilentIntervals * config_.keep_alive_interval());
}

/// Who conflicts with the others, or else who has not come. If all have, it is who has not said so
/// lately: ranks of different lives are believed only together.
AbortInfo Membership::why_not_formed(Time now) const {
  RankSet absent = RankSet::first(candidates_.begin()->second.join.world_size);
  for (const auto& entry : candidates_) absent.erase(Rank{entry.first});
  if (absent.empty()) {
    if (const auto rank = stranger()) return about(AbortReason::kRankRestarted, *rank);
    for (const auto& [rank, candidate] : candidates_)
      if (!is_fresh(candidate, now)) absent.insert(Rank{rank});
  }
  if (holder() != nullptr)
    return about(AbortReason::kRankSilent, Rank{absent.lowest()},
                 milliseconds(now - forming_since()));
  return about(AbortReason::kAbsent, Rank{absent.lowest()}, absent.size());
}

/// Since when somebody waits for others: of a life that has made progress, its ranks. Another may
/// only seem to wait, by a packet that came late.
Time Membership::forming_since() const {
  const Candidate* const held = holder();
  Time since = kNever;
  for (const auto& [rank, candidate] : candidates_)
    if (held == nullptr || candidate.join.generation == held->join.generation)
      since = std::min(since, candidate.since);
  return since;
}

/// Who waits repeats its JOIN. Who does not has gone elsewhere, perhaps to the aggregator that this
/// one stands by for, and must not be counted on.
void Membership::forget_absentees(Time now) {
  std::erase_if(candidates_, [&](const auto& entry) { return now >= forgotten_at(entry.second); });
}

Time Membership::forgotten_at(const Candidate& candidate) const {
  return after(candidate.seen, kForgottenAfter * config_.keep_alive_interval());
}

/// Those who come back to a life that has made progress were there a moment ago: who is not among
/// them by the liveness time-out is lost.
Time Membership::formation_ends() const {
  if (candidates_.empty()) return kNever;
  return after(forming_since(),
               holder() != nullptr ? config_.liveness_timeout : config_.formation_timeout);
}

Time Membership::next_deadline() const {
  Time next = formation_ends();
  for (const auto& entry : candidates_) next = std::min(next, forgotten_at(entry.second));
  if (!active()) return next;
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    const Member& member = members_[r];
    if (present_.contains(Rank{r}))
      next = std::min(next, after(member.seen, config_.liveness_timeout));
    if (member.contender) next = std::min(next, contention_ends(member));
  }
  return std::min({next, all_must_have_spoken(), welcome_due_});
}

void Membership::excuse_pause(Duration pause) {
  formed_at_ += pause;
  for (Member& member : members_) {
    member.seen += pause;
    if (member.contender) member.contender->since += pause;
  }
  for (auto& [rank, candidate] : candidates_) {
    candidate.since += pause;
    candidate.seen += pause;
  }
}

void Membership::on_hang_up(std::uint16_t port_id, Time now, ControlPackets& out) {
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    if (it->second.endpoint.port_id != port_id) {
      ++it;
      continue;
    }
    const AbortInfo why =
        about(AbortReason::kRankHungUp, Rank{it->first}, milliseconds(now - it->second.seen));
    const bool held_progress = has_progress(it->second.join);
    it = candidates_.erase(it);
    if (!held_progress) continue;
    dismiss_candidates(why, out);
    break;
  }
  if (!active()) return;
  for (std::uint16_t r = 0; r < session_.ranks; ++r) {
    Member& member = members_[r];
    if (member.contender && member.contender->endpoint.port_id == port_id) member.contender.reset();
    if (endpoints_[r].port_id != port_id || !present_.contains(Rank{r})) continue;
    present_.erase(Rank{r});  // nobody is there to be told
    abort(about(AbortReason::kRankHungUp, Rank{r}, milliseconds(now - member.seen)), out);
    return;
  }
}

void Membership::abort(const AbortInfo& info, ControlPackets& out, std::optional<Rank> told_by) {
  if (active()) {
    present_.for_each([&](Rank r) {
      out.push(endpoints_[r.value], to_packet(info, job_, session_.generation, 0), protection_);
    });
    end({.left = false, .generation = session_.generation, .why = info}, told_by);
  } else {
    dismiss_candidates(info, out);
  }
}

void Membership::dismiss_candidates(const AbortInfo& info, ControlPackets& out) {
  for (const auto& entry : candidates_) {
    const wire::Join& join = entry.second.join;
    tombstones_.ended(join.nonce, info);
    refuse(entry.second.endpoint, join, info, out);
  }
  candidates_.clear();
  conflict_serial_.reset();
  mark_ = serials_.newest();
}

/// As if this aggregator had been killed: tokens are unknown from now on, and nothing has ended.
void Membership::dissolve() {
  state_ = State::kForming;
  events_.push_back({.kind = JobEvent::Kind::kDissolved, .session = session_});
}

void Membership::end(const Tombstone& tombstone, std::optional<Rank> told_by) {
  for (const Member& member : members_) {
    tombstones_.token_ended(member.token, tombstone);
    if (member.former_token != 0) tombstones_.token_ended(member.former_token, tombstone);
    if (!tombstone.left) tombstones_.ended(member.nonce, tombstone.why);
  }
  tombstones_.ended(session_.generation,
                    tombstone.left ? AbortInfo{AbortReason::kGenerationOver} : tombstone.why);
  JobEvent event{.kind = JobEvent::Kind::kLeft, .session = session_};
  if (!tombstone.left) {
    event.kind = JobEvent::Kind::kAborted;
    event.reason = tombstone.why;
    event.told_by = told_by;
  }
  events_.push_back(event);
  state_ = State::kForming;
  mark_ = serials_.newest();
}

}  // namespace sluice::aggregator
