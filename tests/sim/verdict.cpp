// Whether an error is one that its scenario explains. What nothing explains is a defect.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/sim/app.hpp"
#include "tests/sim/job.hpp"

namespace sluice::sim {
namespace {

using std::chrono::milliseconds;

/// From a time-out's end to what it does: clocks, turns, a KEEPALIVE that was late.
constexpr Duration kMargin = milliseconds(150);
/// From an aggregator's verdict to the last rank: repeated by each KEEPALIVE until it arrives.
constexpr Duration kNews = milliseconds(1000);
/// From a hang-up to the last rank, where hardly a packet is lost.
constexpr Duration kHangUpNews = milliseconds(300);
/// Loss that can silence the living for longer than the liveness time-out.
constexpr double kLossy = 0.1;

/// The shard that the message speaks of, or nothing.
std::optional<unsigned> shard_named(const Error& error) {
  const std::string text = error.what();
  const std::string word = "aggregator ";
  const auto at = text.find(word);
  if (at == std::string::npos) return std::nullopt;
  char* end = nullptr;
  const char* digits = text.c_str() + at + word.size();
  const auto shard = static_cast<unsigned>(std::strtoul(digits, &end, 10));
  if (end == digits) return std::nullopt;
  return shard;
}

std::string who(const Job& job, unsigned rank) {
  return "job " + std::to_string(job.plan.id) + " rank " + std::to_string(rank);
}

}  // namespace

void Job::judge_silence(const AggregatorProcess& aggregator, unsigned rank) {
  const Time now = world_.events.now();
  const Time last = aggregator.last_sign(plan.id, rank);
  const Duration liveness = world_.scenario.liveness;
  RankFacts& facts = ranks[rank];
  require(now - last >= liveness - liveness / 100, who(*this, rank) + " is given up too soon");
  if (facts.died) {
    const Time since = std::max(aggregator.last_news(plan.id, rank), facts.died_at);
    const Duration excused = world_.troubles.blocked(aggregator.shard(), index, rank, since, now);
    require(now - since <= liveness + liveness / 100 + excused + kMargin,
            who(*this, rank) + " is given up too late");
    return;
  }
  const bool replaced = facts.failed || facts.came_anew || facts.called_leave;
  const Duration blocked =
      world_.troubles.blocked(aggregator.shard(), index, rank, now - 2 * liveness, now);
  // Joins of one life may cross at two addresses: the rank serves one, the other gives it up.
  const bool elsewhere = !world_.scenario.standbys.empty() && !aggregator.ever_heard(plan.id, rank);
  require(replaced || elsewhere || blocked >= liveness / 2 || world_.scenario.loss() >= kLossy,
          who(*this, rank) + " is given up without a cause");
  facts.silent = silence_seen = true;
}

void Job::judge(const App& app, const Error& error) {
  require(just(app, error), who(*this, app.rank()) + ": error without a cause: " + error.what());
}

const RankFacts& Job::named(const Error& error) const {
  static const RankFacts nobody;
  return error.rank() && *error.rank() < ranks.size() ? ranks[*error.rank()] : nobody;
}

bool Job::names_victim(const Error& error) const {
  return error.rank() && *error.rank() == plan.victim;
}

bool Job::just(const App& app, const Error& error) {
  const bool secondary = named(error).failed;  // it failed itself, and ended the job
  switch (error.code()) {
    case ErrorCode::kWorkerLost:
      return worker_lost(error);
    case ErrorCode::kAggregatorLost:
      return aggregator_lost(app, error);
    case ErrorCode::kFormationFailed:
      return secondary || formation_failed(app);
    case ErrorCode::kRankLeft: {
      const bool left_early =
          plan.fault == Fault::kEarlyLeave || plan.fault == Fault::kAbortingLeave;
      return secondary || (left_early && names_victim(error) && named(error).called_leave);
    }
    case ErrorCode::kRankRestarted:
      return named(error).came_anew;
    case ErrorCode::kOpMismatch: {
      // A rank that was given up before the job formed is in its next life, others in the first.
      const bool lives_mixed =
          plan.programs.size() > 1 && (anyone(&RankFacts::died) || anyone(&RankFacts::failed));
      const std::string victim = "rank " + std::to_string(plan.victim) + " ";
      const bool calls_another = plan.fault == Fault::kOpMismatch &&
                                 std::string(error.what()).find(victim) != std::string::npos;
      return error.rank() && error.op() && (calls_another || lives_mixed);
    }
    case ErrorCode::kQuota:
      return plan.fault == Fault::kRankBeyondWorld && app.is_victim();
    case ErrorCode::kAborted:
      return plan.fault == Fault::kAbortingLeave && app.is_victim();
    default:
      return false;
  }
}

bool Job::worker_lost(const Error& error) const {
  if (!error.rank() || *error.rank() >= plan.ranks) return false;
  const RankFacts& lost = named(error);
  const bool aborted = plan.fault == Fault::kAbortingLeave && names_victim(error);
  // An aggregator that is lost for good is named as such by all, not the rank that told of it.
  const bool spread = lost.failed && !shard_gone();
  return lost.died || spread || lost.silent || aborted || could_not_come_back(*error.rank());
}

/// A restarted aggregator gives up ranks that it does not hear.
bool Job::could_not_come_back(unsigned rank) const {
  const Duration liveness = world_.scenario.liveness;
  const Time now = world_.events.now();
  for (unsigned shard = 0; shard < world_.scenario.shards; ++shard)
    if (world_.troubles.blocked(shard, index, rank, now - 2 * liveness, now) >= liveness / 2)
      return !world_.scenario.crashes.empty();
  return false;
}

/// Within the time-out the path was not whole for a good part of it.
bool Job::shard_unreachable(unsigned shard, unsigned rank) const {
  const Time now = world_.events.now();
  return world_.troubles.blocked(shard, index, rank, now - kAggregatorTimeout - kMargin, now) >=
         kAggregatorTimeout / 2;
}

bool Job::aggregator_lost(const App& app, const Error& error) const {
  const auto shard = shard_named(error);
  if (shard && *shard >= world_.scenario.shards) return false;
  if (shard && (shard_gone(*shard) || shard_unreachable(*shard, app.rank()))) return true;
  if (plan.fault == Fault::kShutDown) return shard_gone(0);
  // A life that its aggregator has lost cannot go on without one of its ranks.
  return anyone(&RankFacts::died) || anyone(&RankFacts::came_anew) || over_for_some || silence_seen;
}

bool Job::formation_failed(const App& app) const {
  const bool no_job = plan.fault == Fault::kWrongWorldSize ||
                      plan.fault == Fault::kRankBeyondWorld || plan.fault == Fault::kJoinMismatch;
  const bool contested = plan.fault == Fault::kDuplicateRank && app.rank() == plan.victim;
  if (no_job || contested || over_for_some || anyone(&RankFacts::died) || silence_seen) return true;
  const Time now = world_.events.now();
  // A rank that leaves through an aggregator's restart may hold up the next life.
  const bool one_leaves = std::any_of(apps.begin(), apps.end(), [&](const auto& other) {
    return other->program() < app.program() && !other->over();
  });
  if (plan.fault == Fault::kRejoin && one_leaves && !world_.scenario.crashes.empty()) return true;
  // Some ranks wait at a standby's, others at an aggregator that comes back again and again: they
  // meet where it does not die any more, and the time to form may have begun long before.
  const auto died_lately = [&](const auto& aggregator) {
    return aggregator->ended_at() != Time{} && aggregator->ended_at() > now - kFormation;
  };
  if (!world_.scenario.standbys.empty() &&
      std::any_of(aggregators_.begin(), aggregators_.end(), died_lately))
    return true;
  for (unsigned shard = 0; shard < world_.scenario.shards; ++shard) {
    if (shard_gone(shard)) return true;
    for (unsigned rank = 0; rank < plan.ranks; ++rank)
      if (world_.troubles.blocked(shard, index, rank, now - 2 * kFormation, now) >= kFormation / 2)
        return true;
  }
  return false;
}

// -------------------------------------------------------------------------------------- lateness
Duration Job::blocked(unsigned rank, Time since) const {
  Duration sum{};
  for (unsigned shard = 0; shard < world_.scenario.shards; ++shard)
    sum += world_.troubles.blocked(shard, index, rank, since, world_.events.now());
  return sum;
}

/// Silence is noticed after the liveness time-out, a hang-up at once.
Time Job::worker_lost_by(const App& app, const RankFacts& lost, Time since) const {
  const Scenario& s = world_.scenario;
  const bool formed = since <= lost.died_at;
  const bool at_once = formed && lost.hung_up && s.loss() < 0.02 && s.droughts.empty();
  since = std::max(since, lost.died_at);
  const Duration time = at_once ? kHangUpNews : s.liveness + s.liveness / 100 + kNews;
  return since + time + s.longest_way() + blocked(app.rank(), since);
}

Time Job::aggregator_lost_by(const App& app, const Error& error, Time since) const {
  const auto shard = shard_named(error);
  if (!shard || !shard_gone(*shard)) return kNever;
  for (const auto& aggregator : aggregators_)
    if (aggregator->shard() == *shard) since = std::max(since, aggregator->ended_at());
  for (const Pause& pause : world_.scenario.pauses)
    if (!pause.who.aggregator && pause.who.job == index && pause.who.rank == app.rank())
      since += pause.length;
  return since + kAggregatorTimeout + kAggregatorTimeout / 100 + world_.scenario.longest_way() +
         kMargin;
}

void Job::judge_lateness(const App& app, const Error& error, Time waits_since) const {
  Time limit = kNever;
  if (error.code() == ErrorCode::kAggregatorLost)
    limit = aggregator_lost_by(app, error, waits_since);
  const bool dead = error.code() == ErrorCode::kWorkerLost && named(error).died;
  if (dead && world_.scenario.crashes.empty())
    limit = worker_lost_by(app, named(error), waits_since);
  require(world_.events.now() <= limit,
          who(*this, app.rank()) + ": the error comes too late: " + error.what());
}

}  // namespace sluice::sim
