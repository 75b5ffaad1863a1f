#include "tests/sim/rank_membership.hpp"

#include <algorithm>
#include <utility>

#include "common/protocol/packet.hpp"
#include "tests/sim/bug.hpp"
#include "tests/sim/job.hpp"

namespace sluice::sim {

using State = Membership::State;

RankMembership::RankMembership(World& world, Job& job, Host& host, worker::EngineConfig config,
                               std::vector<Endpoint> aggregators, Random& random,
                               std::function<void()> step, std::function<void()> turn)
    : world_(world),
      job_(job),
      host_(host),
      config_(std::move(config)),
      aggregators_(std::move(aggregators)),
      random_(random),
      step_(std::move(step)),
      turn_(std::move(turn)),
      own_host_(config_.host) {
  auto whole = std::make_unique<EngineMembership>(config_, aggregators_, host.sink(), host.now());
  whole_ = whole.get();
  membership_ = std::move(whole);
}

State RankMembership::state() const {
  const State state = membership_->state();
  const bool tells = !hierarchy_ && state == State::kActive && whole_->session().has_hosts;
  return tells ? State::kJoining : state;
}

/// Checks that ops end only when nobody can access their tensors any more.
void RankMembership::check_end() const {
  require(whole_->over(), "a job is over before that of all ranks");
  if (!hierarchy_) return;
  for (const Membership* const part : hierarchy_->parts())
    require(part->over(), "a job is over before its parts");
}

void RankMembership::receive(const Endpoint& from, Buffer buffer) {
  const auto job = peek_job(buffer.bytes());
  if (rail_ && job == rail_->job()) {
    if (!rail_->over()) rail_->receive(from, std::move(buffer), host_.now());
  } else if (!whole_->over()) {
    membership_->receive(from, std::move(buffer), host_.now());
  }
  if (!hierarchy_) return tell_host();
  hierarchy_->advance(host_.now());
  turn_soon();
}

void RankMembership::on_time() {
  const Time now = host_.now();
  bool any = membership_->on_time(now);
  if (!hierarchy_) return tell_host();
  for (Membership* const part : hierarchy_->parts()) {
    any |= part->on_time(now);
    any |= hierarchy_->advance(now);
  }
  if (any) turn_soon();
}

void RankMembership::excuse_pause(Duration pause) {
  membership_->excuse_pause(pause, host_.now());
  if (rail_) rail_->excuse_pause(pause, host_.now());
}

Time RankMembership::next_deadline() const {
  Time due = whole_->over() ? kNever : whole_->engine().next_deadline();
  if (rail_ && !rail_->over()) due = std::min(due, rail_->engine().next_deadline());
  for (const HostSums* const sums : of_host_) due = std::min(due, sums->next_deadline());
  return due;
}

std::size_t RankMembership::most_buffers() const {
  std::size_t most = 0;
  for (const EngineMembership* each :
       {static_cast<const EngineMembership*>(whole_), static_cast<const EngineMembership*>(rail_)})
    if (each) most += std::size_t{each->session().streams} * (each->session().history + 1u);
  return most;
}

void RankMembership::die() {
  for (HostSums* const sums : of_host_) sums->die();
}

void RankMembership::for_each_group(const std::function<void(std::uint32_t group)>& f) const {
  whole_->for_each_group(f);
  if (rail_) rail_->for_each_group(f);
}

/// As Communicator does it.
void RankMembership::tell_host() {
  if (whole_->state() != State::kActive || !whole_->session().has_hosts) return;
  if (!told_op_) {
    hosts_.resize(config_.ranks);
    worker::OpRequest request;
    request.collective = wire::Collective::kAllGather;
    request.type = ElementType::kInt64;
    const std::vector<std::uint64_t> counts(hosts_.size(), 1);
    worker::lay_out(request, {config_.rank.value, config_.ranks}, counts);
    request.input = reinterpret_cast<const std::byte*>(&own_host_);
    request.output = reinterpret_cast<std::byte*>(hosts_.data());
    told_op_ = whole_->submit(request, counts, host_.now());
  }
  for (const worker::Completion& completion : whole_->take_completions()) {
    require(completion.op == *told_op_, "an op ended that was not open");
    if (!completion.error) join_hosts();
  }
}

void RankMembership::join_hosts() {
  placement_.emplace(hosts_);
  require(std::ranges::equal(hosts_, job_.plan.hosts), "ranks are said to be on other hosts");
  worker::hierarchy::Parts parts =
      worker::hierarchy::join_parts(config_.label(), *placement_, *whole_, *this);
  auto hierarchy = std::make_unique<worker::hierarchy::HierarchicalMembership>(
      config_.label(), *placement_, std::move(membership_), std::move(parts),
      job_.plan.min_chunk_of_rail);
  hierarchy_ = hierarchy.get();
  membership_ = std::move(hierarchy);
  note_placement();
  on_time();
}

void RankMembership::note_placement() const {
  const std::size_t peers = placement_->ranks_of(placement_->host_of(config_.rank)).size();
  ++world_.coverage["hosts.ranks on one of " + std::to_string(peers)];
  if (placement_->hosts() == 1) ++world_.coverage["hosts.jobs on one"];
  if (placement_->hosts() > 1 && !rail_) ++world_.coverage["hosts.ranks that carry nothing"];
}

std::unique_ptr<worker::host::Sums> RankMembership::join_host(std::uint32_t job) {
  const std::vector<Rank>& ranks = placement_->ranks_of(placement_->host_of(config_.rank));
  const LocalRank self = placement_->local_rank_of(config_.rank);
  Session session = whole_->session();
  session.job = job;
  auto sums = std::make_unique<HostSums>(
      job_.host_group(job, placement_->host_of(config_.rank), ranks.size()),
      HostSums::Config{.alias = config_.label(),
                       .ranks = ranks,
                       .self = self,
                       .of_job = placement_->ranks(),
                       .session = session,
                       .deadline = after(host_.now(), config_.join_timeout)},
      HostGroup::Seat{.step = step_, .wake = turn_}, Random(random_.next()));
  of_host_.push_back(sums.get());
  return sums;
}

std::unique_ptr<Membership> RankMembership::join_rail(const worker::hierarchy::Rail& rail) {
  const Session& session = whole_->session();
  worker::EngineConfig config = config_;
  config.job = rail.job;
  config.alias = rail.alias;
  config.rank = rail.rank;
  config.ranks = rail.ranks;
  config.host = 0;
  config.block_elements = session.block_elements;
  config.payload_bytes = session.payload_bytes;
  config.authenticate_packets = session.authenticated;
  config.encrypt_packets = session.encrypted;
  job_.note_rail(rail.job, rail.alias.ranks);
  auto joined = std::make_unique<EngineMembership>(config, aggregators_, host_.sink(), host_.now());
  rail_ = joined.get();
  return joined;
}

}  // namespace sluice::sim
