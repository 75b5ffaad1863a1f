// The promises of docs/reliability.md, in its order.
#include "tests/sim/stories/story.hpp"

namespace sluice::sim {
namespace {

/// From the end of a time-out until the last rank knows: the interval of a KEEPALIVE, a delay, a
/// turn.
constexpr Duration kNews = std::chrono::milliseconds(150);
/// From a restart to the first result: ranks notice it, join again, and send their positions.
constexpr Duration kResumption = std::chrono::milliseconds(250);

}  // namespace

// ------------------------------------------------- a sum is right, to the bit, or its op fails
STORY("A sum is right though packets are lost both ways") {
  begins({});
  until_all_have_joined();
  link(rank(1), shard(0)).drops(3, Kind::kData);
  link(shard(0), rank(2)).drops(3, Kind::kResult);
  ends();
  all_sums_are_right();
  CHECK(counted("worker.data_resent") >= 3);
  CHECK(counted("aggregator.results_repeated") >= 1);
}

STORY("A contribution that comes twice counts once") {
  begins({});
  until_sent(1, Kind::kWelcome, shard(0), rank(2));
  rank(2).stops_for(ms(50));  // so the first round waits, and has the blocks of 0 and 1
  link(rank(0), shard(0)).repeats(5, Kind::kData, ms(3));
  link(rank(1), shard(0)).repeats(5, Kind::kData, ms(3));
  ends();
  all_sums_are_right();
  CHECK(counted("aggregator.drop.duplicate") >= 2);
}

STORY("A contribution that comes again rounds later counts for none of them") {
  begins({.sums = 20, .blocks = 1});  // so all rounds are alike
  until_all_have_joined();
  link(rank(0), shard(0)).repeats(20, Kind::kData, ms(3));
  link(rank(1), shard(0)).repeats(20, Kind::kData, ms(4));
  link(rank(2), shard(0)).repeats(20, Kind::kData, ms(5));
  ends();
  all_sums_are_right();
  CHECK(counted("aggregator.drop.stale_round") >= 10);
}

STORY("A result that comes again is not written into the next op's tensor") {
  begins({.sums = 8, .blocks = 10});
  until_all_have_joined();
  link(shard(0), rank(0)).repeats(80, Kind::kResult, ms(3));
  link(shard(0), rank(1)).repeats(80, Kind::kResult, ms(5));
  ends();
  all_sums_are_right();
  CHECK(counted("worker.drop.stale_round") >= 100);
}

STORY("Values are added in rank order, whichever comes first") {
  begins({.ranks = 4});
  until_sent(3, Kind::kResult, shard(0), rank(0));
  rank(0).stops_for(ms(20));  // behind all others
  passes(ms(30));
  rank(2).stops_for(ms(20));
  ends();
  all_sums_are_right();
}

STORY("Ranks that call different ops get an error that names both, and no rank a wrong sum") {
  begins({.also = [](Scenario& s) {
    JobPlan& job = s.jobs[0];
    job.fault = Fault::kOpMismatch;
    job.victim = 2;
    job.fault_op = 1;
    job.programs[0][1].poisoned = true;
    job.other_op = job.programs[0][1];
    job.other_op.reduction = Reduction::kMax;
  }});
  ends();
  for (const unsigned each : {0u, 1u, 2u})
    rank(each).got(ErrorCode::kOpMismatch, {.text = "rank 2 "});
}

// --------------------------------------------------------------------------- every call ends
STORY("Every call ends, also of a rank whose path is cut for good and of those that wait for it") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  link(rank(1), shard(0)).is_cut_for(ms(50'000));
  link(shard(0), rank(1)).is_cut_for(ms(50'000));
  ends();
  rank(0).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + kNews});
  rank(2).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + kNews});
  rank(1).got(ErrorCode::kAggregatorLost,
              {.within = kAggregatorTimeout + kNews, .text = "aggregator 0"});
}

STORY(
    "A rank that lacks the last result gets it, though others want to leave and one crash comes") {
  begins({.sums = 1, .blocks = 10});
  until_sent(9, Kind::kResult, shard(0), rank(1));
  link(shard(0), rank(1)).is_cut_for(ms(100));
  until_sent(1, Kind::kLeave, rank(0), shard(0));
  passes(ms(30));
  shard(0).crashes(ms(150));  // what it has kept for rank 1 is lost
  ends();
  all_sums_are_right();
}

STORY("A rank that nobody else joins gets an error that names the absent rank") {
  begins({.ranks = 2});
  rank(1).dies();  // before it has joined
  ends();
  rank(0).got(ErrorCode::kFormationFailed, {.within = kFormation + kNews, .text = "rank 1"});
}

// ---------------------------------------------------------- an aggregator's crash is survived
STORY("An aggregator that crashes and comes back in the middle of a sum costs no op") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).crashes(ms(300));
  until_sent(1, Kind::kResult, shard(0), rank(0));
  CHECK(since_act() <= ms(300) + kResumption);
  ends();
  all_sums_are_right();
  CHECK(counted("recovery.jobs resumed") == 1);
}

STORY("A round that one rank alone has the result of, when the aggregator crashes, is replayed") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  link(shard(0), rank(1)).is_cut_for(ms(100));
  until_sent(1, Kind::kResult, shard(0), rank(0));
  passes(ms(2));
  shard(0).crashes(ms(150));
  ends();
  all_sums_are_right();
  CHECK(rank(0).resumed_from() == rank(1).resumed_from() + 1);
  CHECK(counted("worker.rounds_replayed") >= 1);
}

STORY("An aggregator that crashes again while ranks tell it where they are costs no op either") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).crashes(ms(100));
  until_sent(1, Kind::kSync, rank(0), shard(0));
  shard(0).crashes(ms(100));
  ends();
  all_sums_are_right();
  CHECK(counted("recovery.killed in a resynchronisation") == 1);
}

STORY(
    "An aggregator that crashes while the first ranks leave lets all of them leave when it is "
    "back") {
  begins({});
  until_sent(1, Kind::kLeave, rank(0), shard(0));
  shard(0).crashes(ms(100));
  ends();
  all_sums_are_right();
}

STORY("A JOIN from before a crash that comes again after it ends nothing") {
  begins({});
  link(rank(1), shard(0)).repeats(2, Kind::kJoin, ms(400));
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).crashes(ms(100));
  until_sent(2, Kind::kResult, shard(0), rank(0));
  rank(2).stops_for(ms(500));  // so that it comes while the job sums
  ends();
  all_sums_are_right();
}

STORY("One of two aggregators crashes: the other's streams lose nothing") {
  begins({.shards = 2});
  until_sent(5, Kind::kResult, shard(1), rank(0));
  shard(1).crashes(ms(200));
  ends();
  all_sums_are_right();
  CHECK(link(rank(0), shard(0)).sent(Kind::kJoin) == 1);
}

STORY("A standby takes over from an aggregator that is lost, and the same calls return") {
  begins({.standby = true});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).is_lost();
  until_sent(1, Kind::kResult, standby(0), rank(0));
  CHECK(since_act() < kAggregatorTimeout);
  ends();
  all_sums_are_right();
}

// ------------------------------------------- an aggregator that is told to end loses nothing
STORY("An aggregator that is told to end sends its ranks to its standby at once") {
  begins({.standby = true});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).is_told_to_end();
  until_sent(1, Kind::kResult, standby(0), rank(0));
  CHECK(since_act() <= ms(100));
  ends();
  all_sums_are_right();
  CHECK(counted("aggregators.all were told") == 1);
}

STORY("An aggregator that is told to end is awaited by its ranks until its successor is there") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).is_told_to_end(ms(200));
  ends();
  all_sums_are_right();
  CHECK(counted("aggregators.all were told") == 1);
}

// --------------------------------------------------------------------- nothing comes back
STORY("If an aggregator does not come back, every rank gets an error that names it, in time") {
  begins({.shards = 2});
  until_sent(5, Kind::kResult, shard(1), rank(0));
  shard(1).is_lost();
  ends();
  for (const unsigned each : {0u, 1u, 2u})
    rank(each).got(ErrorCode::kAggregatorLost, {.after = kAggregatorTimeout - kNews,
                                                .within = kAggregatorTimeout + kNews,
                                                .text = "aggregator 1"});
}

// ----------------------------------------------------- a worker's failure is reported clearly
STORY("A rank that dies is named to all others within the liveness time-out") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  rank(1).dies();
  ends();
  for (const unsigned each : {0u, 2u})
    rank(each).got(ErrorCode::kWorkerLost,
                   {.rank = 1, .after = kLiveness - kNews, .within = kLiveness + kNews});
}

STORY("A rank whose port disconnects is named to all others at once") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  rank(1).disconnects();
  ends();
  for (const unsigned each : {0u, 2u})
    rank(each).got(ErrorCode::kWorkerLost, {.rank = 1, .within = ms(10)});
}

STORY("A rank that one alone of two aggregators hears no more is named by all") {
  begins({.shards = 2});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  link(rank(1), shard(1)).is_cut_for(ms(50'000));
  ends();
  for (const unsigned each : {0u, 2u})
    rank(each).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + kNews});
}

// ------------------------------------------------------------- a program may bound its ops
STORY("An op that is not done within its time-out ends the job on every rank, and says which") {
  begins({.also = [](Scenario& s) {
    s.jobs[0].fault = Fault::kOpTimedOut;  // of rank 0's first op
    s.jobs[0].fault_after = ms(100);
  }});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  rank(2).stops_for(ms(500));
  ends();
  rank(0).got(ErrorCode::kOpTimedOut, {.rank = 2, .within = ms(100)});
  rank(1).got(ErrorCode::kOpTimedOut, {.within = ms(100) + kNews, .text = "rank 0 "});
  rank(2).got(ErrorCode::kOpTimedOut, {.within = ms(500) + kNews, .text = "rank 0 "});
}

// ------------------------------------------------------- a slow rank is not declared failed
STORY("A rank that is stopped for nearly the liveness time-out costs time, and no error") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  rank(1).stops_for(kLiveness - ms(150));
  ends();
  all_sums_are_right();
}

STORY("A rank that comes to its next op after seconds is awaited") {
  begins({.sums = 6, .also = [](Scenario& s) { s.jobs[0].pause_max = 5 * kLiveness; }});
  ends();
  all_sums_are_right();
  CHECK(since_act() > 2 * kLiveness);
}

STORY("An aggregator's own pause is nobody's silence") {
  begins({.also = [](Scenario& s) { s.receive_ring = 1; }});  // what comes meanwhile is lost
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).stops_for(2 * kLiveness);
  ends();
  all_sums_are_right();
}

// --------------------------------------- an unauthenticated peer cannot affect a job
STORY(
    "A host that overhears all packets of an authenticated job, and sends anything, changes "
    "nothing") {
  const Trust trust = GENERATE(Trust::kAuthenticated, Trust::kEncrypted);
  begins({.sums = 4, .blocks = 300, .trust = trust, .also = [](Scenario& s) {
            s.overheard = RankSet::first(3);
          }});
  ends();
  all_sums_are_right();
  CHECK(counted("aggregator.drop.not_authentic") > 0);
}

STORY("What was changed on the path is not added") {
  begins({.trust = GENERATE(Trust::kAuthenticated, Trust::kEncrypted)});
  until_all_have_joined();
  link(rank(1), shard(0)).flips_bits(5, Kind::kData);
  link(shard(0), rank(2)).flips_bits(5, Kind::kResult);
  ends();
  all_sums_are_right();
  CHECK(counted("aggregator.drop.not_authentic") == 5);
  CHECK(counted("worker.drop.not_authentic") == 5);
}

STORY("Recorded KEEPALIVEs keep no dead rank alive") {
  begins({.trust = Trust::kAuthenticated});
  until_all_have_joined();
  link(rank(1), shard(0)).repeats(20, Kind::kKeepAlive, ms(1000));
  rank(2).stops_for(ms(800));  // otherwise all is summed before
  passes(ms(700));
  rank(1).dies();
  ends();
  rank(0).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + kNews});
}

// ------------------------------------------- a job's members cannot affect another job
STORY("A job whose rank dies leaves the other jobs of its aggregator alone") {
  begins({.jobs = 2});
  until_sent(5, Kind::kResult, shard(0), rank(0, 1));
  rank(1, 1).dies();
  ends();
  all_sums_are_right(0);
  CHECK(link(shard(0), rank(0, 0)).sent(Kind::kAbort) == 0);
  rank(0, 1).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + kNews});
}

// ------------------------------------------------------- a flipped bit never reaches a sum
STORY("A flipped bit never reaches a sum, in a contribution or in a result") {
  begins({.also = [](Scenario& s) { s.integrity = true; }});
  until_all_have_joined();
  link(rank(1), shard(0)).flips_bits(5, Kind::kData);
  link(shard(0), rank(2)).flips_bits(5, Kind::kResult);
  ends();
  all_sums_are_right();
  CHECK(counted("aggregator.drop.bad_integrity") == 5);
  CHECK(counted("worker.drop.bad_integrity") == 5);
}

// ------------------------------------------------------------------------- no amplification
STORY("No answer to a rank that has not proven itself is longer than what it answers") {
  begins({.trust = GENERATE(Trust::kNone, Trust::kSecret)});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  shard(0).crashes(ms(100));
  ends();
  const Link up = link(rank(0), shard(0));
  const Link down = link(shard(0), rank(0));
  CHECK(down.sent(Kind::kRefused) > 0);
  CHECK(down.longest(Kind::kChallenge) <= up.shortest(Kind::kHello));
  CHECK(down.longest(Kind::kPending) <= up.shortest(Kind::kJoin));
  CHECK(down.longest(Kind::kWelcome) <= up.shortest(Kind::kJoin));
  CHECK(down.longest(Kind::kRefused) <= up.shortest(Kind::kKeepAlive));
}

// ----------------------------------------------------------------------- what is not promised
STORY("After a failure all ranks can join again at once, and sum") {
  begins({.also = [](Scenario& s) {
    Program again = s.jobs[0].programs[0];
    for (OpSpec& sum : again) sum.seed += 100;
    s.jobs[0].programs.push_back(again);
  }});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  rank(1).stops_for(kLiveness + ms(300));
  ends();
  CHECK(counted("worker.ops_completed") >= 6);
  CHECK(since_act() <= 2 * kLiveness);
}

STORY("A rank that is stopped for longer than the liveness time-out is declared failed") {
  begins({});
  until_sent(5, Kind::kResult, shard(0), rank(0));
  rank(1).stops_for(2 * kLiveness);
  ends();
  for (const unsigned each : {0u, 2u})
    rank(each).got(ErrorCode::kWorkerLost, {.rank = 1, .within = kLiveness + kNews});
  rank(1).got(ErrorCode::kWorkerLost, {.rank = 1, .within = 2 * kLiveness + kNews});
}

}  // namespace sluice::sim
