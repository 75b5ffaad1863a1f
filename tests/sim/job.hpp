// One job of the simulation, what has happened to its ranks, and the judgement of their errors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <sluice/error.hpp>

#include "common/protocol/abort_info.hpp"
#include "tests/sim/aggregator_process.hpp"
#include "tests/sim/host_sums.hpp"
#include "tests/sim/scenario.hpp"

namespace sluice::sim {

class App;

/// What has happened to a rank so far, over all its processes.
struct RankFacts {
  bool died = false;
  bool disconnected = false;  ///< the aggregators were informed when it died
  bool rejoined = false;      ///< a process of the rank joined after another had been a member
  bool failed = false;        ///< a process of the rank had an error
  bool called_leave = false;
  std::optional<Error> error;  ///< the last one
  // When it last died; Time{}: never.
  Time died_at{};
  Time silent_at{};  ///< an aggregator rightly declared it failed, although it lives
  Time rejoined_at{};
  Time failed_at{};
  Time left_at{};                              ///< it called leave()
  Departure departure = Departure::kByChoice;  ///< too early, if it did
  Time due{};                                  ///< the deadline of its op with a time-out
};

/// An event that explains an error.
struct Cause {
  Time at{};         ///< when it happened
  Duration takes{};  ///< how long, from then or from when a rank begins to wait, the error may take
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
  /// A rank needs no further generation, so the others cannot come back.
  bool over_for_some = false;
  bool silence_seen = false;  ///< so many packets were lost that a living rank was declared failed

  /// Whether a shard has no aggregator any more, and will have none.
  bool shard_gone() const;

  /// A rank of this job, by its number in it or in one of its rails; nothing if `id` is neither.
  std::optional<unsigned> rank_of(std::uint32_t id, unsigned number) const;
  /// The reverse.
  std::optional<unsigned> number_of(std::uint32_t id, unsigned rank) const;
  void note_rail(std::uint32_t id, const std::vector<Rank>& ranks) { rails_.emplace(id, ranks); }
  /// The shared memory of a host's ranks in a job of theirs.
  std::shared_ptr<HostGroup> host_group(std::uint32_t id, unsigned host, std::size_t ranks);

  /// An aggregator declares a rank failed because it has received nothing from it in this job, or
  /// in a rail, where it has this number. Throws Bug unless that was true for a permitted time and
  /// a fault explains it.
  void judge_silence(const AggregatorProcess& aggregator, std::uint32_t id, unsigned number);

  /// An app has an error, after it has waited since then. Throws Bug unless the error has a cause,
  /// names the right rank or shard, and does not come late.
  void judge(const App& app, const Error& error, Time waits_since);

  /// What all ranks must hold after op `index` of program `program`; it is computed once.
  const Outcome& outcome(std::size_t program, std::size_t op, std::uint32_t block_elements);
  const PairSums& sums(std::size_t program, std::size_t op, unsigned chunk_bits);

 private:
  std::vector<Cause> causes_of(const App& app, const Error& error) const;
  std::vector<Cause> worker_lost(const App& app, const Error& error) const;
  std::vector<Cause> aggregator_lost(const App& app, const Error& error) const;
  std::vector<Cause> formation_failed(const App& app, const Error& error) const;
  std::vector<Cause> mismatch(const Error& error) const;
  bool may_not_meet(const App& app) const;
  bool may_be_absent(unsigned rank) const;
  bool speaks_of_victim(const Error& error) const;
  bool says_how_it_left(const Error& error) const;
  bool may_miss_resumption() const;
  bool may_be_unheard(unsigned shard, unsigned rank, Time from, Time to) const;
  bool was_taken_in_elsewhere(const AggregatorProcess& aggregator, std::uint32_t id,
                              unsigned number) const;
  Duration passed_on() const;
  Duration held_up(unsigned rank, Time since) const;
  Duration others_held_up(const App& app, Time since) const;
  Time last_death(unsigned shard) const;
  Time sent_away_young() const;
  bool shard_unreachable(unsigned shard, unsigned rank) const;
  bool shard_gone(unsigned shard) const;
  bool anyone(bool RankFacts::*fact) const;
  bool names_victim(const Error& error) const;
  const RankFacts& named(const Error& error) const;

  World& world_;
  const std::vector<std::unique_ptr<AggregatorProcess>>& aggregators_;
  std::map<std::uint32_t, std::vector<Rank>> rails_;  // by their ids
  std::map<std::pair<std::uint32_t, unsigned>, std::shared_ptr<HostGroup>> host_groups_;
  std::map<std::pair<std::size_t, std::size_t>, Outcome> outcomes_;
  std::map<std::pair<std::size_t, std::size_t>, PairSums> sums_;
};

}  // namespace sluice::sim
