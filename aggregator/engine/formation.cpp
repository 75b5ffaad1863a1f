#include "aggregator/engine/formation.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <unordered_set>

#include "aggregator/engine/stream_memory.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/text_field.hpp"

namespace sluice::aggregator {
namespace {

using wire::AbortReason;
using wire::Field;

// Both in intervals of KEEPALIVE.
constexpr int kForgottenAfter = 4;  // a candidate that has sent no JOIN for so long
constexpr int kFreshFor = 2;        // a job forms only with JOINs that are not older

AbortInfo refusal(Field field, std::uint64_t asked, std::uint64_t limit) {
  AbortInfo info;
  info.reason = AbortReason::kRefusedSetting;
  info.field = field;
  info.value_a = asked;
  info.value_b = limit;
  return info;
}

}  // namespace

// -------------------------------------------------------------------------------------- joining
std::optional<AbortInfo> Formation::invalid(const wire::Join& join, const EngineConfig& config,
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
  constexpr auto kNeedsSecret = wire::kJoinAuthenticate | wire::kJoinEncrypt;
  if ((join.flags & kNeedsSecret) != 0 && !protection.has_secret())
    return about(AbortReason::kNotAuthenticated, Rank{join.rank});
  if (join.payload_bytes < wire::kMinPayload)
    return refusal(Field::kPayloadBytes, join.payload_bytes, wire::kMinPayload);
  // Another shard, or an earlier formation, has decided these values: we can only accept or refuse.
  if (config.shard != 0 || join.generation != 0) {
    if (join.streams == 0) return refusal(Field::kStreams, 0, config.streams_max);
    if (join.history == 0) return refusal(Field::kHistory, 0, wire::kMaxHistory);
    if (join.payload_bytes > config.payload_bytes)
      return refusal(Field::kPayloadBytes, join.payload_bytes, config.payload_bytes);
  }
  return std::nullopt;
}

/// How the join contradicts those of the ranks that already wait; empty if it does not.
std::optional<AbortInfo> Formation::disagrees(const wire::Join& join) const {
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

DropReason Formation::on_join(const Endpoint& from, const wire::Join& join, Time now,
                              ControlPackets& out) {
  if (record_.is_void(join)) return DropReason::kStaleJoin;
  if (record_.answered_again(from, join, out)) return DropReason::kBadJoin;
  if (config_.shard != 0)  // ranks that named another generation will join again
    std::erase_if(candidates_, [&](const auto& entry) {
      return entry.second.join.generation != join.generation;
    });
  const auto found = candidates_.find(join.rank);
  if (found != candidates_.end()) {
    Candidate& held = found->second;
    if (join.serial < held.latest_serial) return DropReason::kStaleJoin;
    if (held.join.nonce != join.nonce && held.first_nonce == join.nonce) {
      // The first process is alive after the second one came: two processes have one rank.
      record_.tombstones.ended(held.join.nonce,
                               about(AbortReason::kDuplicateRank, Rank{join.rank}));
      record_.answered_again(held.endpoint, held.join, out);
    }
  }
  if (const auto disagreement = disagrees(join)) {
    hold(from, join, now);
    dismiss(*disagreement, out);
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
  return candidates_.count(join.rank) == 0 ? DropReason::kBadJoin : DropReason::kNone;
}

void Formation::hold(const Endpoint& from, const wire::Join& join, Time now) {
  candidates_[join.rank] = Candidate{from, join, join.nonce, join.serial, now, now};
}

RankSet Formation::absent(const wire::Join& join) const {
  RankSet absent;
  if (candidates_.count(join.rank) != 0)
    RankSet::first(join.world_size).for_each([&](Rank r) {
      if (candidates_.count(r.value) == 0) absent.insert(r);
    });
  return absent;
}

/// A rank that has made progress can only go on with all other ranks of its generation. If one of
/// them joins without this generation, its state is lost (rule 18). Only a JOIN whose CHALLENGE was
/// sent after the conflict was seen shows that: the rank may have sent an earlier JOIN before the
/// generation began.
void Formation::end_broken_lives(ControlPackets& out) {
  while (const auto rank = rank_of_other_generation()) {
    if (!conflict_serial_) conflict_serial_ = record_.newest_serial();
    if (candidates_[rank->value].join.serial <= *conflict_serial_) return;
    end_generation(holder()->join.generation, about(AbortReason::kRankRestarted, *rank), out);
  }
  conflict_serial_.reset();
}

/// A candidate that has made progress; null: none has.
const Candidate* Formation::holder() const {
  const auto found = std::find_if(candidates_.begin(), candidates_.end(), [](const auto& entry) {
    return has_progress(entry.second.join);
  });
  return found == candidates_.end() ? nullptr : &found->second;
}

/// A rank that names another generation than the holder; empty if there is no holder or no such
/// rank.
std::optional<Rank> Formation::rank_of_other_generation() const {
  const Candidate* const held = holder();
  if (held == nullptr) return std::nullopt;
  const auto found = std::find_if(candidates_.begin(), candidates_.end(), [&](const auto& entry) {
    return entry.second.join.generation != held->join.generation;
  });
  return found == candidates_.end() ? std::nullopt : std::optional(Rank{found->first});
}

/// Whether all candidates name the same generation, or none does.
bool Formation::same_generation() const {
  const std::uint64_t generation = candidates_.begin()->second.join.generation;
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [&](const auto& entry) { return entry.second.join.generation == generation; });
}

/// Ends a generation that cannot go on. Ranks of it that have made no progress are refused, too.
void Formation::end_generation(std::uint64_t generation, const AbortInfo& why,
                               ControlPackets& out) {
  record_.tombstones.ended(generation, why);
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    const bool of_it = it->second.join.generation == generation;
    if (of_it) record_.refuse(it->second.endpoint, it->second.join, why, out);
    it = of_it ? candidates_.erase(it) : std::next(it);
  }
}

// -------------------------------------------------------------------------------- what they form
bool Formation::complete(Time now) const {
  if (conflict_serial_ || candidates_.empty()) return false;
  if (candidates_.size() != candidates_.begin()->second.join.world_size) return false;
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [&](const auto& entry) { return is_fresh(entry.second, now); });
}

bool Formation::is_fresh(const Candidate& candidate, Time now) const {
  return now - candidate.seen <= kFreshFor * config_.keep_alive_interval();
}

Formation::Agreement Formation::agree(std::size_t buffers_claimed) const {
  const wire::Join& any = candidates_.begin()->second.join;
  Session session;
  session.job = record_.job;
  session.ranks = any.world_size;
  session.streams = 0;
  session.history = 0;
  session.block_elements = any.block_elements;
  session.payload_bytes = config_.payload_bytes;
  session.shard = config_.shard;
  session.shards = config_.shards;
  session.generation =
      same_generation() && any.generation != 0 ? std::uint64_t{any.generation} : config_.unique();
  session.epoch = config_.unique();
  session.delivery_token = config_.unique();
  session.authenticated = config_.authenticate_packets && record_.protection.has_secret();
  session.encrypted = config_.encrypt_packets && record_.protection.has_secret();
  for (const auto& entry : candidates_) {
    const wire::Join& join = entry.second.join;
    if (join.streams != 0) session.streams = join.streams;
    if (join.history != 0) session.history = join.history;
    session.payload_bytes = std::min<std::uint16_t>(session.payload_bytes, join.payload_bytes);
    session.authenticated |= (join.flags & wire::kJoinAuthenticate) != 0;
    session.encrypted |= (join.flags & wire::kJoinEncrypt) != 0;
  }
  session.authenticated |= session.encrypted;
  session.has_hosts = have_hosts_in_common();
  if (session.history == 0) session.history = config_.history;
  if (session.streams == 0) session.streams = default_streams(session, buffers_claimed);
  assert(session.streams >= 1 && session.streams <= limits::kMaxStreams &&
         std::has_single_bit(session.history));
  // A job of two ranks, as a channel, needs no group: at most one rank lacks each result.
  if (session.ranks > 2) session.group = config_.groups.of(session.job);
  return {session, holder() != nullptr};
}

/// Whether two of the candidates are on one host.
bool Formation::have_hosts_in_common() const {
  std::unordered_set<std::uint64_t> hosts;
  return std::any_of(candidates_.begin(), candidates_.end(), [&](const auto& entry) {
    const std::uint64_t host = entry.second.join.host;
    return host != 0 && !hosts.insert(host).second;
  });
}

/// The number of streams of a job that asks for none. The session's ranks and payload must be set.
std::uint16_t Formation::default_streams(const Session& session,
                                         std::size_t buffers_claimed) const {
  const auto is_far = [](const auto& entry) { return entry.second.endpoint.off_machine; };
  std::size_t streams = config_.streams;
  if (std::none_of(candidates_.begin(), candidates_.end(), is_far)) {
    const std::size_t round_bytes = std::size_t{session.ranks} * session.payload_bytes;
    const std::size_t fitting = config_.local_window_bytes / round_bytes;
    streams =
        std::min(streams, std::max({limits::kFewestStreams, std::size_t{config_.shards}, fitting}));
  }
  return static_cast<std::uint16_t>(std::min(streams, streams_with_room(session, buffers_claimed)));
}

/// How many streams of all shards there is room for, if the others have as much as this one. The
/// job takes half of the packet buffers that are left. It takes more only for kFewestStreams, which
/// keep its ranks busy.
std::size_t Formation::streams_with_room(const Session& session,
                                         std::size_t buffers_claimed) const {
  const std::size_t left = config_.buffers_max - buffers_claimed;
  const std::size_t all = left / stream_buffers(session);
  const std::size_t fewest = (limits::kFewestStreams + config_.shards - 1) / config_.shards;
  const std::size_t in_pool = std::max(all / 2, std::min(all, fewest));
  const std::size_t here = std::min(in_pool, config_.job_memory_bytes_max / stream_bytes(session));
  return std::max<std::size_t>(here, 1) * config_.shards;  // without room for one, it is refused
}

std::optional<Formation::OtherBuild> Formation::other_build() const {
  const std::string ours = config_.build.substr(0, wire::kBuildBytes);
  std::optional<OtherBuild> found;
  std::size_t count = 0;
  for (const auto& [rank, candidate] : candidates_) {
    std::string theirs = text_of(candidate.join.build);
    if (ours.empty() || theirs.empty() || theirs == ours) continue;
    ++count;
    if (!found || rank < found->rank.value) found = {Rank{rank}, std::move(theirs)};
  }
  if (found) found->others = count - 1;
  return found;
}

// --------------------------------------------------------------------------------- absent ranks
void Formation::clear() {
  candidates_.clear();
  wait_is_reported_ = false;
  conflict_serial_.reset();
}

void Formation::dismiss(const AbortInfo& info, ControlPackets& out) {
  for (const auto& entry : candidates_) {
    const wire::Join& join = entry.second.join;
    record_.tombstones.ended(join.nonce, info);
    record_.refuse(entry.second.endpoint, join, info, out);
  }
  clear();
  record_.void_joins();
}

/// A waiting rank repeats its JOIN. A rank that does not has gone to another aggregator, perhaps to
/// the one that this is a standby for, and is forgotten.
void Formation::on_time(Time now, ControlPackets& out) {
  std::erase_if(candidates_, [&](const auto& entry) { return now >= forgotten_at(entry.second); });
  if (candidates_.empty()) wait_is_reported_ = false;
  if (now >= wait_is_long()) report_wait();
  if (now >= formation_ends()) dismiss(why_not_formed(now), out);
}

/// When the wait must be reported: once for a formation; never where no rank waits.
Time Formation::wait_is_long() const {
  return candidates_.empty() || wait_is_reported_ ? kNever
                                                  : after(forming_since(), limits::kSilentWait);
}

void Formation::report_wait() {
  wait_is_reported_ = true;
  JobEvent event{.kind = JobEvent::Kind::kWaits};
  event.session.job = record_.job;
  event.absent = RankSet::first(candidates_.begin()->second.join.world_size);
  for (const auto& entry : candidates_) event.absent.erase(Rank{entry.first});
  if (!event.absent.empty()) record_.report(event);
}

/// Names a rank that conflicts with the others, or else the ranks that have not joined. If all
/// have, it names those whose JOINs are not fresh: a job forms only of fresh ones.
AbortInfo Formation::why_not_formed(Time now) const {
  RankSet absent = RankSet::first(candidates_.begin()->second.join.world_size);
  for (const auto& entry : candidates_) absent.erase(Rank{entry.first});
  if (absent.empty()) {
    if (const auto rank = rank_of_other_generation())
      return about(AbortReason::kRankRestarted, *rank);
    for (const auto& [rank, candidate] : candidates_)
      if (!is_fresh(candidate, now)) absent.insert(Rank{rank});
  }
  if (holder() != nullptr)
    return about(AbortReason::kRankSilent, Rank{absent.lowest()}, now - forming_since());
  return about(AbortReason::kAbsent, Rank{absent.lowest()}, absent.size());
}

/// Since when a rank waits for others. If a generation has made progress, only its ranks count: any
/// other rank may only seem to wait, because of a late packet.
Time Formation::forming_since() const {
  const Candidate* const held = holder();
  Time since = kNever;
  for (const auto& [rank, candidate] : candidates_)
    if (held == nullptr || candidate.join.generation == held->join.generation)
      since = std::min(since, candidate.since);
  return since;
}

Time Formation::forgotten_at(const Candidate& candidate) const {
  return after(candidate.seen, kForgottenAfter * config_.keep_alive_interval());
}

/// Ranks that come back to a generation with progress were members a moment ago. So a rank that has
/// not come back within the liveness time-out is lost.
Time Formation::formation_ends() const {
  if (candidates_.empty()) return kNever;
  return after(forming_since(),
               holder() != nullptr ? config_.liveness_timeout : config_.formation_timeout);
}

Time Formation::next_deadline() const {
  Time next = std::min(formation_ends(), wait_is_long());
  for (const auto& entry : candidates_) next = std::min(next, forgotten_at(entry.second));
  return next;
}

void Formation::excuse_pause(Duration pause) {
  for (auto& [rank, candidate] : candidates_) {
    candidate.since += pause;
    candidate.seen += pause;
  }
}

void Formation::on_disconnect(std::uint16_t port_id, Time now, ControlPackets& out) {
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    if (it->second.endpoint.port_id != port_id) {
      ++it;
      continue;
    }
    const AbortInfo why =
        about(AbortReason::kRankDisconnected, Rank{it->first}, now - it->second.seen);
    const bool held_progress = has_progress(it->second.join);
    it = candidates_.erase(it);
    if (!held_progress) continue;
    dismiss(why, out);
    return;
  }
}

}  // namespace sluice::aggregator
