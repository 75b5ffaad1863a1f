#include "aggregator/engine/admission.hpp"

#include <algorithm>
#include <utility>

#include "common/protocol/text_field.hpp"

namespace sluice::aggregator {
namespace {

/// Whether a handshake shows the job's secret. If we know no secret, the handshake must show none:
/// otherwise its sender would not believe our answers.
bool is_authentic(const Packet& handshake, const JobProtection& protection) {
  return handshake.is_authenticated() == protection.has_secret() && protection.accepts(handshake);
}

}  // namespace

// ------------------------------------------------------------------------------------ non-members
DropReason Admission::on_unknown(const Job* job, const Endpoint& from, const Packet& packet,
                                 Time now) {
  if (!unproven_replies_.take(from, now)) return DropReason::kRateLimited;
  if (job != nullptr) {
    job->membership().answer_unknown(from, packet, engine_.control);
    return DropReason::kUnknownToken;
  }
  if (const auto refused = refusal_of(from, packet, engine_.config))
    engine_.control.push(from, *refused, engine_.config.protection_of(packet.job()));
  return DropReason::kUnknownJob;
}

/// The protection of a live job, or the one that a job of this id would get now.
JobProtection Admission::protection_of(std::uint32_t id) const {
  const Job* job = jobs_.find(id);
  return job != nullptr && !job->membership().idle() ? job->membership().record().protection
                                                     : engine_.config.protection_of(id);
}

/// Tells the sender that it does not share the job's secret. This answer proves nothing about us.
template <class T>
void Admission::refuse_unauthentic(const Endpoint& from, const Packet& packet,
                                   const JobProtection& protection) {
  const auto& handshake = packet.as<T>();
  const LackOfSecret lack = !protection.has_secret()     ? LackOfSecret::kAggregator
                            : !packet.is_authenticated() ? LackOfSecret::kRank
                                                         : LackOfSecret::kNeither;
  const AbortInfo why{.reason = wire::AbortReason::kNotAuthenticated,
                      .rank_a = Rank{handshake.rank},
                      .value_a = static_cast<std::uint64_t>(lack)};
  engine_.control.push(from, to_packet(why, packet.job(), 0, handshake.nonce),
                       JobProtection(engine_.config.integrity, nullptr, packet.job()));
  report_refused(packet.job(), why);
}

void Admission::send_versions(const Endpoint& from, std::span<const std::byte> datagram, Time now) {
  const auto hello = hello_of_another_version(datagram);
  if (!hello || !unproven_replies_.take(from, now)) return;
  auto versions = wire::make<wire::Versions>(hello->job);
  versions.nonce = hello->nonce;
  versions.lowest = versions.highest = wire::kVersion;
  engine_.control.push(from, versions, JobProtection(true, nullptr, hello->job));
}

DropReason Admission::on_hello(const Endpoint& from, const Packet& packet, Time now) {
  const JobProtection protection = protection_of(packet.job());
  const bool authentic = is_authentic(packet, protection);
  const bool proven = authentic && protection.has_secret();
  if (!(proven ? proven_replies_ : unproven_replies_).take(from, now))
    return DropReason::kRateLimited;
  if (!authentic) {
    refuse_unauthentic<wire::Hello>(from, packet, protection);
    return DropReason::kNotAuthentic;
  }
  const auto& hello = packet.as<wire::Hello>();
  auto challenge = wire::make<wire::Challenge>(packet.job());
  challenge.nonce = hello.nonce;
  challenge.incarnation = engine_.config.incarnation;
  challenge.serial = engine_.serials.next();
  challenge.challenge = challenge_cookie(engine_.config.challenge_key, packet.job(), hello.nonce,
                                         challenge.serial, hello.rank, from);
  challenge.lanes = engine_.config.lanes;
  if (engine_.config.source_ports)
    std::ranges::copy(engine_.config.source_ports(from, Rank{hello.rank}),
                      challenge.source_ports.begin());
  engine_.control.push(from, challenge, protection);
  return DropReason::kNone;
}

DropReason Admission::on_join(const Endpoint& from, const Packet& packet, Time now) {
  const auto& join = packet.as<wire::Join>();
  if (join.incarnation != engine_.config.incarnation) return DropReason::kWrongIncarnation;
  const Cookie ours = challenge_cookie(engine_.config.challenge_key, packet.job(), join.nonce,
                                       join.serial, join.rank, from);
  if (!equal(ours, join.challenge)) return DropReason::kBadChallenge;
  if (!proven_replies_.take(from, now)) return DropReason::kRateLimited;
  const JobProtection protection = protection_of(packet.job());
  if (!is_authentic(packet, protection)) {
    refuse_unauthentic<wire::Join>(from, packet, protection);
    return DropReason::kNotAuthentic;
  }
  Job* job = admit(from, join, protection);
  if (job == nullptr) return DropReason::kBadJoin;
  return job->on_join(from, join, now);
}

/// The job to join: a known one, or a new one if there is room. Null if the JOIN is refused
/// whatever other ranks join: such a JOIN creates no job.
Job* Admission::admit(const Endpoint& from, const wire::Join& join,
                      const JobProtection& protection) {
  Job* known = jobs_.find(join.header.job);
  auto refusal = Formation::invalid(join, engine_.config, protection);
  if (!refusal && (known == nullptr || known->membership().idle())) refusal = no_room(join);
  if (refusal) {
    ++engine_.counters.joins_refused;
    engine_.control.push(from, to_packet(*refusal, join.header.job, join.generation, join.nonce),
                         protection);
    report_refused(join.header.job, *refusal, text_of(join.name));
    return nullptr;
  }
  return known != nullptr ? known : &jobs_.add(join.header.job);
}

/// Why no further job may begin; empty if one may. A job is not new if it was at another aggregator
/// of this shard, or if the daemon's first lane has admitted it.
std::optional<AbortInfo> Admission::no_room(const wire::Join& join) const {
  const bool is_first_lane = engine_.config.shard < engine_.config.shards / engine_.config.lanes;
  const bool is_known = join.epoch != 0 || (join.generation != 0 && !is_first_lane);
  if (admits_ == Admits::kKnownJobs && !is_known)
    return AbortInfo{.reason = wire::AbortReason::kShuttingDown};
  if (jobs_.live() < engine_.config.jobs_max) return std::nullopt;
  return AbortInfo{.reason = wire::AbortReason::kTooManyJobs, .value_b = engine_.config.jobs_max};
}

/// `name`: the job's name if the refused packet has it, else empty.
void Admission::report_refused(std::uint32_t id, const AbortInfo& why, std::string name) const {
  JobEvent event{.kind = JobEvent::Kind::kRefused, .reason = why};
  event.session.job = id;
  event.name = std::move(name);
  if (const Job* const job = jobs_.find(id); job != nullptr && event.name.empty())
    event.name = job->membership().record().name;
  engine_.report(event);
}

}  // namespace sluice::aggregator
