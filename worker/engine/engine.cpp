#include "worker/engine/engine.hpp"

#include <algorithm>
#include <cassert>

namespace sluice::worker {

Engine::Engine(EngineConfig config, std::span<const Endpoint> aggregators)
    : config_(std::move(config)), aggregators_(aggregators.begin(), aggregators.end()) {
  assert(!aggregators_.empty());
  add_membership();
}

/// Adds the membership of the next shard.
void Engine::add_membership() {
  const auto shard = static_cast<std::uint16_t>(memberships_.size());
  memberships_.push_back(std::make_unique<ShardMembership>(
      config_, shard, static_cast<std::uint16_t>(aggregators_.size()),
      aggregators_[shard % aggregators_.size()]));
}

// -------------------------------------------------------------------------------------- joining
void Engine::start(Time now, KeepingSink& sink) {
  assert(memberships_[0]->state() == ShardMembership::State::kIdle);
  Session wanted;
  wanted.streams = config_.streams;
  wanted.history = config_.history;
  wanted.block_elements = config_.block_elements;
  wanted.payload_bytes = config_.payload_bytes;
  memberships_[0]->begin_join(wanted, true, now, control_);
  deadline_ = now;
  flush(sink);
}

/// One shard took us in: the next step of joining, or of liveness.
void Engine::welcomed(ShardMembership& membership, Time now, KeepingSink& sink) {
  membership.path.window.path_changed(now);
  if (membership.shard() == 0 && membership.agreed().generation != generation_) {
    if (!has_no_progress(0)) {
      fail_protocol("aggregator 0 began a new generation of a job that had made progress");
      return;
    }
    generation_ = membership.agreed().generation;
    if (!begin_ops_again(sink)) return;
    join_others(now);
  } else if (membership.is_new_epoch() && !start_epoch(membership)) {
    return;
  }
  if (!streams_.empty()) {
    advance_streams(membership, now, sink);
  } else if (all_memberships(ShardMembership::State::kIn)) {
    for (std::uint16_t s = 0; s < session().streams; ++s)
      streams_.emplace_back(StreamId{s}, session().streams, session().history,
                            widest_columns(session()));
    run_orders_.reserve(streams_.size());
    for (const auto& each : memberships_)
      each->path.window.begin(session().streams_of(each->shard()), config_.ranks,
                              config_.round_trip_max);
    if (state_ == State::kJoining) state_ = State::kActive;
    for (const auto& each : memberships_) advance_streams(*each, now, sink);
  }
}

/// No round of any op has ended, so nothing was written. The new generation may have
/// other streams: ops are cut to it.
bool Engine::begin_ops_again(KeepingSink& sink) {
  streams_.clear();
  for (OpNumber op = ops_.begin(); op < ops_.end(); ++op) {
    if (const auto why = too_long(ops_.find(op)->request(), session())) {
      abort(Error(ErrorCode::kInvalidArgument, config_.label().name() + ": " + *why), sink);
      return false;
    }
  }
  for (const OpRequest& request : ops_.withdraw_all()) add(request);
  return true;
}

/// Shard 0 has decided the parameters and the number of shards: joins the others with these.
void Engine::join_others(Time now) {
  while (memberships_.size() < session().shards) add_membership();
  for (std::size_t i = aggregators_.size(); i < memberships_.size(); i += aggregators_.size())
    memberships_[i]->send_from_ports_of(*memberships_[0]);
  for (std::size_t i = 1; i < memberships_.size(); ++i)
    memberships_[i]->begin_join(memberships_[0]->agreed(), true, now, control_);
}

/// A new aggregator learns the streams' positions from the workers, if any has made progress.
bool Engine::start_epoch(ShardMembership& membership) {
  for (std::size_t s = membership.shard(); s < streams_.size(); s += memberships_.size()) {
    Stream& x = streams_[s];
    if (x.has_progress() && !membership.resume()) {
      fail_protocol("aggregator " + std::to_string(membership.shard()) +
                    " forgot what this rank told it when joining again");
      return false;
    }
    x.start_epoch(membership.resume(), ops_);
  }
  return true;
}

void Engine::advance_streams(ShardMembership& membership, Time now, KeepingSink& sink) {
  for (std::size_t i = membership.shard(); i < streams_.size(); i += memberships_.size()) {
    StreamScope scope = scope_of(StreamId{static_cast<std::uint16_t>(i)}, now, sink);
    streams_[i].on_welcome(scope);
  }
  if (!membership.path.window.is_open()) let_run(membership, now, sink);
}

/// The window or the streams' rounds have changed: lets the lowest rounds run.
void Engine::let_run(ShardMembership& membership, Time now, KeepingSink& sink) {
  run_orders_.clear();
  for (std::size_t s = membership.shard(); s < streams_.size(); s += memberships_.size())
    if (const rounds::RunOrder order = streams_[s].run_order(ops_); order.op < ops_.ready_end())
      run_orders_.push_back(order);
  if (run_orders_.empty()) return membership.path.window.let_run({}, true);
  const std::size_t most =
      std::min<std::size_t>(membership.path.window.width(), run_orders_.size());
  std::partial_sort(run_orders_.begin(), run_orders_.begin() + static_cast<std::ptrdiff_t>(most),
                    run_orders_.end());
  membership.path.window.let_run(run_orders_[most - 1], most == run_orders_.size());
  for (std::size_t i = 0; i < most; ++i) {
    Stream& x = streams_[run_orders_[i].stream];
    if (x.busy() && !x.is_held_back()) continue;
    StreamScope scope = scope_of(StreamId{run_orders_[i].stream}, now, sink);
    x.advance(scope);
  }
}

std::string Engine::waits_for() const {
  for (const auto& membership : memberships_)
    if (membership->state() == ShardMembership::State::kJoining) return membership->waits_for();
  return "nothing";
}

std::vector<std::string> Engine::other_builds() const {
  std::vector<std::string> others;
  for (std::size_t i = 0; i < std::min(memberships_.size(), aggregators_.size()); ++i)
    if (auto other = memberships_[i]->other_build()) others.push_back(std::move(*other));
  return others;
}

bool Engine::all_memberships(ShardMembership::State state) const {
  return std::all_of(memberships_.begin(), memberships_.end(),
                     [&](const auto& membership) { return membership->state() == state; });
}

/// The aggregator does not know our token, or sends nothing: it was restarted, its standby took
/// over, or the packet was forged. Our streams stay suspended until it welcomes us again.
void Engine::rejoin(ShardMembership& membership, bool refused_at_home, Time now) {
  ++counters_.rejoins;
  membership.begin_rejoin(refused_at_home, has_no_progress(membership.shard()), now, control_);
}

/// Whether no round has ended on the shard's streams. Shard 0 decides for all shards: for it, on no
/// stream.
bool Engine::has_no_progress(std::uint16_t shard) const {
  const std::size_t step = shard == 0 ? 1 : memberships_.size();
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
  if (drop == DropReason::kNone && config_.integrity && from.off_machine && !shows_damage(packet))
    drop = DropReason::kNoIntegrity;
  if (drop == DropReason::kNone && !is_authentic(packet)) drop = DropReason::kNotAuthentic;
  if (drop == DropReason::kNone) drop = dispatch(from, packet, std::move(buffer), now, sink);
  if (drop != DropReason::kNone) counters_.drops.count(drop);
  if (!control_.empty()) {
    deadline_ = std::min(deadline_, now);  // a membership has moved: its next deadline too
    flush(sink);
  }
}

/// Whether a packet that needs no session shows the job's secret, if there is one. Two packets are
/// excepted: that we do not show the secret, and that we speak another version. An aggregator that
/// does not share the secret, or our version, cannot say so in another way.
bool Engine::is_authentic(const Packet& packet) const {
  if (!wire::uses_handshake_key(packet.kind())) return true;  // on_stream and on_keep_alive_ack do
  const bool not_shared = packet.kind() == wire::Kind::kAbort &&
                          packet.as<wire::Abort>().reason ==
                              static_cast<std::uint16_t>(wire::AbortReason::kNotAuthenticated);
  return not_shared || packet.kind() == wire::Kind::kVersions ||
         memberships_[0]->protection().accepts(packet);
}

/// Offers a packet to the memberships until one takes it.
template <class Wants>
DropReason Engine::for_membership(Wants&& wants) {
  for (auto& membership : memberships_)
    if (wants(*membership)) return DropReason::kNone;
  return DropReason::kNotJoined;
}

DropReason Engine::dispatch(const Endpoint& from, Packet& packet, Buffer buffer, Time now,
                            KeepingSink& sink) {
  using wire::Kind;
  if (wire::is_upstream(packet.kind())) return DropReason::kWrongDirection;
  if (packet.job() != config_.job) return DropReason::kUnknownJob;
  switch (packet.kind()) {
    case Kind::kChallenge:
      return for_membership([&](ShardMembership& membership) {
        const auto& challenge = packet.as<wire::Challenge>();
        const bool nobody_there_needs_us =
            state_ == State::kLeaving && has_no_progress(membership.shard());
        if (nobody_there_needs_us && membership.found_another(challenge))
          return membership_ended(membership);
        return membership.on_challenge(from, challenge, now, control_);
      });
    case Kind::kPending:
      return for_membership([&](ShardMembership& membership) {
        return membership.on_pending(packet.as<wire::Pending>(), now);
      });
    case Kind::kWelcome:
      return for_membership([&](ShardMembership& membership) {
        if (!membership.on_welcome(from, packet.as<wire::Welcome>(), now)) return false;
        welcomed(membership, now, sink);
        deadline_ = std::min(deadline_, now);
        return true;
      });
    case Kind::kRefused:
      return for_membership([&](ShardMembership& membership) {
        const auto& refused = packet.as<wire::Refused>();
        if (!membership.is_refused(from, refused)) return false;
        if (state_ == State::kLeaving && has_no_progress(membership.shard()))
          return membership_ended(membership);
        membership.received(now);
        rejoin(membership, membership.is_from_home(refused), now);
        return true;
      });
    case Kind::kAbort:
      return for_membership([&](ShardMembership& membership) {
        const auto& abort = packet.as<wire::Abort>();
        if (!membership.is_aborted(abort)) return false;
        if (state_ == State::kLeaving) return membership_ended(membership);
        fail(config_.label().error_of(to_info(abort)), to_info(abort), &membership);
        return true;
      });
    case Kind::kVersions:
      return for_membership([&](ShardMembership& membership) {
        if (!membership.on_versions(packet.as<wire::Versions>())) return false;
        deadline_ = std::min(deadline_, now);  // it may be enough to end the join
        return true;
      });
    case Kind::kLeft:
      return for_membership([&](ShardMembership& membership) {
        return membership.is_left(packet.as<wire::Left>()) && membership_ended(membership);
      });
    case Kind::kKeepAliveAck:
      return for_membership([&](ShardMembership& membership) {
        return unseal(membership.protection().opener(), packet, buffer) == DropReason::kNone &&
               membership.on_keep_alive_ack(packet.as<wire::KeepAliveAck>(), now);
      });
    case Kind::kBeacon:
      return for_membership([&](ShardMembership& membership) {
        if (unseal(membership.protection().opener(), packet, buffer) != DropReason::kNone ||
            !membership.on_beacon(packet.as<wire::Beacon>(), now))
          return false;
        ++counters_.beacons_received;
        deadline_ = std::min(deadline_, membership.next_deadline());
        return true;
      });
    default:
      return on_stream(packet, std::move(buffer), now, sink);
  }
}

DropReason Engine::on_stream(Packet& packet, Buffer buffer, Time now, KeepingSink& sink) {
  using wire::Kind;
  const StreamId s{packet.delivery().stream};
  Stream* const x = stream_at(s);
  if (x == nullptr) return DropReason::kBadStream;
  ShardMembership& membership = shard_of(s);
  if (!membership.is_ours(packet.delivery())) return DropReason::kWrongEpoch;
  if (const DropReason bad = unseal(membership.protection().opener(), packet, buffer);
      bad != DropReason::kNone)
    return bad;
  if (memberships_[0]->claims_no_progress()) {  // of all shards' streams
    membership.answered(now);
    return DropReason::kNotJoined;
  }
  if (packet.kind() == Kind::kPoll) return on_poll(s, packet.as<wire::Poll>(), now, sink);
  StreamScope scope = scope_of(s, now, sink);
  rounds::CongestionWindow& window = membership.path.window;
  const unsigned width = window.width();
  const rounds::RunOrder order = x->run_order(ops_);
  const std::uint16_t narrowest = packet.delivery().window;
  const Taken taken = packet.kind() == Kind::kResult || packet.kind() == Kind::kKeyValueResult
                          ? x->on_result(packet, std::move(buffer), scope)
                          : x->on_status(packet.as<wire::Status>(), scope);
  if (taken.drop == DropReason::kNone) window.on_narrowest(narrowest, now);
  if (taken.ends_job != nullptr)
    fail_protocol(*taken.ends_job);
  else if (const rounds::RunOrder next = x->run_order(ops_);
           !window.is_open() &&
           (window.width() != width || (next != order && !window.lets_run(next))))
    let_run(membership, now, sink);
  return taken.drop;
}

/// The aggregator asks for our position on some of its streams, from `first` on. If it names none,
/// it asks whether we are alive.
DropReason Engine::on_poll(StreamId first, const wire::Poll& poll, Time now, KeepingSink& sink) {
  if (std::ranges::all_of(poll.streams, [](std::uint8_t byte) { return byte == 0; })) {
    ShardMembership& membership = shard_of(first);
    membership.ask(now);
    deadline_ = std::min(deadline_, membership.next_deadline());
    return DropReason::kNone;
  }
  DropReason drop = DropReason::kStaleRound;
  for (std::size_t i = 0; i < wire::kPolledStreams; ++i) {
    const std::size_t s = first.value + i * memberships_.size();
    if (s >= streams_.size()) break;
    if ((poll.streams[i / 8] >> i % 8 & 1) == 0) continue;
    StreamScope scope = scope_of(StreamId{static_cast<std::uint16_t>(s)}, now, sink);
    if (streams_[s].on_poll(scope) == DropReason::kNone) drop = DropReason::kNone;
  }
  return drop;
}

// -------------------------------------------------------------------------------------------- ops
OpNumber Engine::submit(const OpRequest& request, Time now, KeepingSink& sink) {
  if (state_ == State::kActive)
    if (const auto why = too_long(request, session()))
      abort(Error(ErrorCode::kInvalidArgument, config_.label().name() + ": " + *why), sink);
  if (state_ != State::kActive)
    return ops_.refuse(
        failure_.value_or(Error(ErrorCode::kAborted, config_.label().name() + ": not a member")));
  assert(streams_.empty() || streams_.size() == session().streams);
  const OpNumber op = ops_.end();
  const OpNumber ready = ops_.ready_end();
  add(request);
  deadline_ = std::min(deadline_, request.timeout.due);
  if (awaits_arrivals()) deadline_ = std::min(deadline_, after(now, kArrivalLook));
  begin_ready(ready, now, sink);
  return op;
}

/// Begins the ops from `first` on that are ready, on streams where nothing else runs.
void Engine::begin_ready(OpNumber first, Time now, KeepingSink& sink) {
  if (first >= ops_.ready_end()) return;
  for (OpNumber op = first; op < ops_.ready_end(); ++op) {
    const std::uint16_t streams = ops_.find(op)->streams_left;
    for (std::uint16_t i = 0; i < streams; ++i) {
      const auto s = static_cast<std::uint16_t>((op + i) % session().streams);
      Stream* x = stream_at(StreamId{s});  // none yet while a shard takes us in again
      if (x == nullptr || x->busy()) continue;
      StreamScope scope = scope_of(StreamId{s}, now, sink);
      x->advance(scope);
    }
  }
  for (const auto& membership : memberships_)
    if (!membership->path.window.is_open()) let_run(*membership, now, sink);
}

/// Looks whether tensors have come from a device.
void Engine::look_for_arrivals(Time now, KeepingSink& sink) {
  const OpNumber first = ops_.ready_end();
  if (ops_.find_ready()) begin_ready(first, now, sink);
}

Operation& Engine::add(const OpRequest& request) {
  return request.keyed ? add_keyed(request) : add_blocks(request);
}

Operation& Engine::add_blocks(const OpRequest& request) {
  // An encoding changes no block: bitmaps, and what ranks choose by blocks, fit all of them.
  const std::uint32_t block = block_elements(request.tensor_type(), request.block_elements);
  Operation& added =
      ops_.add(request,
               Geometry::make(request.element_count, request.wire_type(), block,
                              session().payload_bytes, session().streams, ops_.end()),
               config_.search);
  added.rounds_as(config_.rank, ops_.end() - 1);
  return added;
}

Operation& Engine::add_keyed(const OpRequest& request) {
  const auto geometry = KeyedGeometry::make(request.keyed->key_bound, request.keyed->row_elements,
                                            request.wire_type(), session(), ops_.end());
  assert(geometry);
  Operation& added = ops_.add(request, *geometry);
  added.rounds_as(config_.rank, ops_.end() - 1);
  return added;
}

void Engine::set_timeout(OpNumber op, const OpTimeout& timeout) {
  if (over()) return;
  ops_.set_timeout(op, timeout);
  deadline_ = std::min(deadline_, timeout.due);
}

RankSet Engine::awaited(OpNumber op) const {
  RankSet ranks;
  const Operation* const of = op < ops_.end() ? ops_.find(op) : nullptr;
  for (std::uint16_t s = 0; of != nullptr && s < streams_.size(); ++s)
    if (of->uses(StreamId{s})) ranks |= streams_[s].awaited(op);
  return ranks;
}

RankSet Engine::awaited() const {
  RankSet ranks;
  for (const Stream& stream : streams_) ranks |= stream.awaited(ops_.end());
  return ranks;
}

double Engine::progress(OpNumber number) const {
  const Operation* const op = number < ops_.end() ? ops_.find(number) : nullptr;
  if (op == nullptr || op->streams_left == 0) return 1;
  double done = op->used_streams() - op->streams_left;
  for (const Stream& stream : streams_) done += stream.progress(number, *op);
  return done / op->used_streams();
}

// ---------------------------------------------------------------------------------------- the end
/// The job is over for us. Tells the aggregators that have not said so themselves, so that the
/// other ranks learn it at once.
void Engine::fail(const Error& error, const std::optional<AbortInfo>& why,
                  const ShardMembership* reported_by) {
  if (over()) return;
  for (auto& membership : memberships_)
    if (membership.get() != reported_by) membership->abort(why, control_);
  state_ = State::kFailed;
  failure_ = error;
  abort_info_ = why;
  ops_.fail_all(error);
  streams_.clear();
  deadline_ = kNever;
}

void Engine::fail_protocol(const std::string& what) {
  fail(Error(ErrorCode::kProtocol, config_.label().name() + ": " + what), std::nullopt, nullptr);
}

/// Other ranks may have its results or not, and ranks that come late must not wait for us.
void Engine::end_overdue(OpNumber op, KeepingSink& sink) {
  const OpRequest& request = ops_.find(op)->request();
  const RankSet ranks = awaited(op);
  const auto limit = static_cast<std::uint64_t>(request.timeout.limit.count());
  AbortInfo why{.reason = wire::AbortReason::kOpTimedOut,
                .rank_a = config_.rank,
                .value_a = limit,
                .value_b = ranks.size(),
                .op = op};
  if (!ranks.empty()) why.rank_b = Rank{ranks.lowest()};
  const JobLabel known = config_.label();
  const std::string text = known.name() + ": op " + std::to_string(op) + " (" +
                           std::string(name(request.collective)) + ") was not done within " +
                           std::to_string(limit) + " ms" +
                           (ranks.empty() ? "" : "; it waited for rank " + known.text_of(ranks));
  abort(Error(ErrorCode::kOpTimedOut, text, known.error_of(why).rank(), op), sink, why);
}

void Engine::leave(Time now, KeepingSink& sink, Departure departure) {
  if (state_ == State::kJoining || ops_.pending() != 0) {
    abort(Error(ErrorCode::kAborted, config_.label().name() + ": this rank left with ops pending"),
          sink, cause_of(wire::AbortReason::kRankAborted, config_.rank, departure));
    return;
  }
  if (state_ != State::kActive) return;
  state_ = State::kLeaving;
  const auto why = cause_of(wire::AbortReason::kRankLeft, config_.rank, departure);
  for (auto& membership : memberships_)
    membership->leave(!has_no_progress(membership->shard()), why, now, control_);
  if (all_memberships(ShardMembership::State::kLeft)) state_ = State::kLeft;
  deadline_ = now;
  flush(sink);
}

/// An aggregator has let us go, or the job is over there: both end the membership.
bool Engine::membership_ended(ShardMembership& membership) {
  membership.end();
  if (all_memberships(ShardMembership::State::kLeft)) state_ = State::kLeft;
  return true;
}

void Engine::abort(const Error& why, KeepingSink& sink, const std::optional<AbortInfo>& cause) {
  fail(why, cause, nullptr);
  flush(sink);
}

// -------------------------------------------------------------------------------------------- time
void Engine::on_link(std::uint16_t port_id, bool up, Time now) {
  for (auto& membership : memberships_) membership->on_link(port_id, up, now);
  if (!over()) deadline_ = std::min(deadline_, now);
}

void Engine::on_time(Time now, KeepingSink& sink) {
  if (awaits_arrivals()) look_for_arrivals(now, sink);
  if (now < deadline_) return;
  if (const auto op = ops_.overdue(now)) return end_overdue(*op, sink);
  deadline_ = ops_.next_overdue();
  if (awaits_arrivals()) deadline_ = std::min(deadline_, after(now, kArrivalLook));
  for (std::uint16_t s = 0; s < streams_.size(); ++s) {
    if (now >= streams_[s].due()) {
      StreamScope scope = scope_of(StreamId{s}, now, sink);
      streams_[s].on_timer(scope);
    }
    deadline_ = std::min(deadline_, streams_[s].due());
  }
  for (auto& membership : memberships_) {
    if (membership->suspects(now)) rejoin(*membership, false, now);
    if (auto error = membership->on_time(now, control_)) {
      AbortInfo why{.reason = wire::AbortReason::kAggregatorLost, .rank_a = config_.rank};
      why.value_a = membership->shard();
      fail(*error, why, nullptr);
      break;
    }
    deadline_ = std::min(deadline_, membership->next_deadline());
  }
  flush(sink);
}

}  // namespace sluice::worker
