#include "tests/sim/aggregator_process.hpp"

#include <algorithm>

#include "tests/sim/counting.hpp"
#include "tests/sim/trace.hpp"

namespace sluice::sim {
namespace {

constexpr std::uint64_t key_of(std::uint32_t job, unsigned rank) {
  return (std::uint64_t{job} << 32) | rank;
}

}  // namespace

AggregatorProcess::AggregatorProcess(World& world, unsigned shard)
    : world_(world),
      shard_(shard),
      sink_(world.network, Endpoint{.port_id = 0, .ipv4 = 1 + shard, .udp_port = 4791}),
      ids_(derive(world.scenario.seed, 100 + shard)) {
  for (const Crash& crash : world.scenario.crashes)
    if (crash.shard == shard) crashes_to_come_.push_back(crash);
}

void AggregatorProcess::boot() {
  aggregator::EngineConfig config;
  config.shard = static_cast<std::uint16_t>(shard_);
  config.shards = static_cast<std::uint16_t>(world_.scenario.shards);
  config.streams = world_.scenario.streams;
  config.history = world_.scenario.history;
  config.payload_bytes = world_.scenario.payload_bytes;
  config.liveness_timeout = kLiveness;
  config.formation_timeout = kFormation;
  config.unique = [this] { return ids_.next() | 1; };
  config.incarnation = config.unique();
  trace_note(world_.tracing, world_.events.now(), "aggregator %u starts", shard_);
  ++life_;
  bounds_.clear();
  wake_at_ = kNever;
  engine_ = std::make_unique<aggregator::Engine<Sink>>(
      config, [this](const aggregator::JobEvent& event) { on_event(event); });
  sink_.stop_after(crashes_to_come_.empty() ? Sink::kUnlimited
                                            : crashes_to_come_.front().after_sends);
  world_.network.attach(sink_.self().ipv4, [this](const Endpoint& from, const Bytes& datagram) {
    receive(from, datagram);
  });
}

void AggregatorProcess::on_event(const aggregator::JobEvent& event) {
  using Kind = aggregator::JobEvent::Kind;
  const Session& s = event.session;
  if (event.kind == Kind::kFormed || event.kind == Kind::kResumed)
    bounds_[s.job] = std::size_t{s.streams_of(s.shard)} * (s.ranks + s.history);
  if (event.kind == Kind::kLeft || event.kind == Kind::kAborted) bounds_.erase(s.job);
  trace_note(world_.tracing, world_.events.now(), "aggregator %u, job %u: %s", shard_, s.job,
             event.kind == Kind::kFormed ? "formed"
             : event.kind == Kind::kLeft ? "left"
                                         : explain(*event.reason).c_str());
}

void AggregatorProcess::receive(const Endpoint& from, const Bytes& datagram) {
  Buffer buffer = sink_.received(datagram);
  if (!buffer) return;
  note_sign(datagram);
  engine_->receive(from, std::move(buffer), world_.events.now(), sink_);
  settle();
}

void AggregatorProcess::note_sign(const Bytes& datagram) {
  Packet packet;
  if (Packet::parse(*datagram, packet) != DropReason::kNone) return;
  if (packet.kind() != wire::Kind::kKeepAlive) return;
  const auto& keep_alive = packet.as<wire::KeepAlive>();
  Sign& sign = signs_[key_of(packet.job(), keep_alive.member.rank)];
  if (sign.token == keep_alive.member.token && sign.number >= keep_alive.number) return;
  sign = {keep_alive.member.token, keep_alive.number, world_.events.now()};
}

Time AggregatorProcess::last_sign(std::uint32_t job, unsigned rank) const {
  const auto found = signs_.find(key_of(job, rank));
  return found == signs_.end() ? Time{} : found->second.at;
}

void AggregatorProcess::settle() {
  if (sink_.stopped()) return crash();
  check();
  wake(engine_->next_deadline());
}

/// Memory is bounded, and what cannot be has not happened.
void AggregatorProcess::check() const {
  std::size_t bound = 0;
  for (const auto& [job, buffers] : bounds_) bound += buffers;
  require(const_cast<Sink&>(sink_).pool().live <= bound, "an aggregator holds too many buffers");
  const auto& c = engine_->counters();
  require(c.drops.total() <= c.packets_received, "more drops than packets");
  require(c.contributions_held <= c.contributions, "more held than contributed");
  require(c.contributions <= c.packets_received, "more contributions than packets");
}

void AggregatorProcess::wake(Time at) {
  if (at == kNever || at >= wake_at_) return;
  wake_at_ = std::max(at, world_.events.now() + kTurn);
  world_.events.at(wake_at_, [this, life = life_] { on_wake(life); });
}

void AggregatorProcess::on_wake(std::uint64_t life) {
  if (!engine_ || life != life_ || world_.events.now() < wake_at_) return;
  wake_at_ = kNever;
  const std::uint64_t misses = sink_.pool().misses;
  engine_->on_time(world_.events.now(), sink_);
  const bool may_poll = sink_.pool().misses != misses;  // a round waits for a buffer
  require(may_poll || sink_.stopped() || engine_->next_deadline() > world_.events.now(),
          "an aggregator's timer spins");
  settle();
}

void AggregatorProcess::crash() {
  trace_note(world_.tracing, world_.events.now(), "aggregator %u is killed", shard_);
  ++crashes_;
  world_.network.detach(sink_.self().ipv4);
  cover(totals_, "aggregator", engine_->counters());
  engine_.reset();
  require(sink_.pool().live == 0, "a dead aggregator's buffers live on");
  const Duration down = crashes_to_come_.front().down;
  crashes_to_come_.pop_front();
  world_.events.in(down, [this] { boot(); });
}

void AggregatorProcess::shut_down() {
  trace_note(world_.tracing, world_.events.now(), "aggregator %u shuts down", shard_);
  if (!engine_) return;
  ended_ = true;
  engine_->shut_down(world_.events.now(), sink_);
  require(engine_->live_jobs() == 0, "jobs live on after shut-down");
  require(sink_.pool().live == 0, "buffers live on after shut-down");
  world_.network.detach(sink_.self().ipv4);
  cover(totals_, "aggregator", engine_->counters());
  engine_.reset();
}

void AggregatorProcess::hang_up(std::uint16_t port_id) {
  if (!engine_) return;
  engine_->on_hang_up(port_id, world_.events.now(), sink_);
  settle();
}

const Coverage& AggregatorProcess::totals() {
  if (engine_) {
    cover(totals_, "aggregator", engine_->counters());
    engine_.reset();
    ++life_;
  }
  return totals_;
}

}  // namespace sluice::sim
