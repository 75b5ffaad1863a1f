#include "tests/sim/stories/story.hpp"

#include <utility>

namespace sluice::sim {
namespace {

constexpr std::uint16_t kBlockElements = 256;
constexpr Time kStoryEnds{std::chrono::seconds(60)};  // nothing may fail after that

OpSpec sum_of(std::size_t job, std::size_t number, std::size_t blocks) {
  OpSpec op;
  op.element_count = kBlockElements * blocks;
  op.tag = op.number = number;
  op.seed = 1000 * job + number + 1;
  return op;
}

/// A scenario in which nothing happens except what the story makes happen.
Scenario quiet(const Setup& setup) {
  Scenario s;
  s.shards = setup.shards;
  s.trust = setup.trust;
  s.streams = static_cast<std::uint16_t>(setup.shards * setup.streams);
  s.link.delay = ms(1);
  s.faults_end = kStoryEnds;
  if (setup.standby) s.standbys.push_back({.shard = 0, .from_start = true});
  for (std::size_t job = 0; job < setup.jobs; ++job) {
    JobPlan plan;
    plan.id = static_cast<std::uint32_t>(10 + job);
    plan.ranks = setup.ranks;
    plan.streams = s.streams;
    plan.block_elements = kBlockElements;
    plan.payload_bytes.assign(setup.ranks, s.payload_bytes);
    Program& program = plan.programs.emplace_back();
    for (std::size_t i = 0; i < setup.sums; ++i) program.push_back(sum_of(job, i, setup.blocks));
    s.jobs.push_back(std::move(plan));
  }
  setup.also(s);
  return s;
}

Bytes with_a_flipped_bit(const Bytes& datagram) {
  auto bytes = *datagram;
  bytes[bytes.size() * 3 / 4] ^= std::byte{0x10};
  return std::make_shared<std::vector<std::byte>>(std::move(bytes));
}

}  // namespace

/// What happens to packets on a path, or to the next few of one kind.
struct Story::Rule {
  enum class Act { kDrop, kRepeat, kFlip };
  Address from;
  Address to;
  Act act = Act::kDrop;
  std::optional<Kind> kind{};  ///< nothing: any kind
  unsigned packets = std::numeric_limits<unsigned>::max();
  Time ends = kNever;
  Duration later{};
};

Story::Story() = default;
Story::~Story() = default;

void Story::begins(const Setup& setup, Tracing tracing) {
  REQUIRE(!simulation_);
  sums_ = setup.sums;
  scenario_ = std::make_unique<Scenario>(quiet(setup));
  simulation_ = std::make_unique<Simulation>(*scenario_, tracing == Tracing::kOn);
  simulation_->world().network.loses = [this](const Endpoint& from, const Endpoint& to,
                                              const Bytes& datagram) {
    return loses(from, to, datagram);
  };
}

Time Story::now() const {
  return simulation_->world().events.now();
}

void Story::acts() {
  acted_at_ = now();
}

Duration Story::since_act() const {
  return now() - acted_at_;
}

// -------------------------------------------------------------------------------------------- who
Story::RankOf Story::rank(unsigned number, std::size_t job) {
  return {*this, number, job};
}

Story::ShardOf Story::shard(unsigned number) {
  return {*this, number, false};
}

Story::ShardOf Story::standby(unsigned number) {
  return {*this, number, true};
}

Story::Link Story::link(const ShardOf& from, const RankOf& to) {
  Cut cut{.job = to.job_, .ranks = {}, .shards = 1u << from.number_, .downstream = true};
  cut.ranks.insert(Rank{static_cast<std::uint16_t>(to.number_)});
  return {*this, from.address(), to.address(), cut};
}

Story::Link Story::link(const RankOf& from, const ShardOf& to) {
  Link back = link(to, from);
  std::swap(back.from_, back.to_);
  back.cut_.downstream = false;
  return back;
}

// ------------------------------------------------------------------------------------------- when
void Story::until(const std::function<bool()>& holds) {
  INFO("what the story waits for does not happen before all ranks are done");
  REQUIRE(simulation_->run_until(holds));
}

void Story::until_all_have_joined() {
  until([this] {
    for (std::size_t job = 0; job < scenario_->jobs.size(); ++job)
      for (const auto& app : simulation_->job(job).apps)
        if (app->active_since() == kNever) return false;
    return true;
  });
}

void Story::passes(Duration time) {
  until([this, end = now() + time] { return now() >= end; });
}

void Story::ends() {
  simulation_->run();
  simulation_->add_to(counted_);
}

// ---------------------------------------------------------------------------------------- network
void Story::add(Rule rule) {
  rules_.push_back(rule);
  acts();
}

Story::Sent& Story::sent(Address from, Address to, Kind kind) {
  return sent_[{from, to, kind}];
}

/// Sees what is sent, and decides whether it is lost.
bool Story::loses(const Endpoint& from, const Endpoint& to, const Bytes& datagram) {
  Packet packet;
  if (Packet::parse(*datagram, packet) != DropReason::kNone) return false;
  Sent& of_path = sent(from.ipv4, to.ipv4, packet.kind());
  ++of_path.packets;
  of_path.shortest = std::min(of_path.shortest, datagram->size());
  of_path.longest = std::max(of_path.longest, datagram->size());
  if (packet.kind() == Kind::kSync && !packet.is_encrypted())
    resumed_[from.ipv4][packet.member().stream] = packet.as<wire::Sync>().applied;
  for (Rule& rule : rules_) {
    const bool applies = rule.packets > 0 && now() < rule.ends && rule.from == from.ipv4 &&
                         rule.to == to.ipv4 && rule.kind.value_or(packet.kind()) == packet.kind();
    if (!applies) continue;
    --rule.packets;
    Network& network = simulation_->world().network;
    switch (rule.act) {
      case Rule::Act::kDrop:
        return true;
      case Rule::Act::kRepeat:
        simulation_->world().events.in(
            rule.later, [=, &network] { network.inject(from, to, datagram, false); });
        return false;
      case Rule::Act::kFlip:
        network.inject(from, to, with_a_flipped_bit(datagram), true);
        return true;
    }
  }
  return false;
}

void Story::Link::drops(unsigned packets, Kind kind) {
  story_.add({.from = from_, .to = to_, .kind = kind, .packets = packets});
}

void Story::Link::repeats(unsigned packets, Kind kind, Duration later) {
  story_.add({.from = from_,
              .to = to_,
              .act = Rule::Act::kRepeat,
              .kind = kind,
              .packets = packets,
              .later = later});
}

void Story::Link::flips_bits(unsigned packets, Kind kind) {
  story_.add({.from = from_, .to = to_, .act = Rule::Act::kFlip, .kind = kind, .packets = packets});
}

void Story::Link::is_cut_for(Duration length) {
  cut_.from = story_.now();
  cut_.to = cut_.from + length;
  story_.simulation_->world().outages.add(cut_);
  story_.add({.from = from_, .to = to_, .ends = cut_.to});
}

std::uint64_t Story::Link::sent(Kind kind) const {
  return story_.sent(from_, to_, kind).packets;
}

std::size_t Story::Link::shortest(Kind kind) const {
  return story_.sent(from_, to_, kind).shortest;
}

std::size_t Story::Link::longest(Kind kind) const {
  return story_.sent(from_, to_, kind).longest;
}

// -------------------------------------------------------------------------------------- processes
void Story::RankOf::dies() {
  story_.acts();
  story_.simulation_->kill_rank(job_, number_, false);
}

void Story::RankOf::disconnects() {
  story_.acts();
  story_.simulation_->kill_rank(job_, number_, true);
}

void Story::RankOf::stops_for(Duration length) {
  story_.acts();
  story_.simulation_->pause({.aggregator = false, .job = job_, .rank = number_}, length);
}

Address Story::RankOf::address() const {
  return address_of_rank(story_.scenario_->jobs.at(job_).id, number_, false);
}

void Story::ShardOf::crashes(Duration down) {
  story_.acts();
  story_.simulation_->kill_aggregator(number_, standby_, story_.now() + down);
}

void Story::ShardOf::is_lost() {
  story_.acts();
  story_.simulation_->kill_aggregator(number_, standby_, kNever);
}

void Story::ShardOf::is_told_to_end(std::optional<Duration> down) {
  story_.acts();
  story_.simulation_->retire_aggregator(number_, down);
}

void Story::ShardOf::stops_for(Duration length) {
  story_.acts();
  story_.simulation_->pause({.aggregator = true, .shard = number_}, length);
}

// ------------------------------------------------------------------------------- what came of it
const RankFacts& Story::RankOf::facts() const {
  return story_.simulation_->job(job_).ranks.at(number_);
}

std::uint64_t Story::RankOf::resumed_from(unsigned stream) const {
  const auto& of_rank = story_.resumed_[address()];
  const auto applied = of_rank.find(stream);
  REQUIRE(applied != of_rank.end());
  return applied->second;
}

void Story::RankOf::got_all_sums() const {
  INFO("job " << job_ << ", rank " << number_);
  const auto& error = facts().error;
  CHECK((error ? error->what() : "no error") == std::string("no error"));
  CHECK(story_.simulation_->job(job_).apps.at(number_)->ops_ended_well() == story_.sums_);
}

void Story::RankOf::got(ErrorCode code, const Says& says) const {
  INFO("job " << job_ << ", rank " << number_);
  const auto& error = facts().error;
  REQUIRE(error);
  INFO(error->what());
  CHECK(name(error->code()) == name(code));
  if (says.rank) CHECK(error->rank() == *says.rank);
  CHECK(std::string(error->what()).find(says.text) != std::string::npos);
  const auto milliseconds = [](Duration time) { return time / std::chrono::milliseconds(1); };
  const Duration took = facts().failed_at - story_.acted_at_;
  CHECK(milliseconds(took) >= milliseconds(says.after));
  CHECK(milliseconds(took) <= milliseconds(says.within));
}

void Story::all_sums_are_right(std::size_t job) {
  for (unsigned number = 0; number < scenario_->jobs.at(job).ranks; ++number)
    rank(number, job).got_all_sums();
}

std::uint64_t Story::counted(const std::string& name) {
  const auto found = counted_.find(name);
  return found == counted_.end() ? 0 : found->second;
}

}  // namespace sluice::sim
