#include "aggregator/engine/engine.hpp"

#include <algorithm>
#include <cassert>

namespace sluice::aggregator {

void Engine::receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink) {
  ++counters_.packets_received;
  sink.enter(Stage::kValidate);
  Packet packet;
  DropReason drop = Packet::parse(buffer.bytes(), packet);
  if (drop == DropReason::kBadVersion) tell_versions(from, buffer.bytes(), now);
  if (drop == DropReason::kNone && config_.integrity && from.off_machine && !shows_damage(packet))
    drop = DropReason::kNoIntegrity;
  if (drop == DropReason::kNone) drop = dispatch(from, packet, std::move(buffer), now, sink);
  if (drop != DropReason::kNone) counters_.drops.count(drop);
  if (!control_.empty()) flush(sink);
  sink.enter(Stage::kReceive);  // the loop goes on with the next packet
}

DropReason Engine::dispatch(const Endpoint& from, Packet& packet, Buffer buffer, Time now,
                            PacketSink& sink) {
  using wire::Kind;
  if (!wire::is_upstream(packet.kind())) return DropReason::kWrongDirection;
  const bool joins = packet.kind() == Kind::kHello || packet.kind() == Kind::kJoin;
  if (joins && retiring_) return DropReason::kNotJoined;
  if (packet.kind() == Kind::kHello) return on_hello(from, packet, now);
  if (packet.kind() == Kind::kJoin) return on_join(from, packet, now);

  Job* job = find(packet.job());
  const auto rank = job == nullptr ? std::nullopt : job->membership.find(packet.member());
  if (!rank) return on_unknown(job, from, packet, now);
  Opener* const opener = job->membership.roster().opener_of(packet.member());
  if (const DropReason bad = unseal(opener, packet, buffer); bad != DropReason::kNone) return bad;
  job->membership.spoke(*rank, packet.member().token);
  switch (packet.kind()) {
    case Kind::kKeepAlive:
      if (retiring_) {
        send_away(*job, from, packet);
        return DropReason::kNone;
      }
      job->membership.on_keep_alive(*rank, packet.as<wire::KeepAlive>(), now, control_);
      deadline_ = std::min(deadline_, job->membership.multicast().beacon_due());
      settle(*job, now);
      return DropReason::kNone;
    case Kind::kLeave:
      // Others of its job join the next aggregator, and need it there.
      if (!job->sent_away.empty() && packet.as<wire::Leave>().abort == 0)
        return DropReason::kNotJoined;
      on_leave(*job, *rank, packet.as<wire::Leave>(), now, sink);
      return DropReason::kNone;
    default:
      return on_stream(*job, *rank, packet, std::move(buffer), now, sink);
  }
}

// -------------------------------------------------------------------------------------- streams
DropReason Engine::on_stream(Job& job, Rank rank, const Packet& packet, Buffer buffer, Time now,
                             PacketSink& sink) {
  using wire::Kind;
  const Session& session = job.membership.roster().session();
  const StreamId id{packet.member().stream};
  if (!session.serves(id)) return DropReason::kBadStream;
  Stream& stream = job.streams[id.value / session.shards];
  auto scope = scope_of(job, now, sink);

  Taken taken;
  switch (packet.kind()) {
    case Kind::kData:
    case Kind::kKeyValueData:
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
  if (taken.proves_liveness) job.membership.proved_liveness(rank, now);
  if (!retiring_) deadline_ = std::min(deadline_, job.membership.multicast().beacon_due());
  if (taken.ends_job) {
    const AbortInfo why = *taken.ends_job;  // the stream goes with the job
    abort(job, why, now);
    return taken.drop;
  }
  if (stream.stalled()) {
    if (std::find(stalled_.begin(), stalled_.end(), &job) == stalled_.end())
      stalled_.push_back(&job);
    retry_due_ = now;
  }
  return taken.drop;
}

void Engine::retry_stalled(Time now, PacketSink& sink) {
  std::erase_if(stalled_, [&](Job* job) {
    auto scope = scope_of(*job, now, sink);
    bool done = true;
    for (Stream& stream : job->streams) done &= stream.retry(scope);
    return done;
  });
  retry_due_ = now;
}

// -------------------------------------------------------------------------- what happened to jobs
/// Does what events ask for, and tells of them; also of those that come of it.
void Engine::settle(Job& job, Time now) {
  using Kind = JobEvent::Kind;
  while (job.membership.has_events()) {
    for (const JobEvent& event : job.membership.take_events()) {
      switch (event.kind) {
        case Kind::kFormed:
        case Kind::kResumed:
          if (!take_memory(job, now)) continue;
          ++(event.kind == Kind::kFormed ? counters_.jobs_formed : counters_.jobs_resumed);
          break;
        case Kind::kFormationAbandoned:
          ++counters_.formations_abandoned;
          give_back_memory(job);
          break;
        case Kind::kLeft:
        case Kind::kAborted:
          ++(event.kind == Kind::kLeft ? counters_.jobs_left : counters_.jobs_aborted);
          give_back_memory(job);
          break;
        case Kind::kRefused:
          ++counters_.joins_refused;
          break;
        case Kind::kSentAway:  // the engine tells of these itself
        case Kind::kStraggler:
          break;
        case Kind::kWaits:
        case Kind::kOtherBuild:
          break;
        case Kind::kDeaf:
          ++counters_.deaf_to_group;
          break;
        case Kind::kHears:
          break;
      }
      tell(event);
    }
  }
}

void Engine::abort(Job& job, const AbortInfo& info, Time now, std::optional<Rank> reported_by) {
  job.membership.abort(info, control_, reported_by);
  settle(job, now);
}

void Engine::give_back_memory(Job& job) {
  std::vector<Stream>().swap(job.streams);
  assert(buffers_claimed_ >= job.buffers_claimed);
  buffers_claimed_ -= std::exchange(job.buffers_claimed, 0);
  std::erase(stalled_, &job);
  job.poll_due = job.stragglers_due = kNever;
}

// ----------------------------------------------------------------------------------------- time
void Engine::on_time(Time now, PacketSink& sink) {
  if (!stalled_.empty()) retry_stalled(now, sink);
  if (now < deadline_) return;
  sink.enter(Stage::kOther);
  deadline_ = kNever;
  if (retiring_) {
    ask_who_stays(now);
    return flush(sink);
  }
  for (auto& [id, job] : jobs_) {
    job->membership.on_time(now, control_);
    settle(*job, now);
    if (now >= job->stragglers_due) look_for_stragglers(*job, now);
    deadline_ = std::min({deadline_, job->membership.next_deadline(), job->stragglers_due});
  }
  flush(sink);
}

void Engine::adjust(const EngineConfig& to) {
  config_.jobs_max = to.jobs_max;
  config_.reply_rate_limit = to.reply_rate_limit;
  config_.straggler_warning = to.straggler_warning;
  config_.secret = to.secret;
  proven_replies_.set_rate(to.reply_rate_limit);
  unproven_replies_.set_rate(to.reply_rate_limit);
}

void Engine::on_disconnect(std::uint16_t port_id, Time now, PacketSink& sink) {
  if (retiring_) return;  // it may be on its way to the next aggregator
  for (auto& [id, job] : jobs_) {
    job->membership.on_disconnect(port_id, now, control_);
    settle(*job, now);
  }
  deadline_ = std::min(deadline_, now);
  flush(sink);
}

void Engine::excuse_pause(Duration pause) {
  for (auto& [id, job] : jobs_) {
    job->membership.excuse_pause(pause);
    for (Stream& stream : job->streams) stream.excuse_pause(pause, job->counters);
  }
}

bool Engine::kick(std::uint32_t id, Time now, PacketSink& sink) {
  Job* const job = find(id);
  if (job == nullptr || job->membership.idle()) return false;
  abort(*job, {.reason = wire::AbortReason::kKicked}, now);
  flush(sink);
  return true;
}

bool Engine::limit_streams(std::uint32_t id, std::uint16_t streams) {
  Job* const job = find(id);
  if (job == nullptr || !job->membership.active()) return false;
  job->window.limit(streams);
  return true;
}

std::size_t Engine::live_jobs() const {
  return static_cast<std::size_t>(std::count_if(
      jobs_.begin(), jobs_.end(), [](const auto& job) { return !job.second->membership.idle(); }));
}

}  // namespace sluice::aggregator
