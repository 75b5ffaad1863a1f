#include "worker/engine.hpp"

#include <algorithm>

namespace sluice::worker {

Engine::Engine(EngineConfig config, std::span<const Endpoint> aggregators)
    : config_(std::move(config)) {
  const auto shards = static_cast<std::uint16_t>(aggregators.size());
  for (std::uint16_t shard = 0; shard < shards; ++shard)
    sessions_.push_back(std::make_unique<ShardSession>(config_, shard, shards, aggregators[shard]));
}

// -------------------------------------------------------------------------------------- joining
void Engine::start(Time now, KeepingSink& sink) {
  Session wanted;
  wanted.streams = config_.streams;
  wanted.history = config_.history;
  wanted.block_elements = config_.block_elements;
  wanted.payload_bytes = config_.payload_bytes;
  sessions_[0]->begin_join(wanted, true, now, control_);
  deadline_ = now;
  flush(sink);
}

/// One shard took us in: the next step of joining, or of life.
void Engine::welcomed(ShardSession& session, Time now, KeepingSink& sink) {
  if (session.shard() == 0 && session.agreed().generation != generation_) {
    if (!virgin(0)) {
      fail_protocol("aggregator 0 began a new life of a job that had made progress");
      return;
    }
    generation_ = session.agreed().generation;
    streams_.clear();
    ops_.forget_streams();
    join_others(now);
  } else if (session.is_new_epoch() && !start_epoch(session)) {
    return;
  }
  if (!streams_.empty()) {
    advance_streams(session, now, sink);
  } else if (all_sessions(ShardSession::State::kIn)) {
    for (std::uint16_t s = 0; s < this->session().streams; ++s)
      streams_.emplace_back(StreamId{s}, this->session().history);
    if (state_ == State::kJoining) state_ = State::kActive;
    for (const auto& each : sessions_) advance_streams(*each, now, sink);
  }
}

/// Shard 0 has decided; the others are told what.
void Engine::join_others(Time now) {
  for (std::size_t i = 1; i < sessions_.size(); ++i)
    sessions_[i]->begin_join(sessions_[0]->agreed(), true, now, control_);
}

/// The aggregator knows of a stream what its workers tell it: all of it, if any has made progress.
bool Engine::start_epoch(ShardSession& session) {
  for (std::size_t s = session.shard(); s < streams_.size(); s += sessions_.size()) {
    Stream& x = streams_[s];
    if (x.has_progress() && !session.resume()) {
      fail_protocol("aggregator " + std::to_string(session.shard()) +
                    " forgot what this rank told it when joining again");
      return false;
    }
    x.start_epoch(session.resume(), ops_);
  }
  return true;
}

void Engine::advance_streams(const ShardSession& session, Time now, KeepingSink& sink) {
  for (std::size_t i = session.shard(); i < streams_.size(); i += sessions_.size()) {
    StreamScope scope = scope_of(StreamId{static_cast<std::uint16_t>(i)}, now, sink);
    streams_[i].on_session(scope);
  }
}

bool Engine::all_sessions(ShardSession::State state) const {
  return std::all_of(sessions_.begin(), sessions_.end(),
                     [&](const auto& session) { return session->state() == state; });
}

/// The aggregator does not know our token, or is not heard: it was restarted, its standby took
/// over, or the packet lied. What we hold stays frozen until it welcomes us again.
void Engine::rejoin(ShardSession& session, bool refused_at_home, Time now) {
  ++counters_.rejoins;
  session.begin_rejoin(refused_at_home, virgin(session.shard()), now, control_);
}

/// Whether no round has ended: on the shard's streams, or at shard 0, which decides for all, on
/// any.
bool Engine::virgin(std::uint16_t shard) const {
  const std::size_t step = shard == 0 ? 1 : sessions_.size();
  for (std::size_t s = shard; s < streams_.size(); s += step)
    if (streams_[s].has_progress()) return false;
  return true;
}

// ----------------------------------------------------------------------------------- what arrives
void Engine::receive(const Endpoint& from, Buffer buffer, Time now, KeepingSink& sink) {
  ++counters_.packets_received;
  if (over()) {
    counters_.drops.count(DropReason::kNotJoined);
    return;
  }
  Packet packet;
  DropReason drop = Packet::parse(buffer.bytes(), packet);
  if (drop == DropReason::kNone && config_.integrity && from.off_machine && !packet.has_integrity())
    drop = DropReason::kNoIntegrity;
  if (drop == DropReason::kNone && !is_authentic(packet)) drop = DropReason::kNotAuthentic;
  if (drop == DropReason::kNone) drop = dispatch(from, packet, std::move(buffer), now, sink);
  if (drop != DropReason::kNone) counters_.drops.count(drop);
  if (!control_.empty()) {
    deadline_ = std::min(deadline_, now);  // a session has moved: its next deadline too
    flush(sink);
  }
}

/// Whether a packet that needs no session shows the job's secret, if there is one. The exception is
/// the word that we do not show it ourselves: who does not share the secret can only say it so.
bool Engine::is_authentic(const Packet& packet) const {
  if (!wire::uses_handshake_key(packet.kind())) return true;  // on_stream and on_keep_alive_ack do
  const bool not_shared = packet.kind() == wire::Kind::kAbort &&
                          packet.as<wire::Abort>().reason ==
                              static_cast<std::uint16_t>(wire::AbortReason::kNotAuthenticated);
  return not_shared || sessions_[0]->protection().accepts(packet);
}

/// Offers a packet to the sessions until one takes it.
template <class Member>
DropReason Engine::for_session(Member&& wants) {
  for (auto& session : sessions_)
    if (wants(*session)) return DropReason::kNone;
  return DropReason::kNotJoined;
}

DropReason Engine::dispatch(const Endpoint& from, const Packet& packet, Buffer buffer, Time now,
                            KeepingSink& sink) {
  using wire::Kind;
  if (wire::is_upstream(packet.kind())) return DropReason::kWrongDirection;
  if (packet.job() != config_.job) return DropReason::kUnknownJob;
  switch (packet.kind()) {
    case Kind::kChallenge:
      return for_session([&](ShardSession& session) {
        const auto& challenge = packet.as<wire::Challenge>();
        const bool nobody_there_needs_us = state_ == State::kLeaving && virgin(session.shard());
        if (nobody_there_needs_us && session.found_another(challenge)) return session_left(session);
        return session.on_challenge(from, challenge, now, control_);
      });
    case Kind::kPending:
      return for_session([&](ShardSession& session) {
        return session.on_pending(packet.as<wire::Pending>(), now);
      });
    case Kind::kWelcome:
      return for_session([&](ShardSession& session) {
        if (!session.on_welcome(from, packet.as<wire::Welcome>(), now)) return false;
        welcomed(session, now, sink);
        deadline_ = std::min(deadline_, now);
        return true;
      });
    case Kind::kRefused:
      return for_session([&](ShardSession& session) {
        const auto& refused = packet.as<wire::Refused>();
        if (!session.is_refused(refused)) return false;
        if (state_ == State::kLeaving && virgin(session.shard())) return session_left(session);
        session.heard(now);
        rejoin(session, session.is_from_home(refused), now);
        return true;
      });
    case Kind::kAbort:
      return for_session([&](ShardSession& session) {
        const auto& abort = packet.as<wire::Abort>();
        if (!session.is_aborted(abort)) return false;
        if (state_ == State::kLeaving) return session_left(session);
        fail(config_.known_as().error_of(to_info(abort)), to_info(abort), &session);
        return true;
      });
    case Kind::kLeft:
      return for_session([&](ShardSession& session) {
        return session.is_left(packet.as<wire::Left>()) && session_left(session);
      });
    case Kind::kKeepAliveAck:
      return for_session([&](ShardSession& session) {
        return session.protection().accepts(packet) &&
               session.on_keep_alive_ack(packet.as<wire::KeepAliveAck>(), now);
      });
    default:
      return on_stream(packet, std::move(buffer), now, sink);
  }
}

DropReason Engine::on_stream(const Packet& packet, Buffer buffer, Time now, KeepingSink& sink) {
  using wire::Kind;
  const StreamId s{packet.delivery().stream};
  Stream* const x = stream_at(s);
  if (x == nullptr) return DropReason::kBadStream;
  ShardSession& session = shard_of(s);
  if (!session.is_ours(packet.delivery())) return DropReason::kWrongEpoch;
  if (sessions_[0]->claims_no_progress()) return DropReason::kNotJoined;  // of all shards' streams
  if (!session.protection().accepts(packet)) return DropReason::kNotAuthentic;
  if (packet.kind() == Kind::kPoll) return on_poll(s, packet.as<wire::Poll>(), now, sink);
  StreamScope scope = scope_of(s, now, sink);
  const Taken taken = packet.kind() == Kind::kResult
                          ? x->on_result(packet, std::move(buffer), scope)
                          : x->on_status(packet.as<wire::Status>(), scope);
  if (taken.ends_job != nullptr) fail_protocol(*taken.ends_job);
  return taken.drop;
}

/// The aggregator wants to know our position on some of its streams, from `first` on.
DropReason Engine::on_poll(StreamId first, const wire::Poll& poll, Time now, KeepingSink& sink) {
  DropReason drop = DropReason::kStaleRound;
  for (std::size_t i = 0; i < wire::kPolledStreams; ++i) {
    const std::size_t s = first.value + i * sessions_.size();
    if (s >= streams_.size()) break;
    if ((poll.streams[i / 8] >> i % 8 & 1) == 0) continue;
    StreamScope scope = scope_of(StreamId{static_cast<std::uint16_t>(s)}, now, sink);
    if (streams_[s].on_poll(scope) == DropReason::kNone) drop = DropReason::kNone;
  }
  return drop;
}

// -------------------------------------------------------------------------------------------- ops
OpNumber Engine::submit(const OpRequest& request, Time now, KeepingSink& sink) {
  if (state_ != State::kActive)
    return ops_.refuse(failure_.value_or(
        Error(ErrorCode::kAborted, config_.known_as().name() + ": not a member")));
  const OpNumber op = ops_.end();
  const ElementType type = request.wire_type();
  const std::uint32_t block = block_elements(type, request.block_elements);
  const Geometry& geometry =
      ops_.add(request,
               Geometry::make(request.element_count, type, block, session().payload_bytes,
                              session().streams, op),
               config_.search)
          .geometry();
  for (std::uint16_t i = 0; i < geometry.used_streams(); ++i) {
    const auto s = static_cast<std::uint16_t>((geometry.first_stream + i) % geometry.streams);
    Stream* x = stream_at(StreamId{s});  // none yet while a shard takes us in again
    if (x == nullptr || x->busy()) continue;
    StreamScope scope = scope_of(StreamId{s}, now, sink);
    x->advance(scope);
  }
  return op;
}

RankSet Engine::awaited(OpNumber op) const {
  RankSet ranks;
  for (const Stream& x : streams_) ranks |= x.awaited(op);
  return ranks;
}

// ---------------------------------------------------------------------------------------- the end
/// The job is over for us. The aggregators that have not said so themselves are told, so that the
/// other ranks learn of it at once.
void Engine::fail(const Error& error, const std::optional<AbortInfo>& why,
                  const ShardSession* told_by) {
  if (over()) return;
  for (auto& session : sessions_)
    if (session.get() != told_by) session->abort(why, control_);
  state_ = State::kFailed;
  failure_ = error;
  abort_info_ = why;
  ops_.fail_all(error);
  streams_.clear();
  deadline_ = kNever;
}

void Engine::fail_protocol(const std::string& what) {
  fail(Error(ErrorCode::kProtocol, config_.known_as().name() + ": " + what), std::nullopt, nullptr);
}

void Engine::leave(Time now, KeepingSink& sink) {
  if (state_ == State::kJoining || ops_.pending() != 0) {
    abort(
        Error(ErrorCode::kAborted, config_.known_as().name() + ": this rank left with ops pending"),
        sink);
    return;
  }
  if (state_ != State::kActive) return;
  state_ = State::kLeaving;
  for (auto& session : sessions_) session->leave(!virgin(session->shard()), now, control_);
  if (all_sessions(ShardSession::State::kLeft)) state_ = State::kLeft;
  deadline_ = now;
  flush(sink);
}

/// An aggregator has let us go, or what we were members of is over: as good.
bool Engine::session_left(ShardSession& session) {
  session.end();
  if (all_sessions(ShardSession::State::kLeft)) state_ = State::kLeft;
  return true;
}

void Engine::abort(const Error& why, KeepingSink& sink, const std::optional<AbortInfo>& cause) {
  fail(why, cause, nullptr);
  flush(sink);
}

// -------------------------------------------------------------------------------------------- time
void Engine::on_link(std::uint16_t port_id, bool up, Time now) {
  for (auto& session : sessions_) session->on_link(port_id, up, now);
  if (!over()) deadline_ = std::min(deadline_, now);
}

void Engine::on_time(Time now, KeepingSink& sink) {
  if (now < deadline_) return;
  deadline_ = kNever;
  for (std::uint16_t s = 0; s < streams_.size(); ++s) {
    if (now >= streams_[s].due()) {
      StreamScope scope = scope_of(StreamId{s}, now, sink);
      streams_[s].on_timer(scope);
    }
    deadline_ = std::min(deadline_, streams_[s].due());
  }
  for (auto& session : sessions_) {
    if (session->suspects(now)) rejoin(*session, false, now);
    if (auto error = session->on_time(now, control_)) {
      AbortInfo why{.reason = wire::AbortReason::kAggregatorLost, .rank_a = config_.rank};
      why.value_a = session->shard();
      fail(*error, why, nullptr);
      break;
    }
    deadline_ = std::min(deadline_, session->next_deadline());
  }
  flush(sink);
}

}  // namespace sluice::worker
