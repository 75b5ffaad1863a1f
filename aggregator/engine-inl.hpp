#pragma once

#include <algorithm>

#include "aggregator/engine.hpp"

namespace sluice::aggregator {

/// Ended jobs whose tombstones are kept, beyond the jobs that live.
inline constexpr std::size_t kEndedJobsKept = 1024;

/// How often ranks are asked for their positions on behalf of one that wants to leave.
inline constexpr Duration kPollInterval = std::chrono::milliseconds(10);

template <PacketSink Sink>
void Engine<Sink>::receive(const Endpoint& from, Buffer buffer, Time now, Sink& sink) {
  ++counters_.packets_received;
  Packet packet;
  DropReason drop = Packet::parse(buffer.bytes(), packet);
  if (drop == DropReason::kNone) drop = dispatch(from, packet, std::move(buffer), now, sink);
  if (drop != DropReason::kNone) counters_.drops.count(drop);
  if (!control_.empty()) flush(sink);
}

template <PacketSink Sink>
DropReason Engine<Sink>::dispatch(const Endpoint& from, const Packet& packet, Buffer buffer,
                                  Time now, Sink& sink) {
  using wire::Kind;
  if (!wire::is_upstream(packet.kind())) return DropReason::kWrongDirection;
  if (packet.kind() == Kind::kHello) {
    on_hello(from, packet.as<wire::Hello>());
    return DropReason::kNone;
  }
  if (packet.kind() == Kind::kJoin) return on_join(from, packet.as<wire::Join>(), now);

  Job* job = find(packet.job());
  if (job == nullptr) {
    auto refused = wire::make<wire::Refused>(packet.job());
    refused.token = packet.member().token;
    control_.push(from, refused);
    return DropReason::kUnknownJob;
  }
  const auto rank = job->membership.authenticate(from, packet.member(), control_);
  if (!rank) return DropReason::kUnknownToken;
  switch (packet.kind()) {
    case Kind::kKeepAlive:
      job->membership.on_keep_alive(*rank, packet.as<wire::KeepAlive>().number, now, control_);
      return DropReason::kNone;
    case Kind::kLeave:
      on_leave(*job, *rank, packet.as<wire::Leave>(), now);
      return DropReason::kNone;
    default:
      return on_stream(*job, *rank, packet, std::move(buffer), now, sink);
  }
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
    case Kind::kSync:
      taken = stream.on_sync(rank, packet, std::move(buffer), scope);
      break;
    default:  // GIVE
      taken = stream.on_give(packet, scope);
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
    job.stalled = any_stalled_ = true;
    deadline_ = now;
  }
  return taken.drop;
}

template <PacketSink Sink>
void Engine<Sink>::retry_stalled(Job& job, Sink& sink) {
  auto scope = scope_of(job, sink);
  job.stalled = false;
  for (Stream<Sink>& stream : job.streams) job.stalled |= !stream.retry(scope);
}

// ----------------------------------------------------------------------------------- membership
template <PacketSink Sink>
void Engine<Sink>::on_hello(const Endpoint& from, const wire::Hello& hello) {
  auto challenge = wire::make<wire::Challenge>(hello.header.job);
  challenge.nonce = hello.nonce;
  challenge.incarnation = config_.incarnation;
  challenge.serial = ++serial_;
  control_.push(from, challenge);
}

template <PacketSink Sink>
DropReason Engine<Sink>::on_join(const Endpoint& from, const wire::Join& join, Time now) {
  if (join.incarnation != config_.incarnation) return DropReason::kWrongIncarnation;
  if (join.serial > serial_) return DropReason::kStaleJoin;
  Job* job = admit(from, join);
  if (job == nullptr) return DropReason::kBadJoin;
  const std::uint64_t refused_before = job->membership.refused();
  const auto outcome = job->membership.on_join(from, join, serial_, now, control_);
  counters_.joins_refused += job->membership.refused() - refused_before;
  if (outcome.ended) ended(*job);
  if (outcome.formed) formed(*job);
  if (outcome.drop == DropReason::kBadJoin) {
    JobEvent event{.kind = JobEvent::Kind::kRefused, .reason = job->membership.last_refusal()};
    event.session.job = join.header.job;
    tell(event);
  }
  deadline_ = std::min(deadline_, job->membership.next_deadline());
  return outcome.drop;
}

/// The job to join: known, or new if there is room for one more.
template <PacketSink Sink>
typename Engine<Sink>::Job* Engine<Sink>::admit(const Endpoint& from, const wire::Join& join) {
  Job* known = find(join.header.job);
  if (known != nullptr && !known->membership.idle()) return known;
  if (const auto refusal = no_room()) {
    ++counters_.joins_refused;
    control_.push(from, to_packet(*refusal, join.header.job, join.generation, join.nonce));
    JobEvent event{.kind = JobEvent::Kind::kRefused, .reason = refusal};
    event.session.job = join.header.job;
    tell(event);
    return nullptr;
  }
  if (known != nullptr) return known;
  forget_idle_jobs();
  auto job = std::make_unique<Job>(config_, join.header.job);
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
  const std::size_t bytes = streams * Stream<Sink>::memory_bytes(session);
  const std::size_t buffers = streams * Stream<Sink>::buffers(session);
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
void Engine<Sink>::formed(Job& job) {
  const Session& session = job.membership.session();
  const std::size_t streams = session.streams_of(session.shard);
  if (const auto refusal = too_large(session)) {
    abort(job, *refusal);
    return;
  }
  job.buffers_claimed = streams * Stream<Sink>::buffers(session);
  buffers_claimed_ += job.buffers_claimed;
  job.streams.reserve(streams);
  for (std::uint16_t s = session.shard; s < session.streams;
       s = static_cast<std::uint16_t>(s + session.shards))
    job.streams.emplace_back(session, StreamId{s}, job.membership.resumed());
  const bool resumed = job.membership.resumed();
  ++(resumed ? counters_.jobs_resumed : counters_.jobs_formed);
  tell({.kind = resumed ? JobEvent::Kind::kResumed : JobEvent::Kind::kFormed, .session = session});
}

template <PacketSink Sink>
void Engine<Sink>::on_leave(Job& job, Rank rank, const wire::Leave& leave, Time now) {
  Membership& membership = job.membership;
  if (leave.abort != 0) {
    abort(job, {.reason = wire::AbortReason::kRankAborted, .rank_a = rank});
    return;
  }
  // Someone may still need what this rank holds: all who remain must have every result.
  bool settled = true;
  bool busy = false;
  for (Stream<Sink>& stream : job.streams) {
    stream.on_leave(rank);
    settled &= stream.settled(membership.present());
    busy |= stream.busy();
  }
  if (membership.on_leave(rank, settled, serial_, control_)) {
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

/// Asks for the position of everyone who is behind on a stream, as far as we know.
template <PacketSink Sink>
void Engine<Sink>::poll_laggards(Job& job) {
  const Session& session = job.membership.session();
  for (std::size_t i = 0; i < job.streams.size(); ++i) {
    auto poll = wire::make<wire::Poll>(session.job);
    poll.delivery.epoch = session.epoch;
    poll.delivery.delivery_token = session.delivery_token;
    poll.delivery.stream = static_cast<std::uint16_t>(i * session.shards + session.shard);
    job.streams[i].behind(job.membership.present()).for_each([&](Rank laggard) {
      control_.push(job.membership.endpoints()[laggard.value], poll);
    });
  }
}

template <PacketSink Sink>
void Engine<Sink>::abort(Job& job, const AbortInfo& info) {
  job.membership.abort(info, serial_, control_);
  ended(job);
}

/// The life that was active is over: gives its memory back.
template <PacketSink Sink>
void Engine<Sink>::ended(Job& job) {
  const auto& reason = job.membership.last_abort();
  ++(reason ? counters_.jobs_aborted : counters_.jobs_left);
  tell({.kind = reason ? JobEvent::Kind::kAborted : JobEvent::Kind::kLeft,
        .session = job.membership.last_session(),
        .reason = reason});
  std::vector<Stream<Sink>>().swap(job.streams);
  buffers_claimed_ -= std::exchange(job.buffers_claimed, 0);
  job.stalled = false;
  job.poll_due = kNever;
}

// ----------------------------------------------------------------------------------------- time
template <PacketSink Sink>
void Engine<Sink>::on_time(Time now, Sink& sink) {
  if (now < deadline_) return;
  deadline_ = kNever;
  any_stalled_ = false;
  for (auto& [id, job] : jobs_) {
    if (job->membership.on_time(now, serial_, control_)) {
      ended(*job);
      if (job->membership.active()) formed(*job);
    }
    if (job->stalled) {
      retry_stalled(*job, sink);
      any_stalled_ |= job->stalled;
    }
    deadline_ = std::min(deadline_, job->membership.next_deadline());
  }
  if (any_stalled_) deadline_ = now;
  flush(sink);
}

template <PacketSink Sink>
void Engine<Sink>::on_hang_up(std::uint16_t port_id, Time now, Sink& sink) {
  for (auto& [id, job] : jobs_)
    if (job->membership.on_hang_up(port_id, serial_, control_)) ended(*job);
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

/// Ended jobs are kept for their tombstones, up to a bound; then all joins they saw are void.
template <PacketSink Sink>
void Engine<Sink>::forget_idle_jobs() {
  if (jobs_.size() < kEndedJobsKept + config_.jobs_max) return;
  std::erase_if(jobs_, [](const auto& job) { return job.second->membership.idle(); });
  mark_ = serial_;
}

}  // namespace sluice::aggregator
