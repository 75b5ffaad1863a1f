// One scenario from start to end, with every check. Throws Bug.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tests/sim/app.hpp"
#include "tests/sim/counter_watch.hpp"
#include "tests/sim/hostile_host.hpp"
#include "tests/sim/recovery_watch.hpp"
#include "tests/sim/source_port_watch.hpp"

namespace sluice::sim {

class Simulation {
 public:
  Simulation(const Scenario& scenario, bool tracing);

  void run();
  void add_to(Coverage& coverage);

  // For stories, which act between two events as a seed plans in other simulations.
  /// Continues until `holds()`; returns false if all ranks are done before.
  bool run_until(const std::function<bool()>& holds);
  /// A rank's process dies; aggregators may be informed that its port was removed.
  void kill_rank(std::size_t job, unsigned rank, bool disconnects);
  /// An aggregator with all its lanes is killed; kNever: it does not boot again.
  void kill_aggregator(unsigned shard, bool standby, Time back);
  void retire_aggregator(unsigned shard, std::optional<Duration> down);
  void pause(const Target& who, Duration length);

  World& world() { return world_; }
  const Job& job(std::size_t index) const { return *jobs_.at(index); }
  const AggregatorProcess& aggregator(unsigned shard, bool standby) const;

 private:
  AggregatorProcess& add_aggregator(unsigned shard, AggregatorProcess::Role role);
  void plan_job(Job& job);
  App& add_app(Job& job, unsigned rank, std::uint16_t port_id, Role role = Role::kMember);
  void plan_fault(Job& job);
  void die(Job& job, App& app, bool disconnects);
  void plan_faults_of_processes();
  void on_send(const Endpoint& from, const Endpoint& to, const Bytes& datagram);
  void killed(const AggregatorProcess& lane, Time back);
  void take_over(const AggregatorProcess& dead);
  template <class F>
  void with_lanes_of(const AggregatorProcess& lane, F&& f);
  template <class F>
  void with(const Target& who, F&& f);
  bool all_over() const;
  void check_what_was_sent_again();
  void check_shares() const;
  void check_goodput() const;
  void check_what_was_repaired(Coverage& counts) const;
  void check_duplicates(const Job& job) const;
  std::string states() const;

  const Scenario& scenario_;
  Random random_;
  Events events_;
  Network network_;
  World world_;
  RecoveryWatch watch_;
  CounterWatch counter_watch_;
  SourcePortWatch source_port_watch_;
  std::unique_ptr<HostileHost> hostile_host_;  ///< null if there is none
  std::vector<std::unique_ptr<AggregatorProcess>> aggregators_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::uint16_t next_port_ = 1;
  int planned_ = 0;  ///< starts that are still to come
  std::uint64_t events_run_ = 0;
};

}  // namespace sluice::sim
