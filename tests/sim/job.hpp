// One job of the simulation and what may rightly go wrong in it: the judge of errors.
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
  bool came_anew = false;  ///< a process of the rank joined after another had been a member
  bool failed = false;     ///< a process of the rank had an error
  bool called_leave = false;
  Time died_at{};
};

class Job {
 public:
  Job(World& world, const JobPlan& plan,
      const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators)
      : plan(plan), ranks(plan.ranks + 1), world_(world), aggregators_(aggregators) {}

  const JobPlan& plan;
  std::vector<RankFacts> ranks;
  std::vector<std::unique_ptr<App>> apps;
  bool over_for_some = false;  ///< a rank needs no further life: the others cannot come back
  bool silence_seen = false;   ///< so many packets were lost that a living rank counted as dead
  bool lives_mixed = false;    ///< ranks met that are in different programs
  bool progressed = false;     ///< a result was applied in a life that a crash has hit

  /// Throws Bug unless the error has a cause and names the right rank.
  void judge(const App& app, const Error& error);

  /// What all ranks must hold after op `index` of program `program`; made once.
  const Outcome& outcome(std::size_t program, std::size_t index, std::uint32_t block_elements);

 private:
  bool aggregator_failed() const;
  bool is_silent(unsigned rank) const;
  bool lives_differ() const;
  unsigned crashes() const;
  bool progress_made() const;

  World& world_;
  const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators_;
  std::map<std::pair<std::size_t, std::size_t>, Outcome> outcomes_;
};

}  // namespace sluice::sim
