#include "tests/sim/aggregator_process.hpp"

#include <algorithm>
#include <string_view>

#include "aggregator/engine/engine.hpp"
#include "tests/sim/trace.hpp"

namespace sluice::sim {
namespace {

/// As in the daemon.
constexpr Duration kRetirement = std::chrono::milliseconds(500);

constexpr Duration kWaitsRead = std::chrono::milliseconds(20);  // between two samples

constexpr GroupRange kGroups{.first = 0xefff'0000, .count = 256};  // 239.255.0.0/24

constexpr std::uint64_t key_of(std::uint32_t job, unsigned rank) {
  return (std::uint64_t{job} << 32) | rank;
}

}  // namespace

AggregatorProcess::AggregatorProcess(World& world, unsigned shard, Role role)
    : world_(world),
      shard_(shard),
      role_(role),
      host_(world, *this,
            Endpoint{.port_id = 0,
                     .ipv4 = address_of_shard(shard, role == Role::kStandby),
                     .udp_port = kAggregatorPort,
                     .off_machine = true}),
      ids_(derive(world.scenario.seed, 100 + host_.self().ipv4)) {
  if (role == Role::kStandby) return;
  for (const Crash& crash : world.scenario.crashes)
    if (crash.shard == shard) crashes_to_come_.push_back(crash);
}

AggregatorProcess::~AggregatorProcess() = default;

bool AggregatorProcess::idle() const {
  return !up() || engine_->live_jobs() == 0;
}

aggregator::EngineConfig AggregatorProcess::config() {
  aggregator::EngineConfig config;
  config.shard = static_cast<std::uint16_t>(shard_);
  config.shards = static_cast<std::uint16_t>(world_.scenario.shards);
  config.lanes = static_cast<std::uint16_t>(world_.scenario.lanes);
  config.streams = world_.scenario.streams;
  config.history = world_.scenario.history;
  config.payload_bytes = world_.scenario.payload_bytes;
  config.liveness_timeout = world_.scenario.liveness;
  config.formation_timeout = kFormation;
  config.integrity = world_.scenario.integrity;
  if (world_.scenario.multicast) config.groups = kGroups;
  const Trust trust = world_.scenario.trust;
  config.secret = [&s = world_.scenario](std::uint32_t job) { return secret_of(job, s); };
  config.authenticate_packets = trust == Trust::kAuthenticated;
  config.encrypt_packets = trust == Trust::kEncrypted;
  config.place = [this](std::uint16_t) {
    const Endpoint place = world_.network.outside(host_.self());
    return aggregator::EngineConfig::Place{place.ipv4, place.udp_port};
  };
  config.unique = [this] { return ids_.next() | 1; };
  config.incarnation = config.unique();
  if (world_.scenario.source_ports)
    config.source_ports = [this](const Endpoint& from, Rank rank) {
      return source_ports(from, rank);
    };
  return config;
}

/// Different in each life, as if the device had another key; the same for all lanes.
SourcePorts AggregatorProcess::source_ports(const Endpoint& from, Rank rank) const {
  SourcePorts ports{};
  if (!from.off_machine) return ports;
  const unsigned process = shard_ % world_.scenario.aggregators() + (is_standby() ? 100 : 0);
  Random choice(derive(world_.scenario.seed, 10'000 + 1000 * process + boots_) ^
                derive(from.ipv4, rank.value));
  for (std::size_t lane = 0; lane < world_.scenario.lanes; ++lane)
    ports[lane] =
        static_cast<std::uint16_t>(first_source_port(lane) + choice.below(kSourcePortsOfLane));
  return ports;
}

void AggregatorProcess::boot() {
  if (engine_ || ended_) return;
  ++boots_;
  const aggregator::EngineConfig settings = config();
  incarnation_ = settings.incarnation;
  long_turn_ = settings.keep_alive_interval();
  trace_note(world_.tracing, world_.events.now(), "aggregator %u%s starts", shard_,
             is_standby() ? " (standby)" : "");
  bounds_.clear();
  engine_ = std::make_unique<aggregator::Engine>(
      settings, [this](const aggregator::JobEvent& event) { on_event(event); });
  plan_end();
  host_.start();
}

void AggregatorProcess::plan_end() {
  Sink& sink = host_.sink();
  retires_ = false;
  retired_by_ = kNever;
  retires_at_ = Sink::kUnlimited;
  sink.stop_after(Sink::kUnlimited);
  if (crashes_to_come_.empty()) return;
  const Crash& next = crashes_to_come_.front();
  if (next.retires)
    retires_at_ = sink.sent() + next.after_sends;
  else
    sink.stop_after(next.after_sends);
}

void AggregatorProcess::retire(Retires how) {
  if (!engine_ || retires_) return;
  if (host_.paused()) return host_.later(Duration{}, [this, how] { retire(how); });
  trace_note(world_.tracing, world_.events.now(), "aggregator %u retires", shard_);
  ++world_.coverage["aggregators.retired"];
  retires_ = true;
  retired_at_ = world_.events.now();
  retires_at_ = Sink::kUnlimited;
  engine_->retire(host_.now(), host_.sink());
  host_.wake(engine_->next_deadline());
  if (how == Retires::kAlong) return;
  retired_by_ = after(host_.now(), kRetirement);
  if (on_retired) on_retired(*this);
}

bool AggregatorProcess::ends_now() const {
  return retired_by_ != kNever && (engine_->retired() || host_.now() >= retired_by_);
}

void AggregatorProcess::on_event(const aggregator::JobEvent& event) {
  using Kind = aggregator::JobEvent::Kind;
  const Session& s = event.session;
  const bool begins = event.kind == Kind::kFormed || event.kind == Kind::kResumed;
  if (begins) {
    bounds_[s.job] = std::size_t{s.streams_of(s.shard)} * (s.ranks + s.history);
    formed_at_[s.job] = world_.events.now();
  }
  if (event.kind == Kind::kLeft || event.kind == Kind::kAborted) bounds_.erase(s.job);
  if (event.kind == Kind::kLeft || event.kind == Kind::kAborted ||
      event.kind == Kind::kFormationAbandoned)
    given_.erase(s.job);
  trace_note(world_.tracing, world_.events.now(), "aggregator %u, job %u: %s", shard_, s.job,
             event.kind == Kind::kFormed               ? "formed"
             : event.kind == Kind::kResumed            ? "resumed"
             : event.kind == Kind::kFormationAbandoned ? "abandoned"
             : event.kind == Kind::kLeft               ? "left"
             : event.reason                            ? explain(*event.reason).c_str()
                                                       : "waits for a rank");
  const bool own_verdict = event.kind == Kind::kAborted && !event.reported_by;
  if (own_verdict && event.reason->reason == wire::AbortReason::kRankSilent)
    on_given_up(*this, s.job, event.reason->rank_a.value);
}

void AggregatorProcess::on_packet(const Arrival& arrival, Buffer buffer) {
  if (!arrival.damaged) note_sign(arrival.bytes);
  engine_->receive(arrival.from, std::move(buffer), host_.now(), host_.sink());
  settle();
}

void AggregatorProcess::note_sign(const Bytes& datagram) {
  Packet packet;
  if (Packet::parse(*datagram, packet) != DropReason::kNone) return;
  if (packet.kind() == wire::Kind::kHello || !wire::is_upstream(packet.kind())) return;
  const bool joins = packet.kind() == wire::Kind::kJoin;
  const unsigned rank = joins ? packet.as<wire::Join>().rank : packet.member().rank;
  const std::string_view text(reinterpret_cast<const char*>(datagram->data()), datagram->size());
  if (heard_.insert(std::hash<std::string_view>()(text)).second)
    last_news_[key_of(packet.job(), rank)] = world_.events.now();
  if (packet.kind() != wire::Kind::kKeepAlive) return;
  const auto& keep_alive = packet.as<wire::KeepAlive>();
  Sign& sign = signs_[key_of(packet.job(), keep_alive.member.rank)];
  if (sign.token != keep_alive.member.token || sign.number >= keep_alive.number) return;
  if (sign.number == 0) sign.first = world_.events.now();
  sign.number = keep_alive.number;
  sign.at = world_.events.now();
}

void AggregatorProcess::note_welcome(std::uint32_t job, unsigned rank, std::uint64_t token) {
  if (engine_) given_[job].insert(token);
  Sign& sign = signs_[key_of(job, rank)];
  if (sign.token != token) sign = {.token = token};
}

bool AggregatorProcess::knows(std::uint32_t job, std::uint64_t token) const {
  const auto tokens = given_.find(job);
  return tokens != given_.end() && tokens->second.contains(token);
}

Time AggregatorProcess::last_news(std::uint32_t job, unsigned rank) const {
  const auto news = last_news_.find(key_of(job, rank));
  return std::max(last_sign(job, rank), news == last_news_.end() ? Time{} : news->second);
}

bool AggregatorProcess::ever_heard(std::uint32_t job, unsigned rank) const {
  return last_news_.contains(key_of(job, rank));
}

Time AggregatorProcess::formed_at(std::uint32_t job) const {
  const auto formed = formed_at_.find(job);
  return formed == formed_at_.end() ? Time{} : formed->second;
}

std::optional<Time> AggregatorProcess::member_since(std::uint32_t job, unsigned rank) const {
  const auto sign = signs_.find(key_of(job, rank));
  if (sign == signs_.end() || sign->second.number == 0) return std::nullopt;
  return sign->second.first;
}

Time AggregatorProcess::last_sign(std::uint32_t job, unsigned rank) const {
  const auto sign = signs_.find(key_of(job, rank));
  return std::max(formed_at(job), sign == signs_.end() ? Time{} : sign->second.at);
}

void AggregatorProcess::on_turn() {
  const Sink& sink = host_.sink();
  const std::uint64_t misses = host_.sink().pool().misses;
  engine_->on_time(host_.now(), host_.sink());
  const bool may_poll = host_.sink().pool().misses != misses;  // a round waits for a buffer
  require(may_poll || sink.stopped() || engine_->next_deadline() > host_.now(),
          "an aggregator's timer spins");
  settle();
}

/// As the daemon's lane does it.
void AggregatorProcess::on_pause_over(Duration pause, const std::function<void()>& take_packets) {
  if (pause > long_turn_) {
    engine_->excuse_pause(pause);
    for (auto& [key, sign] : signs_) sign.at += pause;
    for (auto& [job, formed] : formed_at_) formed += pause;
  }
  take_packets();
  if (engine_) on_turn();
}

void AggregatorProcess::settle() {
  if (host_.sink().sent() >= retires_at_) retire(Retires::kItself);
  if (host_.sink().stopped() || ends_now()) return crash();
  check();
  if (host_.now() >= waits_read_at_ + kWaitsRead) read_waits();
  host_.wake(engine_->next_deadline());
}

void AggregatorProcess::read_waits() {
  waits_read_at_ = host_.now();
  waits_.sample(engine_->figures_of_jobs(waits_read_at_), waits_read_at_, totals_);
}

/// Checks that memory is bounded, and that impossible events have not happened.
void AggregatorProcess::check() {
  std::size_t bound = 0;
  for (const auto& [job, buffers] : bounds_) bound += buffers;
  require(buffers_in_use() <= bound, "an aggregator holds too many buffers");
  const auto& c = engine_->counters();
  require(c.drops.total() <= c.packets_received, "more drops than packets");
  require(c.contributions_held <= c.contributions, "more held than contributed");
  require(c.contributions <= c.packets_received, "more contributions than packets");
}

void AggregatorProcess::end_life() {
  read_waits();
  host_.stop();
  ended_at_ = world_.events.now();
  given_.clear();
  cover(totals_, "aggregator", engine_->counters());
  engine_.reset();
  require(buffers_in_use() == 0, "a dead aggregator's buffers live on");
}

void AggregatorProcess::crash() {
  require(!crashes_to_come_.empty(), "an aggregator ends that was not to end");
  const auto down = crashes_to_come_.front().down;
  crashes_to_come_.pop_front();
  const Time back =
      down ? std::min(world_.events.now() + *down, world_.scenario.faults_end) : kNever;
  kill(back);
  if (on_killed) on_killed(*this, back);
}

void AggregatorProcess::kill(Time back) {
  if (!engine_) return;
  trace_note(world_.tracing, world_.events.now(), "aggregator %u %s", shard_,
             retires_ ? "ends" : "is killed");
  if (retires_ && engine_->retired()) ++world_.coverage["aggregators.all were told"];
  ++crashes_;
  end_life();
  ended_ = back == kNever;
  world_.outages.shard_down(shard_, world_.events.now(), back);
  if (!ended_) world_.events.at(back, [this] { boot(); });
}

void AggregatorProcess::faults_end() {
  if (retired_by_ != kNever) {
    crashes_to_come_.resize(1);  // the current one
    return crash();
  }
  crashes_to_come_.clear();
  if (!retires_) plan_end();
}

void AggregatorProcess::shut_down(std::optional<Duration> down) {
  if (engine_ && host_.paused()) return host_.later(Duration{}, [this, down] { shut_down(down); });
  if (!engine_) ended_ = true;
  crashes_to_come_.assign(1, {.shard = shard_, .after_sends = 0, .down = down, .retires = true});
  retire(Retires::kItself);
}

void AggregatorProcess::disconnect(std::uint16_t port_id) {
  if (!engine_) return;
  host_.later({}, [this, port_id] {
    engine_->on_disconnect(port_id, host_.now(), host_.sink());
    settle();
  });
}

void AggregatorProcess::add_to(Coverage& coverage) {
  if (engine_) end_life();
  for (const auto& [name, n] : totals_) coverage[name] += n;
  host_.add_to(coverage);
}

}  // namespace sluice::sim
