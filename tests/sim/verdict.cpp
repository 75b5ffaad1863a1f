// Whether the scenario explains an error. An error without an explanation is a defect.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "tests/sim/app.hpp"
#include "tests/sim/job.hpp"

namespace sluice::sim {
namespace {

using std::chrono::milliseconds;

/// From the end of a time-out to its effect: clocks, turns, a KEEPALIVE that was late.
constexpr Duration kMargin = milliseconds(150);
/// From an aggregator's decision to the last rank: each KEEPALIVE repeats it until it arrives.
constexpr Duration kNews = milliseconds(1000);
/// How long a rank that sees the end of a rail waits for the reason.
constexpr Duration kCauseOfRail = milliseconds(5000);
/// From a disconnect to the last rank, if few packets are lost.
constexpr Duration kDisconnectDelay = milliseconds(300);
/// The probability of something that does not happen in a million seeds, such as the loss of
/// several KEEPALIVEs.
constexpr double kUnlikely = 1e-9;
constexpr double kRare = 1e-6;  // if the sum of probabilities is known less well

/// The shard that the message names, or nothing.
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

/// Whether the path between an aggregator and a rank was so bad that perhaps no KEEPALIVE or
/// repeated WELCOME has come; one is sent in each interval.
bool Job::may_be_unheard(unsigned shard, unsigned rank, Time from, Time to) const {
  const Scenario& s = world_.scenario;
  const Duration whole =
      to - from - world_.outages.blocked(shard, index, rank, from, to) - s.link.late_max;
  const auto sent = static_cast<double>(whole / (s.liveness / 10)) - 1;  // one may be under way
  return sent < 1 || std::pow(s.loss(), sent) > kUnlikely;
}

/// The ranks of a dead aggregator must all be back within the liveness time-out. Each attempt takes
/// three packets, and every second one goes to a standby.
bool Job::may_miss_resumption() const {
  const Scenario& s = world_.scenario;
  const double through = std::pow(1 - std::min(s.loss(), 1.0), 3);
  const Duration interval = (s.standbys.empty() ? 1 : 2) * kJoinRetryMax;
  return std::pow(1 - through, static_cast<double>(s.liveness / interval)) > kRare;
}

/// If a shard has a standby, both aggregators may form the job, and each rely on a JOIN of the
/// rank. The rank repeats no JOIN once it is a member at one of them, but the other accepts the
/// JOINs of the last two intervals (and copies that come late). Then the sequence is
///   JOIN -> here, PENDING -> rank, formed here, WELCOMEs -> rank, none of which it accepts;
///   JOIN -> the other, WELCOME -> rank, KEEPALIVEs -> the other from then on, none here.
/// (The second line may also be the first, if the earlier JOIN arrives here, new or late.) This
/// aggregator cannot know that the rank lives, and must not let the ranks wait from which it
/// receives packets.
bool Job::was_taken_in_elsewhere(const AggregatorProcess& aggregator, std::uint32_t id,
                                 unsigned number) const {
  const Scenario& s = world_.scenario;
  const Time formed = aggregator.formed_at(id);
  if (formed == Time{} || aggregator.member_since(id, number)) return false;
  const unsigned rank = *rank_of(id, number);
  const Duration join_counts = 2 * (s.liveness / 10) + s.longest_way() + kMargin;
  return std::any_of(aggregators_.begin(), aggregators_.end(), [&](const auto& other) {
    const auto since = other->member_since(id, number);
    return other.get() != &aggregator && other->shard() == aggregator.shard() && since &&
           formed <= *since + join_counts &&
           may_be_unheard(aggregator.shard(), rank, formed, *since) &&
           world_.events.now() - other->last_sign(id, number) < s.liveness;
  });
}

void Job::judge_silence(const AggregatorProcess& aggregator, std::uint32_t id, unsigned number) {
  const Time now = world_.events.now();
  const unsigned rank = *rank_of(id, number);
  const Time last = aggregator.last_sign(id, number);
  const Duration liveness = world_.scenario.liveness;
  RankFacts& facts = ranks[rank];
  require(now - last >= liveness - liveness / 100,
          who(*this, rank) + " is declared failed too soon");
  if (facts.died) {
    const Time since = std::max(aggregator.last_news(id, number), facts.died_at);
    const Duration excused = world_.outages.blocked(aggregator.shard(), index, rank, since, now);
    require(now - since <= liveness + liveness / 100 + excused + kMargin,
            who(*this, rank) + " is declared failed too late");
    return;
  }
  // The process that the aggregator knows has ended, and could not be informed; the next one has
  // another generation of the job. (It does not count its own pauses as silence.)
  const Time replaced = std::max({facts.failed_at, facts.rejoined_at, facts.left_at});
  const Duration unheard = liveness + world_.scenario.longest_way() +
                           world_.outages.blocked(aggregator.shard(), index, rank, replaced, now);
  const bool just_replaced = replaced != Time{} && replaced >= last - unheard;
  // JOINs of one generation may cross at two addresses: the rank uses one, the other gives it up.
  const bool elsewhere = !world_.scenario.standbys.empty() && !aggregator.ever_heard(id, number);
  require(just_replaced || elsewhere || was_taken_in_elsewhere(aggregator, id, number) ||
              may_be_unheard(aggregator.shard(), rank, last, now),
          who(*this, rank) + " is declared failed without a cause");
  facts.silent_at = now;
  silence_seen = true;
}

void Job::judge(const App& app, const Error& error, Time waits_since) {
  const std::vector<Cause> causes = causes_of(app, error);
  const std::string what = std::string(": ") + error.what();
  require(!causes.empty(), who(*this, app.rank()) + ": error without a cause" + what);
  if (!plan.hosts.empty()) ++world_.coverage["hosts.error." + std::string(name(error.code()))];
  const Time now = world_.events.now();
  require(std::any_of(causes.begin(), causes.end(),
                      [&](const Cause& cause) {
                        const Time from = std::max(cause.at, waits_since);
                        return now <= from + cause.takes + world_.scenario.longest_way() +
                                          held_up(app.rank(), from) + passed_on();
                      }),
          who(*this, app.rank()) + ": the error comes too late" + what);
}

/// In a job of hosts, the rails form after the job; the reason of a rail's end comes from the whole
/// job, perhaps late; and its memory lasts at least until a stopped rank has continued.
Duration Job::passed_on() const {
  return plan.hosts.empty() ? Duration{} : 2 * kFormation + kCauseOfRail + kMargin;
}

const RankFacts& Job::named(const Error& error) const {
  static const RankFacts nobody;
  return error.rank() && *error.rank() < ranks.size() ? ranks[*error.rank()] : nobody;
}

bool Job::names_victim(const Error& error) const {
  return error.rank() && *error.rank() == plan.victim;
}

bool Job::speaks_of_victim(const Error& error) const {
  const std::string victim = "rank " + std::to_string(plan.victim) + " ";
  return std::string(error.what()).find(victim) != std::string::npos;
}

bool Job::says_how_it_left(const Error& error) const {
  const bool by_exception = named(error).departure == Departure::kByException;
  if (by_exception) ++world_.coverage["ranks.left by an exception"];
  return by_exception == (std::string(error.what()).find(" exception ") != std::string::npos);
}

std::vector<Cause> Job::causes_of(const App& app, const Error& error) const {
  const RankFacts& other = named(error);
  std::vector<Cause> causes;
  switch (error.code()) {
    case ErrorCode::kWorkerLost:
      return worker_lost(app, error);
    case ErrorCode::kAggregatorLost:
      return aggregator_lost(app, error);
    case ErrorCode::kFormationFailed:
      return formation_failed(app, error);
    case ErrorCode::kRankLeft:  // not of a rank that passes on another reason
      if ((plan.fault == Fault::kEarlyLeave || plan.fault == Fault::kAbortingLeave) &&
          names_victim(error) && other.called_leave && says_how_it_left(error))
        causes.push_back({other.left_at, kNews + others_held_up(app, other.left_at)});
      break;
    case ErrorCode::kRankRestarted:
      if (other.rejoined) causes.push_back({other.rejoined_at, world_.scenario.liveness + kNews});
      if (const Time at = sent_away_young(); at != Time{})
        causes.push_back({at, world_.scenario.liveness + kFormation});
      break;
    case ErrorCode::kOpMismatch:
      return mismatch(error);
    case ErrorCode::kQuota:
      if (plan.fault == Fault::kRankBeyondWorld && app.is_victim())
        causes.push_back({Time{}, kJoinTimeout});
      break;
    case ErrorCode::kOpTimedOut:
      if (const Time due = ranks[plan.victim].due; due != Time{} && error.op() == plan.fault_op) {
        const bool is_its_own = app.is_victim() && app.program() == 0;
        if (is_its_own) causes.push_back({due, kMargin});
        if (!is_its_own && speaks_of_victim(error))
          causes.push_back({due, kMargin + kNews + others_held_up(app, due)});
      }
      break;
    case ErrorCode::kAborted:
      if (plan.fault == Fault::kAbortingLeave && app.is_victim())
        causes.push_back({ranks[app.rank()].left_at, Duration{}});
      break;
    default:
      break;
  }
  return causes;
}

/// When ranks reach an op depends on all that they called before, so this is never late.
std::vector<Cause> Job::mismatch(const Error& error) const {
  if (!error.rank() || !error.op()) return {};
  const Cause never_late{world_.events.now(), {}};
  // The streams of a rank that calls another op may be in different ops.
  const bool tells_numbers = std::string(error.what()).find("op number") != std::string::npos;
  const bool is_right_op = tells_numbers || *error.op() == plan.fault_op ||
                           (plan.swapped && *error.op() == plan.fault_op + 1);
  if (plan.fault == Fault::kOpMismatch && speaks_of_victim(error) && is_right_op)
    return {never_late};
  if (plan.programs.size() == 1) return {};
  // A rank that was declared failed before the job formed is in its next generation, while others
  // are in the first: still, or until they had the same error and began the next generation.
  std::vector<Cause> causes;
  for (const auto& other : apps)
    if (other->program() != apps[0]->program()) causes.push_back(never_late);
  for (const RankFacts& other : ranks)
    if (other.failed) causes.push_back({other.failed_at, kNews});
  return causes;
}

std::vector<Cause> Job::worker_lost(const App& app, const Error& error) const {
  if (!error.rank() || *error.rank() >= plan.ranks) return {};
  const Scenario& s = world_.scenario;
  const RankFacts& lost = named(error);
  const Duration noticed = s.liveness + s.liveness / 100 + kNews;
  std::vector<Cause> causes;
  if (lost.died) {
    // A JOIN of a rank that dies before the job has formed may come after the disconnect, or late.
    const bool formed = app.active_since() <= lost.died_at;
    const bool at_once = formed && lost.disconnected && s.loss() < 0.02 &&
                         s.pool_exhaustions.empty() && s.crashes.empty();
    const Duration join_is_late = formed || s.link.ancient == 0 ? Duration{} : kAncient;
    causes.push_back({lost.died_at, at_once ? kDisconnectDelay : noticed + join_is_late});
  }
  if (lost.silent_at != Time{}) causes.push_back({lost.silent_at, kNews});
  // A restarted aggregator may declare a rank failed if it has received nothing from it for a large
  // part of the time-out.
  const Time now = world_.events.now();
  for (unsigned shard = 0; shard < s.shards; ++shard) {
    const Duration blocked =
        world_.outages.blocked(shard, index, *error.rank(), now - 2 * s.liveness, now);
    if (last_death(shard) != Time{} && (blocked >= s.liveness / 2 || may_miss_resumption()))
      causes.push_back({now, {}});
    // A paused rank was declared failed, and then sees that the others have left.
    const Duration absent =
        world_.outages.blocked(shard, index, app.rank(), lost.left_at - s.liveness, now);
    if (last_death(shard) != Time{} && lost.called_leave && absent >= s.liveness / 2)
      causes.push_back({lost.left_at, noticed});
  }
  // If an aggregator is lost for good, all ranks must name it, and not the rank that reported it.
  if (lost.failed && !shard_gone()) causes.push_back({lost.failed_at, noticed});
  if (plan.fault == Fault::kAbortingLeave && names_victim(error))
    causes.push_back({lost.left_at, noticed});
  return causes;
}

std::vector<Cause> Job::aggregator_lost(const App& app, const Error& error) const {
  const auto shard = shard_named(error);
  if (shard && *shard >= world_.scenario.shards) return {};
  const bool was_in = app.active_since() != kNever;
  const Duration silence = was_in ? kAggregatorTimeout : kJoinTimeout;
  const Duration noticed = silence + silence / 100 + kMargin;
  std::vector<Cause> causes;
  if (shard && shard_gone(*shard)) causes.push_back({last_death(*shard), noticed});
  if (shard && shard_unreachable(*shard, app.rank())) causes.push_back({world_.events.now(), {}});
  if (plan.fault == Fault::kShutDown && shard_gone(0)) causes.push_back({last_death(0), noticed});
  if (plan.fault == Fault::kShutDown) return causes;
  // A generation that its aggregator has lost cannot continue without one of its ranks.
  const bool one_missing =
      anyone(&RankFacts::died) || anyone(&RankFacts::rejoined) || over_for_some;
  for (unsigned lost = 0; lost < world_.scenario.shards && one_missing; ++lost)
    if (shard.value_or(lost) == lost && last_death(lost) != Time{})
      causes.push_back({last_death(lost), kJoinTimeout + noticed});
  return causes;
}

/// When an aggregator retired soon after the job had formed there; Time{} if none did. Ranks
/// without progress may then meet, at a standby, an old JOIN of a rank that has progress.
Time Job::sent_away_young() const {
  if (world_.scenario.standbys.empty()) return {};
  const Duration young = 4 * (world_.scenario.liveness / 10) + world_.scenario.longest_way();
  for (const auto& aggregator : aggregators_) {
    const Time formed = aggregator->formed_at(plan.id), retired = aggregator->retired_at();
    if (formed != Time{} && retired >= formed && retired - formed < young) return retired;
  }
  return {};
}

/// Whether the path was interrupted for a large part of the time-out.
bool Job::shard_unreachable(unsigned shard, unsigned rank) const {
  const Time now = world_.events.now();
  return world_.outages.blocked(shard, index, rank, now - kAggregatorTimeout - kMargin, now) >=
         kAggregatorTimeout / 2;
}

std::vector<Cause> Job::formation_failed(const App& app, const Error& error) const {
  // An aggregator waits so long, several of them one after the other. A rank that was a member and
  // has joined again gives up by itself, much later.
  const bool was_in = app.active_since() != kNever;
  const unsigned formations = std::min(world_.scenario.shards, 2u);
  const Cause at_all{Time{}, was_in ? kJoinTimeout + kAggregatorTimeout + kMargin
                                    : formations * kFormation + kNews};
  const bool disagree = plan.fault == Fault::kWrongWorldSize || plan.fault == Fault::kJoinMismatch;
  const bool refused = (plan.fault == Fault::kDuplicateRank && app.rank() == plan.victim) ||
                       plan.fault == Fault::kRankBeyondWorld;
  if (refused || (disagree && speaks_of_victim(error)) || over_for_some || may_not_meet(app))
    return {at_all};
  if (error.rank())
    return may_be_absent(*error.rank()) ? std::vector{at_all} : std::vector<Cause>{};
  for (unsigned rank = 0; rank < plan.ranks; ++rank)
    if (may_be_absent(rank)) return {at_all};
  return {};
}

/// Whether each rank may be there, but not all at one aggregator at the same time.
bool Job::may_not_meet(const App& app) const {
  // A rank that leaves during an aggregator's restart may delay the next generation.
  const bool one_leaves = std::any_of(apps.begin(), apps.end(), [&](const auto& other) {
    return other->program() < app.program() && !other->over();
  });
  if (plan.fault == Fault::kRejoin && one_leaves && !world_.scenario.crashes.empty()) return true;
  // Shard 0 died when it had welcomed some ranks. From then on they wait at the other shards for
  // the ranks that it had not welcomed, also while it is down.
  const Time welcomed = last_death(0);
  if (world_.scenario.shards > 1 && welcomed != Time{} &&
      welcomed > world_.events.now() - kFormation - kNews)
    return true;
  // Some ranks wait at a standby, others at an aggregator that comes back again and again. They
  // meet where it does not die any more, and the formation time-out may have begun long before.
  for (const Standby& standby : world_.scenario.standbys) {
    const Time died = last_death(standby.shard);
    if (died != Time{} && died > world_.events.now() - kFormation) return true;
  }
  return shard_gone();
}

/// Whether the rank was lost in some way while a job may have formed without it, or was hardly
/// reachable.
bool Job::may_be_absent(unsigned rank) const {
  if (rank >= plan.ranks) return false;
  const RankFacts& facts = ranks[rank];
  if (facts.died || facts.failed || facts.silent_at != Time{}) return true;
  const Time now = world_.events.now();
  for (unsigned shard = 0; shard < world_.scenario.shards; ++shard)
    if (world_.outages.blocked(shard, index, rank, now - 2 * kFormation, now) >= kFormation / 2)
      return true;
  return false;
}

// -------------------------------------------------------------------------------------- lateness
/// When the shard's last process died; Time{} if none has.
Time Job::last_death(unsigned shard) const {
  Time last{};
  for (const auto& aggregator : aggregators_)
    if (aggregator->shard() == shard) last = std::max(last, aggregator->ended_at());
  return last;
}

/// How much later than usual a rank may learn of something.
Duration Job::held_up(unsigned rank, Time since) const {
  Duration sum{};
  for (unsigned shard = 0; shard < world_.scenario.shards; ++shard) {
    sum += world_.outages.blocked(shard, index, rank, since, world_.events.now());
    // An aggregator that comes back waits for all ranks before it gives one up, each time.
    const Time died = last_death(shard);
    if (died != Time{} && died >= since - world_.scenario.liveness)
      sum += std::max(died - since, Duration{}) + world_.scenario.liveness + kFormation;
  }
  return sum;
}

/// A rank that leaves is released when the last of the others has shown its position.
Duration Job::others_held_up(const App& app, Time since) const {
  Duration longest{};
  for (unsigned rank = 0; rank < plan.ranks; ++rank)
    if (rank != app.rank()) longest = std::max(longest, held_up(rank, since));
  return longest;
}

}  // namespace sluice::sim
