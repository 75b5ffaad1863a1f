#pragma once

#include <algorithm>

#include "aggregator/engine.hpp"

namespace sluice::aggregator {

/// Ended jobs whose tombstones are kept, beyond the jobs that live.
inline constexpr std::size_t kEndedJobsKept = 1024;

/// How often ranks are asked for their positions on behalf of one that wants to leave, and how many
/// at a time: each answers with up to an ACK per stream.
inline constexpr Duration kPollInterval = std::chrono::milliseconds(10);
inline constexpr int kPolledAtOnce = 32;

template <PacketSink Sink>
void Engine<Sink>::receive(const Endpoint& from, Buffer buffer, Time now, Sink& sink) {
  ++counters_.packets_received;
  enter(sink, Stage::kValidate);
  Packet packet;
  DropReason drop = Packet::parse(buffer.bytes(), packet);
  if (drop == DropReason::kNone && config_.integrity && from.off_machine && !packet.has_integrity())
    drop = DropReason::kNoIntegrity;
  if (drop == DropReason::kNone) drop = dispatch(from, packet, std::move(buffer), now, sink);
  if (drop != DropReason::kNone) counters_.drops.count(drop);
  if (!control_.empty()) flush(sink);
  enter(sink, Stage::kReceive);  // the loop goes on with the next packet
}

template <PacketSink Sink>
DropReason Engine<Sink>::dispatch(const Endpoint& from, const Packet& packet, Buffer buffer,
                                  Time now, Sink& sink) {
  using wire::Kind;
  if (!wire::is_upstream(packet.kind())) return DropReason::kWrongDirection;
  if (packet.kind() == Kind::kHello) return on_hello(from, packet, now);
  if (packet.kind() == Kind::kJoin) return on_join(from, packet, now);

  Job* job = find(packet.job());
  const auto rank = job == nullptr ? std::nullopt : job->membership.find(packet.member());
  if (!rank) return on_unknown(job, from, packet, now);
  if (!job->membership.protection().accepts(packet)) return DropReason::kNotAuthentic;
  job->membership.spoke(*rank, packet.member().token);
  switch (packet.kind()) {
    case Kind::kKeepAlive:
      job->membership.on_keep_alive(*rank, packet.as<wire::KeepAlive>().number, now, control_);
      return DropReason::kNone;
    case Kind::kLeave:
      on_leave(*job, *rank, packet.as<wire::Leave>(), now, sink);
      return DropReason::kNone;
    default:
      return on_stream(*job, *rank, packet, std::move(buffer), now, sink);
  }
}

/// A packet that no member of its job has sent: its sender is told, but not too often.
template <PacketSink Sink>
DropReason Engine<Sink>::on_unknown(Job* job, const Endpoint& from, const Packet& packet,
                                    Time now) {
  if (!unproven_replies_.take(from, now)) return DropReason::kRateLimited;
  if (job != nullptr) {
    job->membership.answer_unknown(from, packet, control_);
    return DropReason::kUnknownToken;
  }
  if (const auto refused = refusal_of(packet, config_))
    control_.push(from, *refused, config_.protection_of(packet.job()));
  return DropReason::kUnknownJob;
}

// -------------------------------------------------------------------------------------- streams
template <PacketSink Sink>
DropReason Engine<Sink>::on_stream(Job& job, Rank rank, const Packet& packet, Buffer buffer,
                                   Time now, Sink& sink) {
  using wire::Kind;
  const Session& session = job.membership.session();
  const StreamId id{packet.member().stream};
  if (!session.serves(id)) return DropReason::kBadStream;
  Stream<Sink>& stream = job.streams[id.value / session.shards];
  auto scope = scope_of(job, sink);

  Taken taken;
  switch (packet.kind()) {
    case Kind::kData:
      taken = stream.on_data(rank, packet, std::move(buffer), scope);
      break;
    case Kind::kAck:
      taken = stream.on_position(rank, Round{packet.as<wire::Ack>().position}, scope);
      break;
    case Kind::kProbe: {
      const auto& probe = packet.as<wire::Probe>();
      taken = stream.on_probe(rank, Round{probe.position}, probe.have, scope);
      break;
    }
    default:  // SYNC
      taken = stream.on_sync(rank, Round{packet.as<wire::Sync>().applied}, scope);
  }
  if (taken.proves_life) job.membership.proved_life(rank, now);
  if (taken.rank_left) {
    const Rank gone = job.membership.first_absent();
    abort(job, {.reason = wire::AbortReason::kRankLeft, .rank_a = gone});
    return taken.drop;
  }
  if (taken.mismatch) {
    const AbortInfo disagreement = stream.disagreement();  // the stream goes with the job
    abort(job, disagreement);
    return taken.drop;
  }
  if (taken.contradiction) {
    abort(job, {.reason = wire::AbortReason::kCannotResume, .rank_a = rank});
    return taken.drop;
  }
  if (stream.stalled()) {
    if (std::find(stalled_.begin(), stalled_.end(), &job) == stalled_.end())
      stalled_.push_back(&job);
    retry_due_ = now;
  }
  return taken.drop;
}

template <PacketSink Sink>
void Engine<Sink>::retry_stalled(Time now, Sink& sink) {
  std::erase_if(stalled_, [&](Job* job) {
    auto scope = scope_of(*job, sink);
    bool done = true;
    for (Stream<Sink>& stream : job->streams) done &= stream.retry(scope);
    return done;
  });
  retry_due_ = now;
}

// ----------------------------------------------------------------------------------- membership
/// A live job's own, or that of a job which may come.
template <PacketSink Sink>
JobProtection Engine<Sink>::protection_of(std::uint32_t id) {
  const Job* job = find(id);
  return job != nullptr && !job->membership.idle() ? job->membership.protection()
                                                   : config_.protection_of(id);
}

/// Whether a greeting shows the job's secret, and none where we know none: its sender would not
/// believe our answers.
inline bool is_authentic(const Packet& greeting, const JobProtection& protection) {
  return greeting.is_authenticated() == protection.has_secret() && protection.accepts(greeting);
}

/// Who does not share the job's secret is told so, without any proof on our side.
template <PacketSink Sink>
template <class T>
void Engine<Sink>::tell_not_authentic(const Endpoint& from, const Packet& packet) {
  const auto& greeting = packet.as<T>();
  const AbortInfo why{.reason = wire::AbortReason::kNotAuthenticated,
                      .rank_a = Rank{greeting.rank}};
  control_.push(from, to_packet(why, packet.job(), 0, greeting.nonce),
                JobProtection(config_.integrity, nullptr, packet.job()));
  tell_refused(packet.job(), why);
}

template <PacketSink Sink>
DropReason Engine<Sink>::on_hello(const Endpoint& from, const Packet& packet, Time now) {
  const JobProtection protection = protection_of(packet.job());
  const bool authentic = is_authentic(packet, protection);
  const bool proven = authentic && protection.has_secret();
  if (!(proven ? proven_replies_ : unproven_replies_).take(from, now))
    return DropReason::kRateLimited;
  if (!authentic) {
    tell_not_authentic<wire::Hello>(from, packet);
    return DropReason::kNotAuthentic;
  }
  const auto& hello = packet.as<wire::Hello>();
  auto challenge = wire::make<wire::Challenge>(packet.job());
  challenge.nonce = hello.nonce;
  challenge.incarnation = config_.incarnation;
  challenge.serial = ++serial_;
  challenge.challenge =
      challenge_cookie(config_.challenge_key, packet.job(), hello.nonce, serial_, hello.rank, from);
  control_.push(from, challenge, protection);
  return DropReason::kNone;
}

template <PacketSink Sink>
DropReason Engine<Sink>::on_join(const Endpoint& from, const Packet& packet, Time now) {
  const auto& join = packet.as<wire::Join>();
  if (join.incarnation != config_.incarnation) return DropReason::kWrongIncarnation;
  const Cookie ours = challenge_cookie(config_.challenge_key, packet.job(), join.nonce, join.serial,
                                       join.rank, from);
  if (!equal(ours, join.challenge)) return DropReason::kBadChallenge;
  if (!proven_replies_.take(from, now)) return DropReason::kRateLimited;
  const JobProtection protection = protection_of(packet.job());
  if (!is_authentic(packet, protection)) {
    tell_not_authentic<wire::Join>(from, packet);
    return DropReason::kNotAuthentic;
  }
  Job* job = admit(from, join, protection);
  if (job == nullptr) return DropReason::kBadJoin;
  const std::uint64_t refused_before = job->membership.refused();
  const auto outcome = job->membership.on_join(from, join, serial_, now, control_);
  counters_.joins_refused += job->membership.refused() - refused_before;
  if (outcome.dissolved) dissolved(*job);
  if (outcome.ended) ended(*job);
  if (outcome.formed) formed(*job, now);
  if (outcome.drop == DropReason::kBadJoin)
    tell_refused(join.header.job, job->membership.last_refusal());
  deadline_ = std::min(deadline_, job->membership.next_deadline());
  return outcome.drop;
}

/// The job to join: known, or new if there is room for one more. None for a JOIN that is refused
/// whoever else comes, so that such leave nothing behind.
template <PacketSink Sink>
typename Engine<Sink>::Job* Engine<Sink>::admit(const Endpoint& from, const wire::Join& join,
                                                const JobProtection& protection) {
  Job* known = find(join.header.job);
  auto refusal = Membership::invalid(join, config_, protection);
  if (!refusal && (known == nullptr || known->membership.idle())) refusal = no_room();
  if (refusal) {
    ++counters_.joins_refused;
    control_.push(from, to_packet(*refusal, join.header.job, join.generation, join.nonce),
                  protection);
    tell_refused(join.header.job, refusal);
    return nullptr;
  }
  if (known != nullptr) return known;
  forget_idle_jobs();
  auto job = std::make_unique<Job>(config_, join.header.job, buffers_claimed_);
  job->membership.void_serials(mark_);
  return (jobs_[join.header.job] = std::move(job)).get();
}

/// Why no further job may begin, if so.
template <PacketSink Sink>
std::optional<AbortInfo> Engine<Sink>::no_room() const {
  if (closed_) return AbortInfo{.reason = wire::AbortReason::kShuttingDown};
  if (live_jobs() < config_.jobs_max) return std::nullopt;
  return AbortInfo{.reason = wire::AbortReason::kTooManyJobs, .value_b = config_.jobs_max};
}

/// Why a session would take more than its job may, or more than other jobs have left.
template <PacketSink Sink>
std::optional<AbortInfo> Engine<Sink>::too_large(const Session& session) const {
  const std::size_t streams = session.streams_of(session.shard);
  const std::size_t bytes = streams * stream_bytes(session);
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

/// Takes the memory that the job's streams will need, so that no packet has to.
template <PacketSink Sink>
void Engine<Sink>::formed(Job& job, Time now) {
  const Session& session = job.membership.session();
  const std::size_t streams = session.streams_of(session.shard);
  if (const auto refusal = too_large(session)) {
    abort(job, *refusal);
    return;
  }
  job.buffers_claimed = streams * stream_buffers(session);
  buffers_claimed_ += job.buffers_claimed;
  job.streams.reserve(streams);
  for (std::uint16_t s = session.shard; s < session.streams;
       s = static_cast<std::uint16_t>(s + session.shards))
    job.streams.emplace_back(session, StreamId{s}, job.membership.resumed());
  job.rounds_seen.assign(job.streams.size(), std::nullopt);
  if (config_.straggler_warning.count() != 0)
    job.stragglers_due = after(now, config_.straggler_warning);
  const bool resumed = job.membership.resumed();
  ++(resumed ? counters_.jobs_resumed : counters_.jobs_formed);
  tell({.kind = resumed ? JobEvent::Kind::kResumed : JobEvent::Kind::kFormed, .session = session});
}

/// Why a rank ends the job for all, as it says.
inline AbortInfo cause_of(const wire::Leave& leave, Rank rank) {
  AbortInfo why{.reason = wire::AbortReason::kRankAborted, .rank_a = rank};
  if (leave.reason == 0) return why;
  why.reason = static_cast<wire::AbortReason>(std::uint16_t{leave.reason});
  if (why.reason == wire::AbortReason::kAggregatorLost)
    why.value_a = leave.shard_or_rank;
  else
    why.rank_a = Rank{leave.shard_or_rank}, why.value_a = leave.silent_ms;
  return why;
}

template <PacketSink Sink>
void Engine<Sink>::on_leave(Job& job, Rank rank, const wire::Leave& leave, Time now, Sink& sink) {
  Membership& membership = job.membership;
  if (leave.abort != 0) {
    abort(job, cause_of(leave, rank), rank);
    return;
  }
  // Someone may still need what this rank holds: all who remain must have every result.
  bool settled = true;
  bool busy = false;
  auto scope = scope_of(job, sink);
  for (Stream<Sink>& stream : job.streams) {
    stream.on_leave(rank, scope);
    settled &= stream.settled(membership.present());
    busy |= stream.busy();
  }
  if (membership.on_leave(rank, leave.member.token, settled, serial_, control_)) {
    ended(job);
  } else if (settled && busy) {
    abort(job, {.reason = wire::AbortReason::kRankLeft, .rank_a = rank});
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
template <PacketSink Sink>
void Engine<Sink>::poll_laggards(Job& job) {
  const std::uint16_t ranks = job.membership.session().ranks;
  int polled = 0;
  for (std::uint16_t i = 0; i < ranks && polled < kPolledAtOnce; ++i) {
    const Rank rank{job.poll_next};
    job.poll_next = static_cast<std::uint16_t>((job.poll_next + 1) % ranks);
    if (job.membership.present().contains(rank) && poll(job, rank)) ++polled;
  }
}

/// One POLL for all streams on which the rank is behind, or for some hundred of them. False if it
/// is on none.
template <PacketSink Sink>
bool Engine<Sink>::poll(Job& job, Rank rank) {
  const Session& session = job.membership.session();
  const auto is_behind = [&](const Stream<Sink>& stream) { return stream.is_behind(rank); };
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
    control_.push(job.membership.endpoints()[rank.value], packet, job.membership.protection());
  }
  return any;
}

template <PacketSink Sink>
void Engine<Sink>::abort(Job& job, const AbortInfo& info, std::optional<Rank> told_by) {
  job.membership.abort(info, serial_, control_);
  ended(job, told_by);
}

/// The life that was active is over: gives its memory back.
template <PacketSink Sink>
void Engine<Sink>::ended(Job& job, std::optional<Rank> told_by) {
  const auto& reason = job.membership.last_abort();
  ++(reason ? counters_.jobs_aborted : counters_.jobs_left);
  tell({.kind = reason ? JobEvent::Kind::kAborted : JobEvent::Kind::kLeft,
        .session = job.membership.last_session(),
        .reason = reason,
        .told_by = told_by});
  give_back_memory(job);
}

/// The job goes on, but not in this formation.
template <PacketSink Sink>
void Engine<Sink>::dissolved(Job& job) {
  ++counters_.jobs_dissolved;
  tell({.kind = JobEvent::Kind::kDissolved, .session = job.membership.last_session()});
  give_back_memory(job);
}

template <PacketSink Sink>
void Engine<Sink>::give_back_memory(Job& job) {
  std::vector<Stream<Sink>>().swap(job.streams);
  buffers_claimed_ -= std::exchange(job.buffers_claimed, 0);
  std::erase(stalled_, &job);
  job.poll_due = job.stragglers_due = kNever;
}

// ----------------------------------------------------------------------------------------- time
template <PacketSink Sink>
void Engine<Sink>::on_time(Time now, Sink& sink) {
  if (!stalled_.empty()) retry_stalled(now, sink);
  if (now < deadline_) return;
  enter(sink, Stage::kOther);
  deadline_ = kNever;
  for (auto& [id, job] : jobs_) {
    const auto change = job->membership.on_time(now, serial_, control_);
    if (change == Membership::Change::kDissolved) dissolved(*job);
    if (change == Membership::Change::kEnded) {
      ended(*job);
      if (job->membership.active()) formed(*job, now);
    }
    if (now >= job->stragglers_due) look_for_stragglers(*job, now);
    deadline_ = std::min({deadline_, job->membership.next_deadline(), job->stragglers_due});
  }
  flush(sink);
}

/// Tells of the first rank that is waited for on a stream which runs the same round as at the last
/// look.
template <PacketSink Sink>
void Engine<Sink>::look_for_stragglers(Job& job, Time now) {
  job.stragglers_due =
      config_.straggler_warning.count() == 0 ? kNever : after(now, config_.straggler_warning);
  Straggler worst;
  for (std::size_t i = 0; i < job.streams.size(); ++i) {
    const Stream<Sink>& stream = job.streams[i];
    auto& seen = job.rounds_seen[i];
    const bool runs_on = stream.busy() && seen && seen->round == stream.running();
    if (!stream.busy())
      seen.reset();
    else if (!runs_on)
      seen = {stream.running(), now};
    if (!runs_on || stream.stalled()) continue;
    const RankSet waited_for = stream.waited_for(job.membership.session());
    if (waited_for.empty() || worst.streams++ != 0) continue;
    worst.rank = Rank{waited_for.lowest()};
    worst.op = stream.op();
    worst.waited = now - seen->since;
  }
  if (worst.streams == 0) return;
  ++counters_.stragglers_seen;
  worst.last_heard = job.membership.silence_of(worst.rank, now);
  tell({.kind = JobEvent::Kind::kStraggler,
        .session = job.membership.session(),
        .straggler = worst});
}

template <PacketSink Sink>
void Engine<Sink>::adjust(const EngineConfig& to) {
  config_.jobs_max = to.jobs_max;
  config_.greetings_per_second = to.greetings_per_second;
  config_.straggler_warning = to.straggler_warning;
  config_.secret = to.secret;
  proven_replies_.set_rate(to.greetings_per_second);
  unproven_replies_.set_rate(to.greetings_per_second);
}

template <PacketSink Sink>
void Engine<Sink>::on_hang_up(std::uint16_t port_id, Time now, Sink& sink) {
  for (auto& [id, job] : jobs_)
    if (job->membership.on_hang_up(port_id, serial_, now, control_)) ended(*job);
  deadline_ = std::min(deadline_, now);
  flush(sink);
}

template <PacketSink Sink>
void Engine<Sink>::excuse_pause(Duration pause) {
  for (auto& [id, job] : jobs_) job->membership.excuse_pause(pause);
}

template <PacketSink Sink>
void Engine<Sink>::shut_down(Time, Sink& sink) {
  for (auto& [id, job] : jobs_) {
    if (job->membership.idle()) continue;
    const bool was_active = job->membership.active();
    job->membership.abort({.reason = wire::AbortReason::kShuttingDown}, serial_, control_);
    if (was_active) ended(*job);
  }
  flush(sink);
}

template <PacketSink Sink>
std::size_t Engine<Sink>::live_jobs() const {
  return static_cast<std::size_t>(std::count_if(
      jobs_.begin(), jobs_.end(), [](const auto& job) { return !job.second->membership.idle(); }));
}

/// Ended jobs are kept for their tombstones, up to a bound: then the half that ended first goes,
/// and all joins that they saw are void.
template <PacketSink Sink>
void Engine<Sink>::forget_idle_jobs() {
  if (jobs_.size() < kEndedJobsKept + config_.jobs_max) return;
  std::vector<std::uint64_t> ends;
  for (const auto& [id, job] : jobs_)
    if (job->membership.idle() && job->membership.remembers())
      ends.push_back(job->membership.mark());
  const auto middle = ends.begin() + static_cast<std::ptrdiff_t>(ends.size() / 2);
  if (middle != ends.end()) std::nth_element(ends.begin(), middle, ends.end());
  const bool crowded = ends.size() >= kEndedJobsKept;
  std::erase_if(jobs_, [&](const auto& entry) {
    const Membership& membership = entry.second->membership;
    if (!membership.idle()) return false;
    return !membership.remembers() || (crowded && membership.mark() <= *middle);
  });
  mark_ = serial_;
}

}  // namespace sluice::aggregator
