#include "tests/sim/job.hpp"

#include <algorithm>

#include "tests/sim/app.hpp"

namespace sluice::sim {

const Outcome& Job::outcome(std::size_t program, std::size_t index, std::uint32_t block_elements) {
  const auto [found, made] = outcomes_.try_emplace({program, index});
  if (made) found->second = reduce(plan.programs[program][index], plan.ranks, block_elements);
  return found->second;
}

bool Job::aggregator_failed() const {
  return std::any_of(aggregators_.begin(), aggregators_.end(),
                     [](const auto& a) { return a->crashes() > 0 || a->ended(); });
}

bool Job::is_silent(unsigned rank) const {
  const Time limit = world_.events.now() - kLiveness;
  return std::any_of(aggregators_.begin(), aggregators_.end(), [&](const auto& aggregator) {
    return aggregator->last_sign(plan.id, rank) <= limit;
  });
}

unsigned Job::crashes() const {
  unsigned sum = 0;
  for (const auto& aggregator : aggregators_) sum += aggregator->crashes();
  return sum;
}

/// A rank that died before the job formed is in its next life while the others are in the first;
/// so is one that learned of progress from an aggregator which was killed again before it told all.
bool Job::lives_differ() const {
  const bool died = std::any_of(ranks.begin(), ranks.end(), [](const auto& r) { return r.died; });
  return (died || silence_seen || crashes() > 1) &&
         std::any_of(apps.begin(), apps.end(), [&](const auto& app) {
           return !app->dead() && app->program() != apps.back()->program();
         });
}

bool Job::progress_made() const {
  return progressed || std::any_of(apps.begin(), apps.end(),
                                   [](const auto& app) { return app->has_applied_results(); });
}

void Job::judge(const App& app, const Error& error) {
  const auto verdict = [&](bool just) {
    require(just, "job " + std::to_string(plan.id) + " rank " + std::to_string(app.rank()) +
                      ": error without a cause: " + error.what());
  };
  const bool names_rank = error.rank().has_value() && *error.rank() < ranks.size();
  const RankFacts& named = ranks[names_rank ? *error.rank() : 0];
  const bool names_victim = names_rank && *error.rank() == plan.victim;
  const bool secondary = names_rank && named.failed;  // it failed itself, and ended the job
  switch (error.code()) {
    case ErrorCode::kWorkerLost: {
      const bool gone =
          named.died || named.failed || (plan.fault == Fault::kAbortingLeave && names_victim);
      silence_seen |= names_rank && !gone && is_silent(*error.rank());
      return verdict(names_rank && (gone || silence_seen));
    }
    case ErrorCode::kRankLeft: {
      const bool left_early =
          plan.fault == Fault::kEarlyLeave || plan.fault == Fault::kAbortingLeave;
      return verdict(secondary || (left_early && names_victim && named.called_leave));
    }
    case ErrorCode::kRankRestarted:
      return verdict(names_rank && named.came_anew);
    case ErrorCode::kOpMismatch: {
      lives_mixed |= lives_differ();
      const std::string victim = "rank " + std::to_string(plan.victim) + " ";
      const bool calls_another = plan.fault == Fault::kOpMismatch &&
                                 std::string(error.what()).find(victim) != std::string::npos;
      return verdict(names_rank && error.op().has_value() && (calls_another || lives_mixed));
    }
    case ErrorCode::kFormationFailed: {
      const bool no_job = plan.fault == Fault::kWrongWorldSize ||
                          plan.fault == Fault::kRankBeyondWorld ||
                          plan.fault == Fault::kJoinMismatch;
      const bool contested = plan.fault == Fault::kDuplicateRank && app.rank() == plan.victim;
      const bool nobody_left = over_for_some || std::any_of(ranks.begin(), ranks.end(),
                                                            [](const auto& r) { return r.died; });
      return verdict(no_job || contested || nobody_left || secondary ||
                     (aggregator_failed() && progress_made()));
    }
    case ErrorCode::kAggregatorLost:
      return verdict(aggregator_failed() &&
                     (plan.fault == Fault::kShutDown || progress_made() || over_for_some));
    case ErrorCode::kQuota:
      return verdict(plan.fault == Fault::kRankBeyondWorld && app.is_victim());
    case ErrorCode::kAborted:
      return verdict(plan.fault == Fault::kAbortingLeave && app.is_victim());
    default:
      return verdict(false);
  }
}

}  // namespace sluice::sim
