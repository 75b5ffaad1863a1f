// The engine's part that lets ranks and jobs in: who is answered, who has proven what, and what a
// job may take (rules 16 to 20 of docs/protocol.md).
#include <algorithm>
#include <cassert>

#include "aggregator/engine/engine.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/text_field.hpp"

namespace sluice::aggregator {
namespace {

/// Whether a handshake shows the job's secret, and none where we know none: its sender would not
/// believe our answers.
bool is_authentic(const Packet& handshake, const JobProtection& protection) {
  return handshake.is_authenticated() == protection.has_secret() && protection.accepts(handshake);
}

}  // namespace

// --------------------------------------------------------------------------- who is not a member
/// A packet that no member of its job has sent: its sender is told, but not too often.
DropReason Engine::on_unknown(Job* job, const Endpoint& from, const Packet& packet, Time now) {
  if (!unproven_replies_.take(from, now)) return DropReason::kRateLimited;
  if (job != nullptr) {
    job->membership.answer_unknown(from, packet, control_);
    return DropReason::kUnknownToken;
  }
  if (const auto refused = refusal_of(from, packet, config_))
    control_.push(from, *refused, config_.protection_of(packet.job()));
  return DropReason::kUnknownJob;
}

/// A live job's own, or that of a job which may come.
JobProtection Engine::protection_of(std::uint32_t id) {
  const Job* job = find(id);
  return job != nullptr && !job->membership.idle() ? job->membership.record().protection
                                                   : config_.protection_of(id);
}

/// Who does not share the job's secret is told so, without any proof on our side.
template <class T>
void Engine::tell_not_authentic(const Endpoint& from, const Packet& packet,
                                const JobProtection& protection) {
  const auto& handshake = packet.as<T>();
  const LackOfSecret lack = !protection.has_secret()     ? LackOfSecret::kAggregator
                            : !packet.is_authenticated() ? LackOfSecret::kRank
                                                         : LackOfSecret::kNeither;
  const AbortInfo why{.reason = wire::AbortReason::kNotAuthenticated,
                      .rank_a = Rank{handshake.rank},
                      .value_a = static_cast<std::uint64_t>(lack)};
  control_.push(from, to_packet(why, packet.job(), 0, handshake.nonce),
                JobProtection(config_.integrity, nullptr, packet.job()));
  tell_refused(packet.job(), why);
}

/// Who says HELLO in a version that we do not speak is told so, without any proof, and with a
/// CRC32C wherever it is: what it demands is not known.
void Engine::tell_versions(const Endpoint& from, std::span<const std::byte> datagram, Time now) {
  const auto hello = hello_of_another_version(datagram);
  if (!hello || !unproven_replies_.take(from, now)) return;
  auto versions = wire::make<wire::Versions>(hello->job);
  versions.nonce = hello->nonce;
  versions.lowest = versions.highest = wire::kVersion;
  control_.push(from, versions, JobProtection(true, nullptr, hello->job));
}

DropReason Engine::on_hello(const Endpoint& from, const Packet& packet, Time now) {
  const JobProtection protection = protection_of(packet.job());
  const bool authentic = is_authentic(packet, protection);
  const bool proven = authentic && protection.has_secret();
  if (!(proven ? proven_replies_ : unproven_replies_).take(from, now))
    return DropReason::kRateLimited;
  if (!authentic) {
    tell_not_authentic<wire::Hello>(from, packet, protection);
    return DropReason::kNotAuthentic;
  }
  const auto& hello = packet.as<wire::Hello>();
  auto challenge = wire::make<wire::Challenge>(packet.job());
  challenge.nonce = hello.nonce;
  challenge.incarnation = config_.incarnation;
  challenge.serial = serials_.next();
  challenge.challenge = challenge_cookie(config_.challenge_key, packet.job(), hello.nonce,
                                         challenge.serial, hello.rank, from);
  challenge.lanes = config_.lanes;
  if (config_.source_ports)
    std::ranges::copy(config_.source_ports(from, Rank{hello.rank}), challenge.source_ports.begin());
  control_.push(from, challenge, protection);
  return DropReason::kNone;
}

DropReason Engine::on_join(const Endpoint& from, const Packet& packet, Time now) {
  const auto& join = packet.as<wire::Join>();
  if (join.incarnation != config_.incarnation) return DropReason::kWrongIncarnation;
  const Cookie ours = challenge_cookie(config_.challenge_key, packet.job(), join.nonce, join.serial,
                                       join.rank, from);
  if (!equal(ours, join.challenge)) return DropReason::kBadChallenge;
  if (!proven_replies_.take(from, now)) return DropReason::kRateLimited;
  const JobProtection protection = protection_of(packet.job());
  if (!is_authentic(packet, protection)) {
    tell_not_authentic<wire::Join>(from, packet, protection);
    return DropReason::kNotAuthentic;
  }
  Job* job = admit(from, join, protection);
  if (job == nullptr) return DropReason::kBadJoin;
  const DropReason drop = job->membership.on_join(from, join, now, control_);
  settle(*job, now);
  deadline_ = std::min(deadline_, job->membership.next_deadline());
  return drop;
}

/// The job to join: known, or new if there is room for one more. None for a JOIN that is refused
/// whoever else comes, so that such leave nothing behind.
Engine::Job* Engine::admit(const Endpoint& from, const wire::Join& join,
                           const JobProtection& protection) {
  Job* known = find(join.header.job);
  auto refusal = Formation::invalid(join, config_, protection);
  if (!refusal && (known == nullptr || known->membership.idle())) refusal = no_room(join);
  if (refusal) {
    ++counters_.joins_refused;
    control_.push(from, to_packet(*refusal, join.header.job, join.generation, join.nonce),
                  protection);
    tell_refused(join.header.job, refusal, text_of(join.name));
    return nullptr;
  }
  if (known != nullptr) return known;
  forget_idle_jobs();
  auto job = std::make_unique<Job>(config_, serials_, join.header.job, buffers_claimed_);
  return (jobs_[join.header.job] = std::move(job)).get();
}

/// Why no further job may begin, if so. One that was at another aggregator of this shard is not
/// new, nor is one that the daemon's first lane has taken in.
std::optional<AbortInfo> Engine::no_room(const wire::Join& join) const {
  const bool is_first_lane = config_.shard < config_.shards / config_.lanes;
  const bool is_known = join.epoch != 0 || (join.generation != 0 && !is_first_lane);
  if (closed_ && !is_known) return AbortInfo{.reason = wire::AbortReason::kShuttingDown};
  if (live_jobs() < config_.jobs_max) return std::nullopt;
  return AbortInfo{.reason = wire::AbortReason::kTooManyJobs, .value_b = config_.jobs_max};
}

/// Why a session would take more than its job may, or more than other jobs have left.
std::optional<AbortInfo> Engine::too_large(const Session& session) const {
  const std::size_t streams = session.streams_of(session.shard);
  const std::size_t bytes = job_bytes(session);
  const std::size_t buffers = streams * stream_buffers(session);
  const std::size_t buffers_left = config_.buffers_max - buffers_claimed_;
  AbortInfo refusal{.reason = wire::AbortReason::kRefusedSetting, .field = wire::Field::kMemory};
  if (bytes > config_.job_memory_bytes_max) {
    refusal.value_a = (bytes >> 20) + 1;
    refusal.value_b = config_.job_memory_bytes_max >> 20;
  } else if (buffers > buffers_left) {
    refusal.value_a = ((buffers * session.payload_bytes) >> 20) + 1;
    refusal.value_b = (buffers_left * session.payload_bytes) >> 20;
  } else {
    return std::nullopt;
  }
  return refusal;
}

/// Takes the memory that the streams of a job which has formed will need, so that no packet has to.
/// False: that is too much, and the job is over.
bool Engine::take_memory(Job& job, Time now) {
  const Session& session = job.membership.roster().session();
  const std::size_t streams = session.streams_of(session.shard);
  if (const auto refusal = too_large(session)) {
    job.membership.abort(*refusal, control_);
    return false;
  }
  job.buffers_claimed = streams * stream_buffers(session);
  buffers_claimed_ += job.buffers_claimed;
  assert(job.streams.empty() && buffers_claimed_ <= config_.buffers_max);
  job.window.begin(session.ranks);
  job.counters = {};
  job.streams.reserve(streams);
  for (std::uint16_t s = session.shard; s < session.streams;
       s = static_cast<std::uint16_t>(s + session.shards))
    job.streams.emplace_back(session, StreamId{s}, job.membership.roster().resumed(), now);
  job.rounds_seen.assign(job.streams.size(), std::nullopt);
  if (config_.straggler_warning.count() != 0)
    job.stragglers_due = after(now, config_.straggler_warning);
  return true;
}

/// Ended jobs are kept for their tombstones, up to a bound: then the half that ended first goes,
/// and all joins that they saw are void.
void Engine::forget_idle_jobs() {
  if (jobs_.size() < limits::kMaxEndedJobs + config_.jobs_max) return;
  std::vector<std::uint64_t> ends;
  for (const auto& [id, job] : jobs_)
    if (job->membership.idle() && job->membership.record().remembers())
      ends.push_back(job->membership.record().mark());
  const auto middle = ends.begin() + static_cast<std::ptrdiff_t>(ends.size() / 2);
  if (middle != ends.end()) std::nth_element(ends.begin(), middle, ends.end());
  const bool crowded = ends.size() >= limits::kMaxEndedJobs;
  std::erase_if(jobs_, [&](const auto& entry) {
    const Membership& membership = entry.second->membership;
    if (!membership.idle()) return false;
    return !membership.record().remembers() || (crowded && membership.record().mark() <= *middle);
  });
  serials_.forget();
}

}  // namespace sluice::aggregator
