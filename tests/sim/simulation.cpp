#include "tests/sim/simulation.hpp"

#include <algorithm>

#include "tests/sim/trace.hpp"

namespace sluice::sim {
namespace {

using std::chrono::seconds;

constexpr Duration kLongest = seconds(60);  // after the faults have ended
constexpr std::uint64_t kMostEvents = 20'000'000;

}  // namespace

Simulation::Simulation(const Scenario& scenario, bool tracing)
    : scenario_(scenario),
      random_(derive(scenario.seed, 2)),
      network_(events_, scenario, tracing),
      world_{events_, network_, scenario, random_, tracing} {
  for (unsigned shard = 0; shard < scenario.shards; ++shard) {
    aggregators_.push_back(std::make_unique<AggregatorProcess>(world_, shard));
    aggregators_.back()->boot();
  }
  for (const JobPlan& plan : scenario.jobs) {
    jobs_.push_back(std::make_unique<Job>(world_, plan, aggregators_));
    plan_job(*jobs_.back());
  }
  for (const Blackout& b : scenario.blackouts)
    network_.black_out(jobs_[b.job]->apps[b.rank]->address(), b.downstream, b.from, b.to);
  plan_droughts();
}

App& Simulation::add_app(Job& job, unsigned rank, std::uint16_t port_id, Role role) {
  job.apps.push_back(std::make_unique<App>(world_, job, aggregators_, rank, port_id, role));
  return *job.apps.back();
}

void Simulation::plan_job(Job& job) {
  const JobPlan& plan = job.plan;
  if (plan.shared_port) ++next_port_;
  for (unsigned rank = 0; rank < plan.ranks; ++rank) {
    App& app = add_app(job, rank, plan.shared_port ? next_port_ : ++next_port_);
    ++planned_;
    const double spread = static_cast<double>(plan.start_spread.count());
    events_.in(Duration{static_cast<Duration::rep>(random_.unit() * spread)}, [this, &app] {
      --planned_;
      app.begin(0);
    });
  }
  plan_fault(job);
}

void Simulation::plan_fault(Job& job) {
  const JobPlan& plan = job.plan;
  App& victim = *job.apps[plan.victim];
  const bool dies = plan.fault == Fault::kSilentDeath || plan.fault == Fault::kHangUp;
  if (!dies && plan.fault != Fault::kDuplicateRank && plan.fault != Fault::kShutDown) return;
  ++planned_;
  events_.in(plan.fault_after + plan.start_spread, [this, &job, &victim, &plan] {
    --planned_;
    if (plan.fault == Fault::kShutDown) return aggregators_[0]->shut_down();
    if (plan.fault == Fault::kDuplicateRank)
      return add_app(job, plan.victim, ++next_port_, Role::kIntruder).begin(0);
    die(job, victim);
  });
}

void Simulation::die(Job& job, App& app) {
  if (app.over() || job.over_for_some) return;
  const JobPlan& plan = job.plan;
  app.kill();
  RankFacts& facts = job.ranks[app.rank()];
  facts.died = true;
  facts.died_at = events_.now();
  if (plan.fault == Fault::kHangUp && !plan.shared_port)
    for (auto& aggregator : aggregators_) aggregator->hang_up(app.port_id());
  if (!plan.revived_after) {
    job.over_for_some = true;
    return;
  }
  ++planned_;
  events_.in(*plan.revived_after, [this, &job, rank = app.rank()] {
    --planned_;
    if (job.over_for_some) return;
    job.ranks[rank].came_anew = true;
    add_app(job, rank, ++next_port_).begin(job.plan.programs.size() - 1);
  });
}

void Simulation::plan_droughts() {
  for (const Drought& d : scenario_.droughts) {
    const auto set = [this, d](bool dry) {
      if (d.aggregator) return aggregators_[d.which]->set_dry(dry);
      for (auto& job : jobs_)
        for (auto& app : job->apps)
          if (app->rank() == d.which) app->set_dry(dry);
    };
    events_.at(d.from, [set] { set(true); });
    events_.at(d.to, [set] { set(false); });
  }
}

bool Simulation::all_over() const {
  return planned_ == 0 && std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
           return std::all_of(job->apps.begin(), job->apps.end(),
                              [](const auto& app) { return app->over() || app->dead(); });
         });
}

std::string Simulation::states() const {
  std::string text;
  for (const auto& job : jobs_)
    for (const auto& app : job->apps)
      if (!app->over() && !app->dead()) text += "\n  " + app->state();
  return text;
}

void Simulation::run() {
  const Time limit = scenario_.faults_end + kLongest;
  std::uint64_t events = 0;
  while (!all_over()) {
    if (!events_.step()) throw Bug("nothing happens any more:" + states());
    if (events_.now() > limit || ++events > kMostEvents) throw Bug("hang:" + states());
  }
  const auto idle = [this] {
    return std::all_of(aggregators_.begin(), aggregators_.end(),
                       [](const auto& a) { return a->idle() && a->buffers_in_use() == 0; });
  };
  const Time patience = events_.now() + kLiveness + kFormation + seconds(5);
  while (!idle()) {
    require(events_.step() && events_.now() < patience, "an aggregator keeps a job for ever");
  }
  for (const auto& job : jobs_) {
    for (const auto& app : job->apps) app->check_end();
    check_duplicates(*job);
  }
}

/// Of two processes with one rank, one does the work.
void Simulation::check_duplicates(const Job& job) const {
  if (job.plan.fault != Fault::kDuplicateRank || job.silence_seen) return;
  std::uint64_t well = 0;
  for (const auto& app : job.apps)
    if (app->rank() == job.plan.victim) well += app->ops_ended_well();
  require(well == job.plan.programs[0].size() ||
              (job.plan.ranks == 1 && well == 2 * job.plan.programs[0].size()),
          "the contested rank's ops did not end well once");
}

void Simulation::add_to(Coverage& coverage) {
  for (const auto& job : jobs_) coverage["simulation.jobs too silent to live"] += job->silence_seen;
  const auto add = [&](const Coverage& part) {
    for (const auto& [name, n] : part) coverage[name] += n;
  };
  for (auto& aggregator : aggregators_) {
    coverage["simulation.crashes"] += aggregator->crashes();
    add(aggregator->totals());
  }
  for (const auto& job : jobs_) {
    ++coverage[std::string("simulation.jobs with ") + name(job->plan.fault)];
    for (const auto& app : job->apps) add(app->totals());
  }
  coverage["simulation.packets"] += network_.packets();
}

}  // namespace sluice::sim
