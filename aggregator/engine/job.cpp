#include "aggregator/engine/job.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::aggregator {

// -------------------------------------------------------------------------------------- packets
DropReason Job::on_join(const Endpoint& from, const wire::Join& join, Time now) {
  const DropReason drop = membership_.on_join(from, join, now, engine_.control);
  settle(now);
  return drop;
}

DropReason Job::on_packet(Rank rank, const Endpoint& from, const Packet& packet, Buffer buffer,
                          Time now, PacketSink& sink) {
  using wire::Kind;
  membership_.spoke(rank, packet.member().token);
  switch (packet.kind()) {
    case Kind::kKeepAlive:
      on_keep_alive(rank, from, packet, now);
      return DropReason::kNone;
    case Kind::kLeave:
      return on_leave(rank, packet.as<wire::Leave>(), now, sink);
    default:
      return on_stream(rank, packet, std::move(buffer), now, sink);
  }
}

void Job::on_keep_alive(Rank rank, const Endpoint& from, const Packet& packet, Time now) {
  if (!context_.retirement.begun()) {
    membership_.on_keep_alive(rank, packet.as<wire::KeepAlive>(), now, engine_.control);
    settle(now);
  } else if (context_.retirement.send_away(from, packet, membership_, engine_.control)) {
    ++engine_.counters.jobs_sent_away;
    report({.kind = JobEvent::Kind::kSentAway, .session = membership_.members().session()});
  }
}

DropReason Job::on_stream(Rank rank, const Packet& packet, Buffer buffer, Time now,
                          PacketSink& sink) {
  using wire::Kind;
  const Session& session = membership_.members().session();
  const StreamId id{packet.member().stream};
  if (!session.serves(id)) return DropReason::kBadStream;
  Stream& stream = streams_[id.value / session.shards];

  Taken taken;
  switch (packet.kind()) {
    case Kind::kData:
    case Kind::kKeyValueData:
      taken = stream.on_data(rank, packet, std::move(buffer), now, sink);
      break;
    case Kind::kAck:
      taken = stream.on_position(rank, Round{packet.as<wire::Ack>().position}, now, sink);
      break;
    case Kind::kProbe: {
      const auto& probe = packet.as<wire::Probe>();
      taken = stream.on_probe(rank, Round{probe.position}, probe.have, now, sink);
      break;
    }
    default:  // SYNC
      taken = stream.on_sync(rank, Round{packet.as<wire::Sync>().applied}, now, sink);
  }
  if (taken.proves_liveness) membership_.proved_liveness(rank, now);
  if (taken.ends_job) {
    const AbortInfo why = *taken.ends_job;  // the stream goes with the job
    abort(why, now);
  } else if (stream.stalled()) {
    engine_.stalled.add(*this, now);
  }
  return taken.drop;
}

bool Job::retry_stalled(Time now, PacketSink& sink) {
  bool done = true;
  for (Stream& stream : streams_) done &= stream.retry(now, sink);
  return done;
}

// -------------------------------------------------------------------------------------- leaving
DropReason Job::on_leave(Rank rank, const wire::Leave& leave, Time now, PacketSink& sink) {
  if (leave.abort != 0) {
    abort(cause_of(leave, rank, membership_.members().session()), now, rank);
  } else if (context_.retirement.has_sent_away()) {  // the others need this rank where they go
    return DropReason::kNotJoined;
  } else {
    let_leave(rank, leave, now, sink);
  }
  return DropReason::kNone;
}

/// Lets a rank leave if every remaining rank has all results. Otherwise another rank may still need
/// what this one holds.
void Job::let_leave(Rank rank, const wire::Leave& leave, Time now, PacketSink& sink) {
  bool settled = true;
  bool busy = false;
  for (Stream& stream : streams_) {
    stream.on_leave(rank, now, sink);
    settled &= stream.rounds().settled(membership_.members().present());
    busy |= stream.busy();
  }
  membership_.on_leave(rank, leave.member.token, departure_of(leave), settled, engine_.control);
  settle(now);
  if (!membership_.active()) return;
  if (settled && busy)
    abort({.reason = wire::AbortReason::kRankLeft, .rank_a = rank}, now);
  else if (settled)
    polls_.stop();
  else
    polls_.on_wait(streams_, membership_, now, engine_.control);
}

void Job::retire(Time now) {
  for (Stream& stream : streams_) stream.charge(now);
  context_.retirement.begin();
}

// ----------------------------------------------------------------------------------- its lifetime
/// Handles the membership's events and reports them, and also those that the handling causes.
void Job::settle(Time now) {
  while (membership_.has_events())
    for (const JobEvent& event : membership_.take_events())
      if (happened(event, now)) report(event);
}

/// Handles one event. Returns false if the event must not be reported.
bool Job::happened(const JobEvent& event, Time now) {
  using Kind = JobEvent::Kind;
  Counters& counters = engine_.counters;
  switch (event.kind) {
    case Kind::kFormed:
    case Kind::kResumed:
      if (!begin_streams(now)) return false;
      ++(event.kind == Kind::kFormed ? counters.jobs_formed : counters.jobs_resumed);
      break;
    case Kind::kFormationAbandoned:
      ++counters.formations_abandoned;
      end_streams();
      break;
    case Kind::kLeft:
    case Kind::kAborted:
      ++(event.kind == Kind::kLeft ? counters.jobs_left : counters.jobs_aborted);
      end_streams();
      break;
    case Kind::kRefused:
      ++counters.joins_refused;
      break;
    case Kind::kMissesGroup:
      ++counters.group_unreachable;
      break;
    case Kind::kSentAway:  // the job itself reports these
    case Kind::kStraggler:
    case Kind::kWaits:
    case Kind::kOtherBuild:
    case Kind::kReceivesGroup:
      break;
  }
  return true;
}

/// Allocates the memory that the streams of a formed job will need, so that no packet has to.
/// Returns false if that is too much: then the job has ended.
bool Job::begin_streams(Time now) {
  const Session& session = membership_.members().session();
  if (const auto refusal = memory_.refusal(session)) {
    membership_.abort(*refusal, engine_.control);
    return false;
  }
  memory_.claim(session);
  context_.window.begin(session.ranks);
  context_.counters = {};
  assert(streams_.empty());
  streams_.reserve(session.streams_of(session.shard));
  engine_.scratch.reserve(session);
  for (std::uint16_t s = session.shard; s < session.streams;
       s = static_cast<std::uint16_t>(s + session.shards))
    streams_.emplace_back(context_, StreamId{s}, now);
  stragglers_.begin(streams_.size(), engine_.config.straggler_warning, now);
  return true;
}

void Job::end_streams() {
  std::vector<Stream>().swap(streams_);
  memory_.give_back();
  engine_.stalled.remove(*this);
  polls_.stop();
  stragglers_.end();
}

void Job::abort(const AbortInfo& info, Time now, std::optional<Rank> reported_by) {
  membership_.abort(info, engine_.control, reported_by);
  settle(now);
}

// ----------------------------------------------------------------------------------------- time
void Job::on_time(Time now) {
  membership_.on_time(now, engine_.control);
  settle(now);
  if (now >= stragglers_.due()) look_for_stragglers(now);
}

void Job::look_for_stragglers(Time now) {
  auto straggler = stragglers_.look(streams_, engine_.config.straggler_warning, now);
  if (!straggler) return;
  ++engine_.counters.stragglers_seen;
  ++context_.counters.stragglers_seen;
  straggler->silence = membership_.members().silence_of(straggler->rank, now);
  report({.kind = JobEvent::Kind::kStraggler,
          .session = membership_.members().session(),
          .straggler = *straggler});
}

void Job::on_disconnect(std::uint16_t port_id, Time now) {
  membership_.on_disconnect(port_id, now, engine_.control);
  settle(now);
}

void Job::excuse_pause(Duration pause) {
  membership_.excuse_pause(pause);
  for (Stream& stream : streams_) stream.excuse_pause(pause);
}

// -------------------------------------------------------------------------------- for operators
void Job::report(JobEvent event) const {
  if (event.name.empty()) event.name = membership_.record().name;
  engine_.report(event);
}

JobFigures Job::figures(Time now) {
  for (Stream& stream : streams_) stream.charge(now);
  JobFigures figures;
  figures.active = membership_.active();
  figures.counters = context_.counters;
  figures.stream_limit = context_.window.limited_to();
  figures.session.job = membership_.record().job;
  figures.name = membership_.record().name;
  if (!figures.active) {
    for (const auto& [rank, candidate] : membership_.candidates()) {
      figures.present.insert(Rank{rank});
      figures.session.ranks = candidate.join.world_size;
    }
    return figures;
  }
  const Members& members = membership_.members();
  figures.session = members.session();
  figures.present = members.present();
  figures.buffers_claimed = memory_.buffers();
  Time begun = now;
  for (const Stream& stream : streams_) {
    if (stream.begun() == kNever) continue;
    figures.waited_for |= stream.waited_for();
    begun = std::min(begun, stream.begun());
  }
  figures.waiting = now - begun;
  figures.present.for_each([&](Rank r) {
    const Duration silence = members.silence_of(r, now);
    if (silence < figures.silence) return;
    figures.most_silent = r;
    figures.silence = silence;
  });
  return figures;
}

}  // namespace sluice::aggregator
