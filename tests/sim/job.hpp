// One job of the simulation, what has happened to its ranks, and the judge of their errors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <sluice/error.hpp>

#include "tests/sim/aggregator_process.hpp"
#include "tests/sim/scenario.hpp"

namespace sluice::sim {

class App;

/// What has happened to a rank so far, over all its processes.
struct RankFacts {
  bool died = false;
  bool hung_up = false;    ///< the aggregators were told when it died
  bool silent = false;     ///< an aggregator rightly gave it up, though it lives
  bool came_anew = false;  ///< a process of the rank joined after another had been a member
  bool failed = false;     ///< a process of the rank had an error
  bool called_leave = false;
  Time died_at{};
};

class Job {
 public:
  Job(World& world, const JobPlan& plan, std::size_t index,
      const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators)
      : plan(plan), index(index), ranks(plan.ranks + 1), world_(world), aggregators_(aggregators) {}

  const JobPlan& plan;
  const std::size_t index;  ///< in the scenario
  std::vector<RankFacts> ranks;
  std::vector<std::unique_ptr<App>> apps;
  bool over_for_some = false;  ///< a rank needs no further life: the others cannot come back
  bool silence_seen = false;   ///< so many packets were lost that a living rank counted as dead

  /// A shard has no aggregator any more, and will have none.
  bool shard_gone() const;

  /// An aggregator gives up a rank for its silence. Throws Bug unless it was silent for long, and
  /// no longer than it may be, and a fault explains it.
  void judge_silence(const AggregatorProcess& aggregator, unsigned rank);

  /// An app has an error. Throws Bug unless it has a cause and names the right rank or shard.
  void judge(const App& app, const Error& error);

  /// It must not come long after its cause, for a rank that has waited since then.
  void judge_lateness(const App& app, const Error& error, Time waits_since) const;

  /// What all ranks must hold after op `index` of program `program`; made once.
  const Outcome& outcome(std::size_t program, std::size_t op, std::uint32_t block_elements);

 private:
  Time worker_lost_by(const App& app, const RankFacts& lost, Time since) const;
  Time aggregator_lost_by(const App& app, const Error& error, Time since) const;
  Duration blocked(unsigned rank, Time since) const;
  bool just(const App& app, const Error& error);
  bool worker_lost(const Error& error) const;
  bool could_not_come_back(unsigned rank) const;
  bool aggregator_lost(const App& app, const Error& error) const;
  bool formation_failed(const App& app) const;
  bool shard_unreachable(unsigned shard, unsigned rank) const;
  bool shard_gone(unsigned shard) const;
  bool anyone(bool RankFacts::*fact) const;
  bool names_victim(const Error& error) const;
  const RankFacts& named(const Error& error) const;

  World& world_;
  const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators_;
  std::map<std::pair<std::size_t, std::size_t>, Outcome> outcomes_;
};

}  // namespace sluice::sim
