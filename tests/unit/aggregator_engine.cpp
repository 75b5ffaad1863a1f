// The aggregator's engine, driven packet by packet: rules 12 to 15, 16, 18 to 20, 24 and 25 of
// docs/protocol.md, and each reason for which it drops a packet.
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/base/rank_set.hpp"
#include "common/protocol/text_field.hpp"
#include "tests/unit/aggregator_bench.hpp"
#include "tests/unit/catch.hpp"

namespace aggregator_engine_tests {

using namespace sluice;
using namespace sluice::parts;
using aggregator::JobEvent;
using aggregator::JobEvents;
using namespace std::chrono_literals;

namespace {

using Numbers = std::initializer_list<std::uint16_t>;

}  // namespace

// ------------------------------------------------------------------------------------- rank sets
TEST_CASE("a rank set holds any ranks of a job and goes over the wire unchanged") {
  for (const std::uint16_t n : Numbers{0, 1, 63, 64, 65, 128, 200, 256}) {
    const RankSet all = RankSet::first(n);
    CHECK(all.size() == n);
    CHECK(all.empty() == (n == 0));
    CHECK(all.lowest() == (n == 0 ? kMaxRanks : 0));
    CHECK(RankSet::from_bytes(all.to_bytes()) == all);
    std::uint16_t expected = 0;
    all.for_each([&](Rank r) { CHECK(r.value == expected++); });
    CHECK(expected == n);
  }
  RankSet some;
  for (const std::uint16_t r : Numbers{3, 64, 130, 255}) some.insert(Rank{r});
  CHECK(some.to_bytes()[0] == 8);
  CHECK(some.to_bytes()[31] == 128);
  CHECK(some.contains(Rank{130}));
  some.erase(Rank{3});
  CHECK(some.lowest() == 64);
  CHECK(some.size() == 3);
  some.clear();
  CHECK(some.empty());
}

// ------------------------------------------------------------------------------------ membership
TEST_CASE("a job forms when all ranks have joined, and says who is absent until then") {
  Bench bench(3);
  const auto pending = of_kind<wire::Pending>(bench.join(1, 7));
  REQUIRE(pending.size() == 1);
  const auto absent = RankSet::from_bytes(pending[0].packet().as<wire::Pending>().absent);
  CHECK(absent.size() == 2);
  CHECK(!absent.contains(Rank{1}));
  bench.form();
  CHECK(bench.engine().counters().jobs_formed == 1);
  CHECK(bench.engine().live_jobs() == 1);
}

TEST_CASE("a job is known by the name that its ranks tell, and made harmless") {
  using Kind = aggregator::JobEvent::Kind;
  Bench bench(3);
  const auto join = [&](unsigned rank, std::string_view name) {
    auto packet = bench.join_packet(rank, 1000 + rank, bench.challenge_serial(rank, 1000 + rank));
    set_text(packet.name, name);
    bench.give(rank, packet);
  };
  join(0, "bert\x1b[2J large");
  REQUIRE(bench.engine().figures_of_jobs(bench.now).size() == 1);
  CHECK(bench.engine().figures_of_jobs(bench.now)[0].name == "bert?[2J?large");
  join(1, "bert");
  join(2, "");  // it was given the number alone
  REQUIRE(bench.events.size() == 1);
  CHECK(bench.events[0].kind == Kind::kFormed);
  CHECK(bench.events[0].job() == "bert (" + std::to_string(kJob) + ")");
  CHECK(bench.engine().figures_of_jobs(bench.now)[0].name == "bert");

  auto refused = bench.join_packet(0, 9, bench.challenge_serial(0, 9));
  refused.shards = 2;
  set_text(refused.name, "other");
  bench.give(0, refused);
  CHECK(bench.events.back().kind == Kind::kRefused);
  CHECK(bench.events.back().name == "other");
  CHECK(bench.engine().figures_of_jobs(bench.now)[0].name == "bert");
}

TEST_CASE("ranks of another build are told once, when the job forms") {
  using Kind = aggregator::JobEvent::Kind;
  Bench bench(4);
  bench.config.build = "629700c";
  const auto join = [&](unsigned rank, std::string_view build) {
    auto packet = bench.join_packet(rank, 1000 + rank, bench.challenge_serial(rank, 1000 + rank));
    set_text(packet.build, build);
    return of_kind<wire::Welcome>(bench.give(rank, packet));
  };
  std::size_t told = 0;
  SECTION("one that tells none is none") {
    for (unsigned rank = 0; rank < 3; ++rank) join(rank, rank == 1 ? "" : "629700c");
  }
  SECTION("two are") {
    told = 1;
    join(0, "629700c"), join(1, "aaaaaaa-dirty"), join(2, "bbbbbbb");
  }
  const auto welcomes = join(3, "629700c");
  REQUIRE(welcomes.size() == 4);
  CHECK(text_of(welcomes[0].packet().as<wire::Welcome>().build) == "629700c");
  REQUIRE(bench.events.size() == 1 + told);
  CHECK(bench.events[0].kind == Kind::kFormed);
  if (told == 0) return;
  CHECK(bench.events[1].kind == Kind::kOtherBuild);
  CHECK(bench.events[1].rank == Rank{1});
  CHECK(bench.events[1].build == "aaaaaaa-dirty");
  CHECK(bench.events[1].others == 1);
}

TEST_CASE("a job that waits for long to form is told once, with the ranks that it waits for") {
  using Kind = aggregator::JobEvent::Kind;
  Bench bench(3);
  bench.config.formation_timeout = 60s;
  const auto wait = [&](Duration time) {  // with a JOIN in each interval
    for (const Time end = bench.now + time; bench.now < end; bench.now += 50ms) {
      bench.join(1, 7);
      bench.engine().on_time(bench.now, bench.sink);
    }
  };
  wait(2900ms);
  CHECK(bench.events.empty());
  wait(2s);
  REQUIRE(bench.events.size() == 1);
  CHECK(bench.events[0].kind == Kind::kWaits);
  CHECK(text_of(bench.events[0].absent) == "0, 2");
  bench.now += 2s;  // it has gone
  bench.engine().on_time(bench.now, bench.sink);
  CHECK(bench.engine().live_jobs() == 0);
  wait(4s);
  CHECK(bench.events.size() == 2);
}

TEST_CASE("a JOIN repeated gets the same WELCOME again") {
  Bench bench;
  bench.form();
  const auto again = of_kind<wire::Welcome>(bench.join(0, bench.seats[0].nonce));
  REQUIRE(again.size() == 1);
  CHECK(again[0].packet().as<wire::Welcome>().token == bench.seats[0].token);
}

TEST_CASE("no answer to an unauthenticated peer is longer than what was asked") {
  Bench bench;
  auto hello = wire::make<wire::Hello>(kJob);
  for (const Sent& sent : bench.give(0, hello)) CHECK(sent.datagram->size() <= sizeof hello);
  auto unknown = wire::make<wire::KeepAlive>(kJob);
  const auto refused = bench.give(0, unknown);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].datagram->size() + wire::kTrailerBytes <= sizeof unknown);
}

TEST_CASE("a JOIN of another incarnation, or with a void serial, does nothing") {
  Bench bench;
  auto join = bench.join_packet(0, 9, bench.challenge_serial(0, 9));
  join.incarnation = 76;
  CHECK(bench.give(0, join).empty());
  CHECK(bench.drops(DropReason::kWrongIncarnation) == 1);

  auto stale = bench.join_packet(0, 9, bench.challenge_serial(0, 9));
  bench.form();
  CHECK(bench.give(0, stale).empty());
  CHECK(bench.drops(DropReason::kStaleJoin) == 1);

  auto future = bench.join_packet(0, 9, 1'000'000);
  CHECK(bench.give(0, future).empty());
  CHECK(bench.drops(DropReason::kBadChallenge) == 1);

  // Nor does it take a rank's place when the job forms again.
  bench.leave(0);
  bench.leave(1);
  CHECK(bench.give(0, stale).empty());
  CHECK(bench.drops(DropReason::kStaleJoin) == 2);
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("a CHALLENGE tells from which ports to send") {
  Bench bench;
  bench.config.source_ports = [](const Endpoint& from, Rank rank) {
    return SourcePorts{static_cast<std::uint16_t>(49'152 + from.ipv4), 0,
                       static_cast<std::uint16_t>(53'248 + rank.value)};
  };
  auto hello = wire::make<wire::Hello>(kJob);
  hello.rank = 1;
  const auto answer = bench.give(1, hello);
  REQUIRE(answer.size() == 1);
  const auto packet = answer[0].packet();
  const auto& ports = packet.as<wire::Challenge>().source_ports;
  CHECK(ports[0] == 49'152 + at_rank(1).ipv4);
  CHECK(ports[1] == 0);
  CHECK(ports[2] == 53'249);
}

TEST_CASE("a CHALLENGE is of no use to another address, rank or nonce") {
  Bench bench;
  const auto join = bench.join_packet(0, 9, bench.challenge_serial(0, 9));
  CHECK(bench.give(1, join).empty());
  auto other_rank = join;
  other_rank.rank = 1;
  CHECK(bench.give(0, other_rank).empty());
  auto other_nonce = join;
  other_nonce.nonce = 10;
  CHECK(bench.give(0, other_nonce).empty());
  auto other_job = join;
  other_job.header.job = kJob + 1;
  CHECK(bench.give(0, other_job).empty());
  CHECK(bench.drops(DropReason::kBadChallenge) == 4);
  CHECK(bench.engine().live_jobs() == 0);
  CHECK(of_kind<wire::Pending>(bench.give(0, join)).size() == 1);
}

TEST_CASE(
    "unauthenticated peers are answered so many times a second, and others are not held up by "
    "one") {
  Bench bench;
  bench.config.reply_rate_limit = 10;
  auto hello = wire::make<wire::Hello>(kJob);
  for (int i = 0; i < 10; ++i) CHECK(bench.give(0, hello).size() == 1);
  CHECK(bench.give(0, hello).empty());
  CHECK(bench.drops(DropReason::kRateLimited) == 1);
  CHECK(bench.give(1, hello).size() == 1);
  bench.pass(100ms);
  CHECK(bench.give(0, hello).size() == 1);
  CHECK(bench.give(0, hello).empty());
}

TEST_CASE("who waits and does not say so any more is forgotten") {
  Bench bench;
  bench.join(0, 7);
  bench.pass(399ms);
  CHECK(bench.engine().live_jobs() == 1);
  CHECK(bench.pass(1ms).empty());
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("who has not said lately that it waits may be in elsewhere: no job forms with it") {
  Bench bench;
  bench.join(0, 7);
  bench.now += 250ms;  // KEEPALIVEs are due every 100 ms
  CHECK(of_kind<wire::Welcome>(bench.join(1, 8)).empty());
  CHECK(of_kind<wire::Welcome>(bench.join(0, 7)).size() == 2);
}

TEST_CASE("the newest join of a rank wins, in whatever order they come") {
  Bench bench;
  const auto older = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  const auto newer = bench.join_packet(0, 8, bench.challenge_serial(0, 8));
  bench.give(0, newer);
  CHECK(bench.give(0, older).empty());
  CHECK(bench.drops(DropReason::kStaleJoin) == 1);
  const auto welcomes = of_kind<wire::Welcome>(bench.join(1, 9));
  REQUIRE(welcomes.size() == 2);
  CHECK(welcomes[0].packet().as<wire::Welcome>().nonce == 8);
}

TEST_CASE("a generation that has made progress ends when one of its ranks comes again") {
  Bench bench(3);
  auto fresh = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  fresh.generation = 99;
  bench.give(0, fresh);
  auto progressed = bench.join_packet(1, 8, bench.challenge_serial(1, 8));
  progressed.generation = 99;
  progressed.flags = 0;
  CHECK(of_kind<wire::Pending>(bench.give(1, progressed)).size() == 1);
  // It might be what the rank sent before that generation began; only when it asks again has it
  // restarted.
  auto again = bench.join_packet(2, 9, bench.challenge_serial(2, 9));
  CHECK(of_kind<wire::Pending>(bench.give(2, again)).size() == 1);
  CHECK(of_kind<wire::Pending>(bench.give(2, again)).size() == 1);
  again = bench.join_packet(2, 9, bench.challenge_serial(2, 9));
  const auto sent = bench.give(2, again);
  const auto told = of_kind<wire::Abort>(sent);
  REQUIRE(told.size() == 2);
  for (const Sent& abort : told) {
    const auto info = to_info(abort.packet().as<wire::Abort>());
    CHECK(info.reason == wire::AbortReason::kRankRestarted);
    CHECK(info.rank_a == Rank{2});
    CHECK(abort.packet().as<wire::Abort>().generation == 99);
  }
  CHECK(of_kind<wire::Pending>(sent).size() == 1);
  auto late = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  late.generation = 99;
  CHECK(abort_of(bench.give(0, late)).reason == wire::AbortReason::kRankRestarted);
}

TEST_CASE("who does not come back to a generation that has made progress is lost") {
  Bench bench(2);
  const auto come_back = [&] {
    auto progressed = bench.join_packet(1, 8, bench.challenge_serial(1, 8));
    progressed.generation = 99;
    progressed.flags = 0;
    CHECK(of_kind<wire::Pending>(bench.give(1, progressed)).size() == 1);
  };
  for (int i = 0; i < 4; ++i) {
    come_back();
    CHECK(bench.pass(i < 3 ? 300ms : 99ms).empty());
  }
  const auto info = abort_of(bench.pass(1ms));
  CHECK(info.reason == wire::AbortReason::kRankSilent);
  CHECK(info.rank_a == Rank{0});
  CHECK(info.value_a == 1000);
}

TEST_CASE("how long others have waited does not shorten the time to come back to a generation") {
  Bench bench(2);
  const auto waiting = bench.join_packet(1, 8, bench.challenge_serial(1, 8));
  for (int i = 0; i < 4; ++i) {  // before the generation began elsewhere; the last comes late
    CHECK(of_kind<wire::Pending>(bench.give(1, waiting)).size() == 1);
    CHECK(bench.pass(i < 3 ? 300ms : 50ms).empty());
  }
  auto progressed = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  progressed.generation = 99;
  progressed.flags = 0;
  CHECK(of_kind<wire::Pending>(bench.give(0, progressed)).size() == 1);
  CHECK(bench.pass(100ms).empty());
  auto back = bench.join_packet(1, 9, bench.challenge_serial(1, 9));
  back.generation = 99;
  back.flags = 0;
  CHECK(of_kind<wire::Welcome>(bench.give(1, back)).size() == 2);
}

TEST_CASE("a job comes back to an aggregator that it left for another") {
  Bench bench(1);
  bench.form();
  auto back = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  back.generation = bench.generation;
  back.flags = 0;
  SECTION("from none: it merely did not hear of this one for a while") {
    back.epoch = bench.epoch;
    const auto welcome = of_kind<wire::Welcome>(bench.give(0, back));
    REQUIRE(welcome.size() == 1);
    CHECK(welcome[0].packet().as<wire::Welcome>().epoch == bench.epoch);
  }
  SECTION("as it left it: it knows nothing of what was told here") {
    back.flags = wire::kJoinNoProgress;
    back.epoch = bench.epoch + 1;
    const auto welcome = of_kind<wire::Welcome>(bench.give(0, back));
    REQUIRE(welcome.size() == 1);
    CHECK(welcome[0].packet().as<wire::Welcome>().epoch != bench.epoch);
    CHECK(welcome[0].packet().as<wire::Welcome>().flags == 0);
  }
  SECTION("with progress that it made there") {
    back.epoch = bench.epoch + 1;
    const auto welcome = of_kind<wire::Welcome>(bench.give(0, back));
    REQUIRE(welcome.size() == 1);
    CHECK(welcome[0].packet().as<wire::Welcome>().epoch != bench.epoch);
    CHECK(welcome[0].packet().as<wire::Welcome>().flags == wire::kWelcomeResume);
  }
}

TEST_CASE("a generation of which all ranks have no progress forms again") {
  Bench bench(2);
  for (unsigned rank : {0u, 1u}) {
    auto join = bench.join_packet(rank, 7 + rank, bench.challenge_serial(rank, 7 + rank));
    join.generation = 99;
    const auto sent = bench.give(rank, join);
    CHECK(of_kind<wire::Welcome>(sent).size() == (rank == 0 ? 0 : 2));
  }
}

TEST_CASE("who joins with the nonce of a generation that has ended is told again") {
  Bench bench;
  bench.form();
  bench.leave(1, true);
  CHECK(abort_of(bench.join(0, bench.seats[0].nonce)).reason == wire::AbortReason::kRankAborted);
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("what an aggregator cannot grant is refused and says why") {
  Bench bench;
  auto join = bench.join_packet(0, 9, bench.challenge_serial(0, 9));
  SECTION("a rank beyond the world") {
    join = bench.join_packet(2, 9, bench.challenge_serial(2, 9));
    const auto why = abort_of(bench.give(2, join));
    CHECK(why.field == wire::Field::kRank);
    CHECK(why.value_a == 2);
    CHECK(why.value_b == 1);
  }
  SECTION("a world too large") {
    join.world_size = 257;
    CHECK(abort_of(bench.give(0, join)).field == wire::Field::kWorldSize);
  }
  SECTION("another shard's") {
    join.shard = 1;
    CHECK(abort_of(bench.give(0, join)).field == wire::Field::kShard);
  }
  SECTION("a history that is no power of two") {
    join.history = 3;
    CHECK(abort_of(bench.give(0, join)).field == wire::Field::kHistory);
  }
  SECTION("a packet too small") {
    join.payload_bytes = 100;
    CHECK(abort_of(bench.give(0, join)).field == wire::Field::kPayloadBytes);
  }
  CHECK(bench.drops(DropReason::kBadJoin) == 1);
  CHECK(bench.engine().counters().joins_refused == 1);
  REQUIRE(bench.events.size() == 1);
  CHECK(bench.events[0].kind == aggregator::JobEvent::Kind::kRefused);
}

TEST_CASE("ranks that disagree about the job are all told who and what") {
  Bench bench(2);
  bench.join(0, 7);
  auto join = bench.join_packet(1, 8, bench.challenge_serial(1, 8));
  join.block_elements = 8;
  const auto aborts = of_kind<wire::Abort>(bench.give(1, join));
  REQUIRE(aborts.size() == 2);
  const auto why = to_info(aborts[0].packet().as<wire::Abort>());
  CHECK(why.field == wire::Field::kBlockElements);
  CHECK(why.value_a == kBlock);
  CHECK(why.value_b == 8);
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("ranks of different generations with different world sizes do not form a job") {
  Bench bench(2);
  auto old = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  old.generation = 99;  // no progress, from before the aggregator was restarted
  bench.give(0, old);
  auto join = bench.join_packet(5, 8, bench.challenge_serial(5, 8));
  join.world_size = 6;
  CHECK(abort_of(bench.give(5, join)).field == wire::Field::kWorldSize);
}

TEST_CASE("a job that takes too long to form names the absent") {
  Bench bench(3);
  for (int i = 0; i < 10; ++i) {
    bench.join(1, 7);
    CHECK(bench.pass(i < 9 ? 200ms : 199ms).empty());
  }
  const auto why = abort_of(bench.pass(1ms));
  CHECK(why.reason == wire::AbortReason::kAbsent);
  CHECK(why.rank_a == Rank{0});
  CHECK(why.value_a == 2);
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("an aggregator serves no more jobs than it may") {
  Bench bench;
  bench.config.jobs_max = 1;
  bench.join(0, 7);
  auto other = bench.join_packet(0, 8, bench.challenge_serial(0, 8, kJob + 1));
  other.header.job = kJob + 1;
  CHECK(abort_of(bench.give(0, other)).reason == wire::AbortReason::kTooManyJobs);
  CHECK(bench.drops(DropReason::kBadJoin) == 1);
}

TEST_CASE("a job whose memory does not fit is refused") {
  Bench bench;
  bench.config.job_memory_bytes_max = 1000;
  bench.join(0, 7);
  CHECK(abort_of(bench.join(1, 8)).field == wire::Field::kMemory);
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("jobs may not keep more packet buffers together than there are") {
  Bench bench;
  bench.config.buffers_max =
      2 * aggregator::stream_buffers(Session{.ranks = 2, .history = bench.history}) - 1;
  bench.form();
  const auto join_other = [&](unsigned rank, std::uint64_t nonce) {
    auto join = bench.join_packet(rank, nonce, bench.challenge_serial(rank, nonce, kJob + 1));
    join.header.job = kJob + 1;
    return bench.give(rank, join);
  };
  join_other(0, 7);
  const auto refusal = abort_of(join_other(1, 8));
  CHECK(refusal.reason == wire::AbortReason::kRefusedSetting);
  CHECK(refusal.field == wire::Field::kMemory);
  CHECK(bench.engine().live_jobs() == 1);
  CHECK(of_kind<wire::Abort>(bench.short_op_of_all()).empty());  // the first job goes on

  bench.leave(0);
  bench.leave(1);  // and gives its buffers back
  join_other(0, 9);
  CHECK(of_kind<wire::Welcome>(join_other(1, 10)).size() == 2);
}

TEST_CASE("a daemon that ends refuses new jobs and serves the old") {
  Bench bench;
  bench.form();
  bench.engine().close(true);
  auto join = bench.join_packet(0, 7, bench.challenge_serial(0, 7, kJob + 1));
  join.header.job = kJob + 1;
  CHECK(abort_of(bench.give(0, join)).reason == wire::AbortReason::kShuttingDown);
  join.epoch = 5;  // it lived at another aggregator
  CHECK(of_kind<wire::Pending>(bench.give(0, join)).size() == 1);
  CHECK(of_kind<wire::Result>(bench.short_op_of_all()).size() == 2);
}

TEST_CASE("a packet from an unknown sender has no effect but a REFUSED to a KEEPALIVE") {
  Bench bench;
  bench.form();
  auto ack = wire::make<wire::Ack>(kJob);
  auto keep_alive = wire::make<wire::KeepAlive>(kJob);
  ack.member = bench.member(0, ack.member);
  ack.member.token = keep_alive.member.token = 1;
  keep_alive.number = 9;
  CHECK(bench.give(5, ack).empty());  // too short for an answer that shows what it is to
  const auto answer = bench.give(5, keep_alive);
  REQUIRE(answer.size() == 1);
  CHECK(answer[0].to == at_rank(5));
  const auto& refused = answer[0].packet().as<wire::Refused>();
  CHECK(refused.token == 1);
  CHECK(refused.number == 9);
  CHECK(refused.incarnation == bench.config.incarnation);
  CHECK(refused.shard == 0);
  CHECK(bench.drops(DropReason::kUnknownToken) == 2);
}

TEST_CASE("a packet for an unknown job is refused") {
  Bench bench;
  auto ack = wire::make<wire::Ack>(kJob + 1);
  CHECK(bench.give(0, ack).empty());
  auto keep_alive = wire::make<wire::KeepAlive>(kJob + 1);
  keep_alive.member.token = 3;
  CHECK(of_kind<wire::Refused>(bench.give(0, keep_alive)).size() == 1);
  CHECK(bench.drops(DropReason::kUnknownJob) == 2);
}

TEST_CASE("what an aggregator sends is not what it takes") {
  Bench bench;
  bench.form();
  CHECK(bench.give(0, wire::make<wire::Left>(kJob)).empty());
  CHECK(bench.drops(DropReason::kWrongDirection) == 1);
}

TEST_CASE("only what is new proves liveness") {
  Bench bench;
  bench.form();
  bench.keep_alive(0, 1);
  bench.keep_alive(1, 1);
  for (int i = 0; i < 4; ++i) {
    CHECK(of_kind<wire::Abort>(bench.pass(200ms)).empty());
    bench.keep_alive(0, 2 + static_cast<std::uint64_t>(i));
    bench.keep_alive(1, 1);  // a replay
    bench.ack(1, 0);         // nothing new
  }
  const auto told = bench.pass(200ms);
  const auto why = abort_of(told);
  CHECK(why.reason == wire::AbortReason::kRankSilent);
  CHECK(why.rank_a == Rank{1});
  CHECK(of_kind<wire::Abort>(told).size() == 2);
  CHECK(bench.engine().counters().jobs_aborted == 1);

  // Who missed it is told again.
  CHECK(abort_of(bench.keep_alive(0, 9)).rank_a == Rank{1});
}

TEST_CASE("a pause of the aggregator is no silence of the workers") {
  Bench bench;
  bench.form();
  bench.engine().excuse_pause(10s);
  CHECK(of_kind<wire::Abort>(bench.pass(10s + 900ms)).empty());
  CHECK(abort_of(bench.pass(100ms)).reason == wire::AbortReason::kRankSilent);
}

TEST_CASE("a port that disconnects ends the jobs of the ranks behind it, and no other") {
  Bench bench;
  bench.form();
  bench.engine().on_disconnect(999, bench.now, bench.sink);
  CHECK(bench.sink.take().empty());
  bench.engine().on_disconnect(at_rank(1).port_id, bench.now, bench.sink);
  const auto told = bench.sink.take();
  REQUIRE(told.size() == 1);
  CHECK(told[0].to == at_rank(0));
  CHECK(abort_of(told).reason == wire::AbortReason::kRankDisconnected);
  CHECK(abort_of(told).rank_a == Rank{1});
}

TEST_CASE("a second process with a rank is refused while the first one lives") {
  Bench bench;
  bench.form();
  bench.keep_alive(0, 1);
  CHECK(of_kind<wire::Pending>(bench.join(0, 55)).size() == 1);
  std::vector<Sent> told;
  for (std::uint64_t n = 2; n < 8 && told.empty(); ++n) {
    bench.keep_alive(0, n);
    bench.keep_alive(1, n);
    told = of_kind<wire::Abort>(bench.pass(100ms));
  }
  REQUIRE(told.size() == 1);
  CHECK(abort_of(told).reason == wire::AbortReason::kDuplicateRank);
  CHECK(told[0].packet().as<wire::Abort>().nonce == 55);
  CHECK(bench.engine().counters().jobs_aborted == 0);
  CHECK(abort_of(bench.join(0, 55)).reason == wire::AbortReason::kDuplicateRank);
}

TEST_CASE(
    "a rank that comes again while its old process is silent ends the generation of the job") {
  Bench bench;
  bench.form();
  bench.keep_alive(0, 1);
  bench.join(0, 55);
  std::vector<Sent> told;
  for (std::uint64_t n = 1; n < 8 && told.empty(); ++n) {
    bench.keep_alive(1, n);
    told = of_kind<wire::Abort>(bench.pass(100ms));
  }
  REQUIRE(!told.empty());
  CHECK(abort_of(told).reason == wire::AbortReason::kRankRestarted);
  CHECK(abort_of(told).rank_a == Rank{0});
  const auto formed = of_kind<wire::Welcome>(bench.join(1, 56));
  CHECK(formed.size() == 2);
}

TEST_CASE("who names a generation but was never welcomed to it is no member that has spoken") {
  Bench bench;  // shard 0 never heard the member, and gave its place to another process
  bench.form();
  const auto ask_again = [&](unsigned rank, std::uint64_t nonce) {
    auto again = bench.join_packet(rank, nonce, bench.challenge_serial(rank, nonce));
    again.generation = bench.generation;
    return bench.give(rank, again);
  };
  CHECK(of_kind<wire::Welcome>(ask_again(0, 55)).size() == 1);  // it has not spoken here either
  bench.keep_alive(1, 1);
  const auto told = ask_again(1, 56);
  CHECK(of_kind<wire::Abort>(told).size() == 3);  // the members and the newcomer
  CHECK(abort_of(told).reason == wire::AbortReason::kRankRestarted);
  CHECK(abort_of(told).rank_a == Rank{1});
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("a rank that was never heard gives its place to the one that asks") {
  Bench bench;
  bench.form();
  bench.join(0, 55);
  std::vector<Sent> welcomed;
  for (std::uint64_t n = 1; n < 8 && welcomed.empty(); ++n) {
    bench.keep_alive(1, n);
    const auto sent = bench.pass(100ms);
    CHECK(of_kind<wire::Abort>(sent).empty());
    welcomed = of_kind<wire::Welcome>(sent);  // repeated to the one that is not heard, at first
    std::erase_if(welcomed,
                  [](const Sent& each) { return each.packet().as<wire::Welcome>().nonce != 55; });
  }
  REQUIRE(!welcomed.empty());
  const auto& welcome = welcomed[0].packet().as<wire::Welcome>();
  CHECK(welcome.generation == bench.generation);
  CHECK(welcome.token != bench.seats[0].token);
  // The one that it replaces is told so, should it live after all.
  CHECK(abort_of(bench.keep_alive(0, 1)).reason == wire::AbortReason::kDuplicateRank);
}

TEST_CASE("a rank that was never heard, and comes with progress made elsewhere, did not restart") {
  Bench bench;
  bench.form();  // with a JOIN that rank 0 had sent before it was welcomed elsewhere
  auto back = bench.join_packet(0, 55, bench.challenge_serial(0, 55));
  back.generation = 98;
  back.flags = 0;
  bench.keep_alive(1, 1);
  bench.pass(50ms);
  CHECK(of_kind<wire::Pending>(bench.give(0, back)).size() == 1);
  for (std::uint64_t n = 2; n < 6; ++n) {
    CHECK(of_kind<wire::Abort>(bench.pass(100ms)).empty());
    bench.keep_alive(1, n);
  }
  REQUIRE(!bench.events.empty());
  CHECK(bench.events.back().kind == aggregator::JobEvent::Kind::kFormationAbandoned);
  // As if this aggregator had been killed: its ranks join again.
  CHECK(of_kind<wire::Refused>(bench.keep_alive(1, 6)).size() == 1);
  CHECK(bench.give(0, back).empty());  // from before the end of that formation
  const std::uint64_t later = bench.challenge_serial(0, 55);
  back.serial = later;
  back.challenge = bench.challenges[later];
  CHECK(of_kind<wire::Pending>(bench.give(0, back)).size() == 1);
  CHECK(of_kind<wire::Pending>(bench.join(1, 56)).size() == 1);
  const auto told = of_kind<wire::Abort>(bench.join(1, 56));  // asked for beside that progress
  REQUIRE(told.size() == 1);
  CHECK(told[0].to == at_rank(0));
  CHECK(told[0].packet().as<wire::Abort>().generation == 98);
  CHECK(of_kind<wire::Welcome>(bench.join(0, 57)).size() == 2);
}

TEST_CASE("a WELCOME is repeated to who was never heard, and to nobody else") {
  Bench bench;
  bench.form();
  bench.keep_alive(1, 1);
  const auto repeated = of_kind<wire::Welcome>(bench.pass(100ms));
  REQUIRE(repeated.size() == 1);
  CHECK(repeated[0].to == at_rank(0));
  bench.keep_alive(0, 1);
  CHECK(of_kind<wire::Welcome>(bench.pass(100ms)).empty());
}

TEST_CASE("an aggregator that retires asks all ranks for KEEPALIVEs, and refuses them") {
  Bench bench;
  bench.form();
  bench.engine().retire(bench.now, bench.sink);
  const auto polled = of_kind<wire::Poll>(bench.sink.take());
  REQUIRE(polled.size() == 2);
  for (const auto& sent : polled)
    CHECK(std::ranges::all_of(sent.packet().as<wire::Poll>().streams,
                              [](std::uint8_t byte) { return byte == 0; }));

  const auto refused = of_kind<wire::Refused>(bench.keep_alive(0, 1));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].to == at_rank(0));
  CHECK(refused[0].packet().as<wire::Refused>().number == 1);
  CHECK_FALSE(bench.engine().retired());

  const auto again = of_kind<wire::Poll>(bench.pass(20ms));  // lost, perhaps
  REQUIRE(again.size() == 1);
  CHECK(again[0].to == at_rank(1));
  CHECK(of_kind<wire::Refused>(bench.keep_alive(0, 2)).size() == 1);
  CHECK(of_kind<wire::Refused>(bench.keep_alive(1, 1)).size() == 1);
  CHECK(bench.engine().retired());
  CHECK(bench.engine().counters().jobs_sent_away == 1);
  CHECK(of_kind<wire::Poll>(bench.pass(20ms)).empty());
}

TEST_CASE("an aggregator that retires takes nobody in, and declares nobody failed") {
  Bench bench;
  bench.form();
  const auto before = bench.challenge_serial(0, 7);
  bench.engine().retire(bench.now, bench.sink);
  bench.sink.take();
  auto hello = wire::make<wire::Hello>(kJob);
  hello.nonce = 9;
  CHECK(bench.give(0, hello).empty());
  CHECK(bench.give(0, bench.join_packet(0, 7, before)).empty());
  CHECK(of_kind<wire::Abort>(bench.pass(20s)).empty());
  bench.engine().on_disconnect(at_rank(0).port_id, bench.now, bench.sink);
  CHECK(of_kind<wire::Abort>(bench.sink.take()).empty());
  CHECK(of_kind<wire::Result>(bench.short_op_of_all()).size() == 2);  // who is here is served
}

TEST_CASE("an aggregator that retires lets a job leave that has begun to") {
  Bench bench;
  bench.form();
  bench.leave(0);
  bench.engine().retire(bench.now, bench.sink);
  CHECK(of_kind<wire::Poll>(bench.sink.take()).empty());
  CHECK(bench.keep_alive(1, 1).empty());
  CHECK_FALSE(bench.engine().retired());
  CHECK(of_kind<wire::Left>(bench.leave(1)).size() == 1);
  CHECK(bench.engine().retired());
}

TEST_CASE("where some ranks of a job were sent away, no other leaves") {
  Bench bench;
  bench.form();
  bench.engine().retire(bench.now, bench.sink);
  bench.sink.take();
  CHECK(of_kind<wire::Refused>(bench.keep_alive(0, 1)).size() == 1);
  CHECK(bench.leave(1).empty());  // rank 0 may need it at the next aggregator
  CHECK(of_kind<wire::Refused>(bench.keep_alive(1, 1)).size() == 1);
  CHECK(bench.engine().retired());
}

TEST_CASE("a recorded KEEPALIVE does not show that a rank was sent away") {
  Bench bench;
  bench.form();
  bench.keep_alive(0, 5);
  bench.keep_alive(1, 5);
  bench.engine().retire(bench.now, bench.sink);
  bench.sink.take();
  bench.keep_alive(0, 5);
  bench.keep_alive(1, 4);
  CHECK(of_kind<wire::Poll>(bench.pass(20ms)).size() == 2);
  bench.keep_alive(0, 6);
  bench.keep_alive(1, 6);
  CHECK(bench.engine().retired());
}

TEST_CASE("an operator ends a job: all ranks are told") {
  Bench bench;
  bench.form();
  CHECK_FALSE(bench.engine().kick(kJob + 1, bench.now, bench.sink));
  CHECK(bench.engine().kick(kJob, bench.now, bench.sink));
  const auto told = bench.sink.take();
  CHECK(of_kind<wire::Abort>(told).size() == 2);
  CHECK(abort_of(told).reason == wire::AbortReason::kKicked);
  CHECK(bench.engine().live_jobs() == 0);
  CHECK_FALSE(bench.engine().kick(kJob, bench.now, bench.sink));
}

TEST_CASE("an operator's limit of streams is told to the job's ranks, and its end, too") {
  const auto told = [](std::initializer_list<std::uint16_t> limits) {
    Bench bench;
    CHECK_FALSE(bench.engine().limit_streams(kJob, 3));
    bench.form();
    for (const std::uint16_t limit : limits) {
      CHECK(bench.engine().limit_streams(kJob, limit));
      CHECK(bench.engine().figures_of_jobs(bench.now).at(0).stream_limit == limit);
    }
    const auto results = of_kind<wire::Result>(bench.short_op_of_all());
    return std::uint16_t{results.at(0).packet().delivery().window};
  };
  CHECK(told({}) == 0);  // these ranks tell nothing
  CHECK(told({3}) == 3);
  CHECK(told({3, 0}) == 0xffff);
}

TEST_CASE("ranks of this machine get so many streams as its caches hold, if they ask for none") {
  const auto streams_of = [](std::size_t window_rounds, std::uint16_t asked, bool off_machine) {
    Bench bench;
    bench.config.streams = 64;
    bench.config.local_window_bytes = window_rounds * 2 * 508;
    bench.streams = asked;
    bench.off_machine = off_machine;
    bench.join(0, 7);
    const auto welcomes = of_kind<wire::Welcome>(bench.join(1, 8));
    return std::uint16_t{welcomes.at(0).packet().as<wire::Welcome>().streams};
  };
  CHECK(streams_of(20, 0, false) == 20);
  CHECK(streams_of(1000, 0, false) == 64);  // never more than the setting
  CHECK(streams_of(1, 0, false) == 8);
  CHECK(streams_of(20, 50, false) == 50);
  CHECK(streams_of(20, 0, true) == 64);  // a network has room of its own
}

TEST_CASE("256 ranks get so many streams as the packet buffers allow, and leave some to others") {
  Bench bench(256, 8);
  bench.config.buffers_max = 14'336 - 2'048;  // as a daemon has at its settings
  bench.streams = 0;
  bench.off_machine = true;
  std::vector<Sent> last;
  for (unsigned r = 0; r < bench.ranks; ++r) last = bench.join(r, 1000 + r);
  const auto welcomes = of_kind<wire::Welcome>(last);
  REQUIRE(welcomes.size() == 256);
  const unsigned streams = welcomes[0].packet().as<wire::Welcome>().streams;
  CHECK(streams >= 8);
  CHECK(streams * (8 + 256 + 2) <= bench.config.buffers_max / 2);
}

TEST_CASE("a shard other than 0 changes generations when all ranks name the new one") {
  Bench bench;
  bench.config.shard = 1;
  bench.config.shards = 2;
  bench.streams = 2;
  const auto join = [&](unsigned rank, std::uint64_t nonce, std::uint64_t generation) {
    auto packet = bench.join_packet(rank, nonce, bench.challenge_serial(rank, nonce));
    packet.shard = 1;
    packet.shards = 2;
    packet.generation = generation;
    return bench.give(rank, packet);
  };
  join(0, 7, 70);
  CHECK(of_kind<wire::Welcome>(join(1, 8, 70)).size() == 2);
  CHECK(of_kind<wire::Pending>(join(0, 9, 71)).size() == 1);  // shard 0 has begun generation 71
  CHECK(bench.engine().counters().jobs_aborted == 0);         // rank 1 may not know yet
  const auto welcomes = of_kind<wire::Welcome>(join(1, 10, 71));
  REQUIRE(welcomes.size() == 2);
  CHECK(welcomes[0].packet().as<wire::Welcome>().generation == 71);
  CHECK(bench.engine().counters().jobs_formed == 2);
  CHECK(bench.engine().live_jobs() == 1);

  // Joins of different generations never make a job.
  join(0, 11, 72);
  CHECK(of_kind<wire::Welcome>(join(1, 12, 73)).empty());
  CHECK(of_kind<wire::Welcome>(join(0, 13, 73)).size() == 2);
}

// --------------------------------------------------------------------------------------- leaving
TEST_CASE("LEAVE is answered when nobody needs the rank any more") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.give(1, bench.short_op(1, 0, 2, 0));
  CHECK(of_kind<wire::Left>(bench.leave(0)).empty());  // rank 1 may lack the result
  bench.now += 20ms;
  const auto polls = of_kind<wire::Poll>(bench.leave(0));
  REQUIRE(polls.size() == 1);
  CHECK(polls[0].to == at_rank(1));
  bench.ack(1, 1);
  CHECK(of_kind<wire::Left>(bench.leave(0)).size() == 1);

  const auto why = abort_of(bench.give(1, bench.short_op(1, 1, 2, 1)));
  CHECK(why.reason == wire::AbortReason::kRankLeft);
  CHECK(why.rank_a == Rank{0});
}

TEST_CASE("who misses a rank that left hears of the exception that made it leave") {
  const auto by_exception = static_cast<std::uint64_t>(Departure::kByException);
  AbortInfo says{
      .reason = wire::AbortReason::kRankLeft, .rank_a = Rank{1}, .value_a = by_exception};
  AbortInfo heard = says;
  const auto leave = [&says](Bench& bench) {
    return of_kind<wire::Left>(bench.leave(1, says, false)).size();
  };
  Bench bench(3);
  bench.form();
  SECTION("by an op that begins later") {
    CHECK(leave(bench) == 1);
    CHECK(abort_of(bench.give(0, bench.short_op(0, 0, 1, 0))) == heard);
  }
  SECTION("by an op under way") {
    bench.give(0, bench.short_op(0, 0, 1, 0));
    CHECK(abort_of(bench.leave(1, says, false)) == heard);
  }
  SECTION("but of no other rank") {
    says.rank_a = Rank{2};
    bench.leave(0);
    CHECK(leave(bench) == 1);
    heard = {.reason = wire::AbortReason::kRankLeft, .rank_a = Rank{0}};
    CHECK(abort_of(bench.give(2, bench.short_op(2, 0, 1, 0))) == heard);
  }
  SECTION("and nothing that cannot be said") {
    const bool unknown_value = GENERATE(true, false);
    CAPTURE(unknown_value);
    if (unknown_value)
      says.value_a = kLastDeparture + 1;
    else
      says.reason = wire::AbortReason::kKicked;
    CHECK(leave(bench) == 1);
    heard = {.reason = wire::AbortReason::kRankLeft, .rank_a = Rank{1}};
    CHECK(abort_of(bench.give(0, bench.short_op(0, 0, 1, 0))) == heard);
  }
}

TEST_CASE("a rank that leaves early makes one POLL a rank for all streams, and few at a time") {
  Bench bench(256);
  bench.config.streams = bench.streams = 64;
  bench.form();
  for (std::uint16_t s = 0; s < bench.streams; ++s) {  // an op of one block on each stream
    for (unsigned r = 0; r < bench.ranks; ++r) {
      auto packet = bench.short_op(r, 0, 1, s);
      reinterpret_cast<wire::Data*>(packet.data())->member.stream = s;
      bench.give(r, packet);
    }
  }
  REQUIRE(bench.engine().counters().rounds_finished == bench.streams);

  CHECK(bench.leave(255).empty());
  std::map<std::uint64_t, int> streams_asked;  // by rank's address
  for (unsigned asked = 0; asked < 255;) {
    bench.now += 10ms;
    const auto polls = of_kind<wire::Poll>(bench.leave(255));
    REQUIRE(!polls.empty());
    REQUIRE(polls.size() <= 32);
    for (const Sent& poll : polls)
      for (const std::uint8_t bits : poll.packet().as<wire::Poll>().streams)
        streams_asked[poll.to.ipv4] += std::popcount(bits);
    asked += static_cast<unsigned>(polls.size());
  }
  CHECK(streams_asked.size() >= 255);
  for (const auto& [rank, streams] : streams_asked) CHECK(streams % 64 == 0);
}

TEST_CASE("a claim to a rank is no longer contested when the rank has left") {
  Bench bench;
  bench.form();
  bench.keep_alive(0, 1);
  bench.join(0, 55);
  bench.leave(0);
  for (std::uint64_t n = 1; n < 9; ++n) {
    bench.keep_alive(1, n);
    CHECK(of_kind<wire::Abort>(bench.pass(100ms)).empty());
  }
  CHECK(bench.engine().counters().jobs_aborted == 0);
}

TEST_CASE("a job that all have left is over, and a LEAVE repeated is answered again") {
  Bench bench;
  bench.form();
  CHECK(of_kind<wire::Left>(bench.leave(0)).size() == 1);
  CHECK(of_kind<wire::Left>(bench.leave(1)).size() == 1);
  CHECK(bench.engine().live_jobs() == 0);
  CHECK(bench.engine().counters().jobs_left == 1);
  CHECK(of_kind<wire::Left>(bench.leave(0)).size() == 1);
  CHECK(bench.sink.pool->live == 0);
}

TEST_CASE("a rank that comes back before the others have left waits for them") {
  Bench bench;
  bench.form();
  bench.leave(0);
  CHECK(of_kind<wire::Pending>(bench.join(0, 55)).size() == 1);
  bench.leave(1);
  CHECK(of_kind<wire::Pending>(bench.join(0, 55)).size() == 1);
  CHECK(of_kind<wire::Welcome>(bench.join(1, 56)).size() == 2);
}

TEST_CASE("LEAVE with ops pending ends the job for all") {
  Bench bench;
  bench.form();
  const auto told = bench.leave(1, true);
  CHECK(of_kind<wire::Abort>(told).size() == 2);
  CHECK(abort_of(told).reason == wire::AbortReason::kRankAborted);
  CHECK(abort_of(told).rank_a == Rank{1});
}

TEST_CASE("all ranks are told the cause that a LEAVE carries, unchanged") {
  AbortInfo why{.reason = wire::AbortReason::kOpMismatch,
                .field = wire::Field::kReduction,
                .rank_a = Rank{0},
                .rank_b = Rank{2},
                .value_a = 1,
                .value_b = std::uint64_t{1} << 40,
                .op = 17};
  for (auto reason = std::uint16_t{1}; reason <= wire::kLastAbortReason; ++reason) {
    why.reason = static_cast<wire::AbortReason>(reason);
    if (why.reason == wire::AbortReason::kNotAuthenticated) continue;
    why.value_a = 70'000;
    if (why.reason == wire::AbortReason::kAggregatorLost) why.value_a = 0;
    if (why.reason == wire::AbortReason::kRankLeft || why.reason == wire::AbortReason::kRankAborted)
      why.value_a = kLastDeparture;
    CAPTURE(reason);
    Bench bench(3);
    bench.form();
    const auto told = of_kind<wire::Abort>(bench.leave(1, why));
    REQUIRE(told.size() == 3);
    for (const Sent& sent : told) CHECK(to_info(sent.packet().as<wire::Abort>()) == why);
    // Whoever missed it is told the same, and so is who comes back.
    CHECK(abort_of(bench.keep_alive(2, 1)) == why);
    CHECK(abort_of(bench.join(0, bench.seats[0].nonce)) == why);
  }
}

TEST_CASE("a cause that cannot be is not passed on: its rank ended the job") {
  Bench bench(3);
  bench.form();
  AbortInfo why{.reason = wire::AbortReason::kOpMismatch, .field = wire::Field::kRoot};
  SECTION("a rank beyond the job") {
    why.rank_a = Rank{3};
  }
  SECTION("another rank beyond the job") {
    why.rank_b = Rank{0xffff};
  }
  SECTION("an aggregator beyond the job's") {
    why.reason = wire::AbortReason::kAggregatorLost;
    why.value_a = 1;
  }
  SECTION("a departure that there is not") {
    why.reason = GENERATE(wire::AbortReason::kRankLeft, wire::AbortReason::kRankAborted);
    why.rank_a = Rank{0};
    why.value_a = kLastDeparture + 1;
  }
  SECTION("what no member believes") {
    why.reason = wire::AbortReason::kNotAuthenticated;
  }
  const auto told = bench.leave(1, why);
  CHECK(of_kind<wire::Abort>(told).size() == 3);
  CHECK(abort_of(told) == AbortInfo{.reason = wire::AbortReason::kRankAborted, .rank_a = Rank{1}});
}

// ---------------------------------------------------------------------------------------- rounds
TEST_CASE("a round ends when the last contribution is in, with the same bytes for all") {
  Bench bench;
  bench.form();
  CHECK(bench.give(0, bench.short_op(0, 0, 1, 0)).empty());
  const auto results = of_kind<wire::Result>(bench.give(1, bench.short_op(1, 0, 2, 0)));
  REQUIRE(results.size() == 2);
  CHECK(*results[0].datagram == *results[1].datagram);
  CHECK(sum_of(results[0]) == 3);
  CHECK(results[0].packet().as<wire::Result>().completing_rank == 1);
}

TEST_CASE("sums are in rank order whatever the order of arrival") {
  const float values[] = {1e8f, 1.0f, -1e8f, 0.5f};
  std::vector<unsigned> order = {0, 1, 2, 3};
  const float expected = ((values[0] + values[1]) + values[2]) + values[3];
  do {
    Bench bench(4);
    bench.form();
    std::vector<Sent> sent;
    for (const unsigned rank : order)
      sent = bench.give(rank, bench.short_op(rank, 0, values[rank], 0));
    REQUIRE(of_kind<wire::Result>(sent).size() == 4);
    CHECK(sum_of(sent[0]) == expected);
    CHECK(bench.sink.pool->live == 1);  // the history alone
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a rank that does not own a block counts as zeros in min and max") {
  for (const auto& [reduction, value, expected] :
       {std::tuple(Reduction::kMin, 3.0F, 0.0F), std::tuple(Reduction::kMax, -3.0F, 0.0F),
        std::tuple(Reduction::kMin, -3.0F, -3.0F), std::tuple(Reduction::kAverage, 3.0F, 1.5F)}) {
    const Reduction kind = reduction;  // Clang 14 captures no structured bindings
    Bench bench;
    bench.form();
    const auto give = [&](unsigned rank, std::vector<float> elements) {
      return bench.give(
          rank, block_packet<wire::Data>(kJob, wire::shape_of(bench.geometry(1)), true,
                                         {{0, kNoBlock.value, std::move(elements)}},
                                         [&](wire::Data& fixed, wire::Descriptor* descriptor) {
                                           fixed.member = bench.member(rank, fixed.member);
                                           fixed.flags = wire::kDataOpening;
                                           descriptor->reduction = static_cast<std::uint8_t>(kind);
                                         }));
    };
    give(0, std::vector<float>(kBlock, value));
    const auto results = of_kind<wire::Result>(give(1, {}));
    REQUIRE(results.size() == 2);
    CHECK(sum_of(results[0]) == expected);
  }
}

TEST_CASE("after the first round only the owners of a block are waited for") {
  Bench bench;
  bench.form();
  bench.give(0, bench.long_op(0, 0, true));
  CHECK(bench.give(1, bench.long_op(1, 0, false)).size() == 2);
  const auto results = of_kind<wire::Result>(bench.give(0, bench.long_op(0, 1, true)));
  REQUIRE(results.size() == 2);
  const auto block = blocks_of(results[0].packet())[0];
  CHECK(block.index == bench.in_row(1));
  CHECK(block.next == bench.in_row(2));
  // Who owns nothing has nothing to contribute.
  CHECK(bench.give(1, bench.long_op(1, 2, false)).empty());
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
}

TEST_CASE("an owner whose block proves to be zero is heard, and adds nothing") {
  Bench bench;
  bench.form();
  for (unsigned rank : {0U, 1U}) bench.give(rank, bench.long_op(rank, 0, true));
  const auto width = bench.geometry(1).columns;
  const auto without_block = [&](unsigned rank, std::uint32_t round) {
    std::vector<Block> blocks(width);
    blocks[0] = {bench.in_row(round), bench.in_row(round + 1), {}};
    return bench.give(rank, bench.data(rank, round, false, blocks, 5u * width));
  };
  CHECK(bench.give(0, bench.long_op(0, 1, true)).empty());  // rank 1 is still waited for
  const auto one = of_kind<wire::Result>(without_block(1, 1));
  REQUIRE(one.size() == 2);
  CHECK(sum_of(one[0]) == 1);
  // Nobody has it after all: there is no sum, and the next block is wanted.
  CHECK(without_block(0, 2).empty());
  const auto none = of_kind<wire::Result>(without_block(1, 2));
  REQUIRE(none.size() == 2);
  const auto block = blocks_of(none[0].packet())[0];
  CHECK(block.index == bench.in_row(2));
  CHECK(block.next == bench.in_row(3));
  CHECK(block.elements.empty());
}

TEST_CASE("a packet two rounds late is not added a second time") {
  Bench bench(2, 4);
  bench.form();
  const auto late = bench.short_op(0, 0, 100, 0);
  for (std::uint64_t round = 0; round < 2; ++round) {
    bench.give(0, round == 0 ? late : bench.short_op(0, round, 1, round));
    bench.give(1, bench.short_op(1, round, 2, round));
  }
  // Round 2 runs: its number has the parity of round 0, and so has the late packet's.
  CHECK(bench.give(0, late).empty());
  CHECK(bench.drops(DropReason::kStaleRound) == 1);
  bench.give(1, bench.short_op(1, 2, 2, 2));
  const auto results = of_kind<wire::Result>(bench.give(0, bench.short_op(0, 2, 1, 2)));
  REQUIRE(results.size() == 2);
  CHECK(sum_of(results[0]) == 3);
  CHECK(bench.engine().counters().contributions == 6);
}

TEST_CASE("a contribution that came twice counts once") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  CHECK(bench.give(0, bench.short_op(0, 0, 1, 0)).empty());
  const auto status = of_kind<wire::Status>(bench.give(0, bench.short_op(0, 0, 1, 0, true)));
  REQUIRE(status.size() == 1);
  CHECK(status[0].to == at_rank(0));
  const auto waiting = RankSet::from_bytes(status[0].packet().as<wire::Status>().waiting);
  CHECK(waiting.contains(Rank{1}));
  CHECK(waiting.size() == 1);
  CHECK(bench.drops(DropReason::kDuplicate) == 2);
  const auto results = bench.give(1, bench.short_op(1, 0, 2, 0));
  CHECK(sum_of(results[0]) == 3);
}

TEST_CASE("a result is repeated to the worker that asks, and to no other") {
  Bench bench(3, 4);
  bench.form();
  for (unsigned rank : {0u, 1u, 2u}) bench.give(rank, bench.short_op(rank, 0, 1, 0));
  bench.give(0, bench.short_op(0, 1, 1, 1));  // rank 0 was heard last

  const auto probed = bench.probe(1, 0);
  REQUIRE(probed.size() == 1);
  CHECK(probed[0].to == at_rank(1));
  CHECK(sum_of(probed[0]) == 3);

  const auto asked = bench.give(2, bench.short_op(2, 0, 1, 0, true));
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].to == at_rank(2));
  CHECK(sum_of(asked[0]) == 3);
  CHECK(bench.engine().counters().results_repeated == 2);
}

TEST_CASE("PROBE gets the results that it lacks, or who is waited for") {
  Bench bench(2, 8);
  bench.form();
  bench.give(0, bench.long_op(0, 0, true));
  bench.give(1, bench.long_op(1, 0, false));
  for (std::uint64_t round = 1; round < 3; ++round) bench.give(0, bench.long_op(0, round, true));
  const auto results = of_kind<wire::Result>(bench.probe(1, 0, 1));  // it holds result 1 already
  REQUIRE(results.size() == 2);
  CHECK(results[0].packet().as<wire::Result>().round == 0);
  CHECK(results[1].packet().as<wire::Result>().round == 2);
  const auto status = of_kind<wire::Status>(bench.probe(1, 3));
  REQUIRE(status.size() == 1);
  const auto& running = status[0].packet().as<wire::Status>();
  CHECK(running.round == 3);
  CHECK(running.live == 1);
  CHECK(RankSet::from_bytes(running.waiting).lowest() == 0);
  CHECK(RankSet::from_bytes(running.waiting).size() == 1);
  CHECK(bench.engine().counters().probes_received == 2);
}

TEST_CASE("what is below the position told is stale and never answered") {
  Bench bench(1, 8);
  bench.form();
  for (std::uint64_t round = 0; round < 3; ++round)
    bench.give(0, bench.short_op(0, round, 1, round));
  CHECK(bench.probe(0, 1).empty());
  CHECK(bench.give(0, bench.short_op(0, 1, 1, 1, true)).empty());
  CHECK(bench.ack(0, 1).empty());
  CHECK(bench.drops(DropReason::kStaleRound) == 3);
}

TEST_CASE("a round of the future breaks the protocol") {
  Bench bench;
  bench.form();
  CHECK(bench.give(0, bench.short_op(0, 1, 1, 0)).empty());
  CHECK(bench.ack(0, 1).empty());
  CHECK(bench.probe(0, 1).empty());
  CHECK(bench.drops(DropReason::kFutureRound) == 3);
}

TEST_CASE("a round is not finished while a worker is H results behind") {
  Bench bench(2, 2);
  bench.form();
  bench.give(0, bench.long_op(0, 0, true));
  CHECK(bench.give(1, bench.long_op(1, 0, false)).size() == 2);
  CHECK(bench.give(0, bench.long_op(0, 1, true)).size() == 2);
  // Round 2 may not end: rank 1 has told position 0, and result 0 would go.
  CHECK(bench.give(0, bench.long_op(0, 2, true)).empty());
  CHECK(bench.engine().counters().rounds_awaiting_ack == 1);
  const auto results = of_kind<wire::Result>(bench.ack(1, 1));
  REQUIRE(results.size() == 2);
  CHECK(results[0].packet().as<wire::Result>().round == 2);
}

TEST_CASE("a result tells how far the slowest rank is behind, and nobody's results are forgotten") {
  Bench bench(2, 8);
  bench.form();
  const auto lag_after = [](const std::vector<Sent>& sent) {
    return unsigned{of_kind<wire::Result>(sent).at(0).packet().as<wire::Result>().lag};
  };
  bench.give(0, bench.long_op(0, 0, true));
  CHECK(lag_after(bench.give(1, bench.long_op(1, 0, false))) == 0);
  CHECK(lag_after(bench.give(0, bench.long_op(0, 1, true))) == 1);
  CHECK(lag_after(bench.give(0, bench.long_op(0, 2, true))) == 2);
  bench.ack(1, 2);
  CHECK(lag_after(bench.give(0, bench.long_op(0, 3, true))) == 1);
  const auto results = of_kind<wire::Result>(bench.probe(1, 2));
  REQUIRE(results.size() == 2);  // 2 and 3
  CHECK(results[0].packet().as<wire::Result>().round == 2);
}

TEST_CASE("ranks that call different collectives are both named, with both values") {
  Bench bench(3);
  bench.form();
  const auto mismatch = [&](auto&& change) {
    bench.give(2, bench.short_op(2, 0, 1, 0));
    auto bytes = bench.short_op(1, 0, 1, 0);
    change(*reinterpret_cast<wire::Data*>(bytes.data()),
           *reinterpret_cast<wire::Descriptor*>(bytes.data() + sizeof(wire::Data)));
    const auto told = bench.give(1, bytes);
    CHECK(of_kind<wire::Abort>(told).size() == 3);
    const auto why = abort_of(told);
    CHECK(why.reason == wire::AbortReason::kOpMismatch);
    CHECK(why.rank_a == Rank{2});
    CHECK(why.rank_b == Rank{1});
    return why;
  };
  SECTION("op number") {
    const auto why = mismatch([](wire::Data& d, wire::Descriptor&) { d.op = 7; });
    CHECK(why.field == wire::Field::kOpNumber);
    CHECK(why.value_b == 7);
  }
  SECTION("collective") {
    CHECK(mismatch([](wire::Data&, wire::Descriptor& d) { d.collective = 2; }).field ==
          wire::Field::kCollective);
  }
  SECTION("reduction") {
    CHECK(mismatch([](wire::Data&, wire::Descriptor& d) { d.reduction = 2; }).field ==
          wire::Field::kReduction);
  }
  SECTION("op type") {
    CHECK(mismatch([](wire::Data&, wire::Descriptor& d) { d.op_type = 5; }).field ==
          wire::Field::kOpType);
  }
  SECTION("root") {
    CHECK(mismatch([](wire::Data&, wire::Descriptor& d) { d.root = 1; }).field ==
          wire::Field::kRoot);
  }
  SECTION("tag") {
    CHECK(mismatch([](wire::Data&, wire::Descriptor& d) { d.tag = 3; }).field == wire::Field::kTag);
  }
  SECTION("block elements") {
    const auto why =
        mismatch([](wire::Data& d, wire::Descriptor&) { d.shape.block_elements = 2 * kBlock; });
    CHECK(why.field == wire::Field::kBlockElements);
    CHECK(why.value_a == kBlock);
    CHECK(why.value_b == 2 * kBlock);
  }
  SECTION("element count") {
    const auto why = mismatch([](wire::Data& d, wire::Descriptor&) {
      d.shape.element_count = 2 * kBlock;  // block 0 stays full
    });
    CHECK(why.field == wire::Field::kElementCount);
    CHECK(why.value_a == kBlock);
    CHECK(why.value_b == 2 * kBlock);
  }
}

TEST_CASE("what does not fit the running round is dropped, wherever its indices point") {
  Bench bench;
  bench.form();
  const std::uint32_t stride = bench.geometry(1).row_blocks();
  SECTION("an op that this session cannot have") {
    auto bytes = bench.short_op(0, 0, 1, 0);
    reinterpret_cast<wire::Data*>(bytes.data())->shape.block_elements = kBlock + 1;
    reinterpret_cast<wire::Data*>(bytes.data())->shape.element_count = kBlock;
    CHECK(bench.give(0, bytes).empty());
  }
  SECTION("no opening round") {
    CHECK(bench.give(0, bench.data(0, 0, false, {{0, kNoBlock.value, {1, 1, 1, 1}}}, 1)).empty());
  }
  SECTION("another block than the current one") {
    CHECK(bench.give(0, bench.data(0, 0, true, {{stride, kNoBlock.value, {1, 1, 1, 1}}}, 100))
              .empty());
  }
  SECTION("a next block of another column") {
    std::vector<Block> blocks;
    for (std::uint32_t c = 0; c < stride; ++c) blocks.push_back({c, kNoBlock.value});
    blocks[0] = {0, 1, {1, 1, 1, 1}};
    CHECK(bench.give(0, bench.data(0, 0, true, blocks, 100)).empty());
  }
  SECTION("more columns than the session has") {
    auto shape = wire::shape_of(bench.geometry(1));
    shape.columns = wire::kMaxColumns;
    const auto bytes =
        block_packet<wire::Data>(kJob, shape, true, {{0, kNoBlock.value, {1, 1, 1, 1}}},
                                 [&](wire::Data& fixed, wire::Descriptor*) {
                                   fixed.member = bench.member(0, fixed.member);
                                   fixed.flags = wire::kDataOpening;
                                 });
    CHECK(bench.give(0, bytes).empty());
  }
  SECTION("more columns than the op that runs") {
    bench.give(0, bench.short_op(0, 0, 1, 0));
    auto shape = wire::shape_of(bench.geometry(1));
    shape.columns = wire::kMaxColumns;
    const auto bytes =
        block_packet<wire::Data>(kJob, shape, true, {{0, kNoBlock.value, {1, 1, 1, 1}}},
                                 [&](wire::Data& fixed, wire::Descriptor*) {
                                   fixed.member = bench.member(1, fixed.member);
                                   fixed.flags = wire::kDataOpening;
                                 });
    CHECK(bench.give(1, bytes).empty());
  }
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
  CHECK(bench.engine().counters().contributions <= 1);
  // The job is none the worse for it.
  bench.give(0, bench.short_op(0, 0, 1, 0));
  CHECK(sum_of(bench.give(1, bench.short_op(1, 0, 2, 0)).at(0)) == 3);
}

TEST_CASE("blocks of another size than the running op's are not added") {
  Bench bench;
  bench.form();
  bench.give(0, bench.long_op(0, 0, true));
  bench.give(1, bench.long_op(1, 0, false));
  const std::uint32_t width = bench.geometry(1).columns;
  auto shape = wire::shape_of(bench.geometry(4u * width + 1));
  shape.block_elements = 2 * kBlock;
  shape.element_count = 100u * width * kBlock;
  std::vector<Block> blocks(width);
  blocks[0] = {width, 2 * width, std::vector<float>(2 * kBlock, 9)};
  CHECK(bench
            .give(0, block_packet<wire::Data>(kJob, shape, false, blocks,
                                              [&](wire::Data& fixed, wire::Descriptor*) {
                                                fixed.member = bench.member(0, fixed.member);
                                                fixed.round = 1;
                                              }))
            .empty());
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
  CHECK(sum_of(bench.give(0, bench.long_op(0, 1, true)).at(0)) == 1);
}

TEST_CASE("a stream that is not served here is dropped") {
  Bench bench;
  bench.form();
  for (const std::uint16_t stream : Numbers{1, 1024, 65535}) {
    auto bytes = bench.short_op(0, 0, 1, 0);
    reinterpret_cast<wire::Data*>(bytes.data())->member.stream = stream;
    CHECK(bench.give(0, bytes).empty());
  }
  CHECK(bench.drops(DropReason::kBadStream) == 3);
}

TEST_CASE("a sum is delivered to those who want it, and to others without it") {
  Bench bench(3);
  bench.form();
  const auto wanting_nothing = [&](unsigned rank) {
    auto bytes = bench.short_op(rank, 0, 1, 0);
    reinterpret_cast<wire::Descriptor*>(bytes.data() + sizeof(wire::Data))->flags =
        wire::kWantsPart;
    return bytes;
  };
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.give(1, wanting_nothing(1));
  const auto results = of_kind<wire::Result>(bench.give(2, wanting_nothing(2)));
  REQUIRE(results.size() == 3);
  CHECK(results[0].to == at_rank(0));
  CHECK(sum_of(results[0]) == 3);
  for (const unsigned r : {1u, 2u}) {
    CHECK(results[r].to == at_rank(r));
    CHECK(results[r].packet().columns()[0].flags == wire::kColumnWithheld);
    CHECK(blocks_of(results[r].packet())[0].elements.empty());
  }
  CHECK(bench.engine().counters().results_withheld == 2);
  // The next op's descriptors count for it alone.
  std::vector<Sent> last;
  for (unsigned r = 0; r < 3; ++r) last = bench.give(r, bench.short_op(r, 1, 1, 1));
  for (const Sent& result : of_kind<wire::Result>(last)) CHECK(sum_of(result) == 3);
}

TEST_CASE("a block that one rank alone has moved is not sent back to it") {
  Bench bench(2);
  bench.form();
  const auto of = [&](wire::Collective collective, unsigned rank, unsigned op, bool has_block) {
    auto bytes = has_block ? bench.short_op(rank, op, 1, op)
                           : bench.data(rank, op, true, {{0, kNoBlock.value}}, 1, op);
    reinterpret_cast<wire::Descriptor*>(bytes.data() + sizeof(wire::Data))->collective =
        static_cast<std::uint8_t>(collective);
    return bytes;
  };
  const auto results = [&](wire::Collective collective, unsigned op, bool both) {
    bench.give(0, of(collective, 0, op, both));
    return of_kind<wire::Result>(bench.give(1, of(collective, 1, op, true)));
  };
  const auto flags = [](const Sent& result) { return result.packet().columns()[0].flags; };
  const auto moved = results(wire::Collective::kAllGather, 0, false);
  CHECK(sum_of(moved[0]) == 1);
  CHECK(flags(moved[1]) == wire::kColumnWithheld);
  const auto shared = results(wire::Collective::kAllGather, 1, true);
  CHECK(flags(shared[1]) == wire::kColumnPresent);
  const auto reduced = results(wire::Collective::kAllReduce, 2, false);
  CHECK(flags(reduced[1]) == wire::kColumnPresent);
}

TEST_CASE("a pool that has no room for a result without sums sends it with them") {
  Bench bench(2);
  bench.form();
  auto bytes = bench.short_op(1, 0, 1, 0);
  reinterpret_cast<wire::Descriptor*>(bytes.data() + sizeof(wire::Data))->flags = wire::kWantsPart;
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.sink.dry_after = 1;
  const auto results = of_kind<wire::Result>(bench.give(1, bytes));
  REQUIRE(results.size() == 2);
  CHECK(sum_of(results[1]) == 2);
}

TEST_CASE("a resumed stream begins with the first round whose result some rank lacks") {
  Bench bench(2, 4);
  bench.resume();
  CHECK(of_kind<wire::Status>(bench.sync(0, 6)).at(0).packet().as<wire::Status>().live == 0);
  const auto live = of_kind<wire::Status>(bench.sync(1, 5));
  REQUIRE(live.size() == 2);
  for (const Sent& status : live) {
    CHECK(status.packet().as<wire::Status>().live == 1);
    CHECK(status.packet().as<wire::Status>().round == 5);
  }
  // Amidst an op: both must contribute, and leaving must wait for the front.
  const std::uint32_t width = bench.geometry(1).columns;
  const auto data = [&](unsigned rank, std::uint64_t round, std::uint32_t row) {
    std::vector<Block> blocks(width);
    const std::uint32_t next = round == 5 ? bench.in_row(row + 1) : kNoBlock.value;
    blocks[0] = {bench.in_row(row), next, std::vector<float>(kBlock, 1)};
    return bench.data(rank, round, round == 5, blocks, 4u * width);
  };
  CHECK(bench.give(0, data(0, 5, 1)).empty());
  CHECK(of_kind<wire::Left>(bench.leave(0)).empty());
  const auto first = of_kind<wire::Result>(bench.give(1, data(1, 5, 1)));
  REQUIRE(first.size() == 2);
  CHECK(sum_of(first[0]) == 2);
  CHECK(of_kind<wire::Result>(bench.give(0, data(0, 6, 2))).empty());
  CHECK(bench.engine().counters().rounds_replayed == 1);
  CHECK(of_kind<wire::Result>(bench.give(1, data(1, 6, 2))).size() == 2);
  CHECK(bench.engine().counters().rounds_replayed == 1);
}

TEST_CASE("ranks whose positions cannot be those of one generation end the job") {
  Bench bench(2, 4);
  bench.resume();
  bench.sync(0, 10);
  CHECK(abort_of(bench.sync(1, 5)).reason == wire::AbortReason::kCannotResume);
}

TEST_CASE("ranks that resume with different blocks end the job") {
  Bench bench(2, 4);
  bench.resume();
  bench.sync(0, 5);
  bench.sync(1, 5);
  const std::uint32_t width = bench.geometry(1).columns;
  std::vector<Block> blocks(width);
  blocks[0].index = bench.in_row(1);
  CHECK(bench.give(0, bench.data(0, 5, true, blocks, 4u * width)).empty());
  blocks[0].index = bench.in_row(2);
  const auto sent = bench.give(1, bench.data(1, 5, true, blocks, 4u * width));
  CHECK(abort_of(sent).reason == wire::AbortReason::kCannotResume);
}

TEST_CASE("a contribution of the other kind does not fit a resumed round") {
  Bench bench(2, 4);
  bench.resume();
  bench.sync(0, 5);
  bench.sync(1, 5);
  SECTION("pairs, of a round of blocks") {
    const auto shape =
        wire::shape_of(Geometry::make(400, ElementType::kFloat32, 40, 508, bench.streams, 0));
    REQUIRE(shape.columns <= kMostChunkBits);
    const auto blocks =
        block_packet<wire::Data>(kJob, shape, true, std::vector<Block>(shape.columns),
                                 [&](wire::Data& data, wire::Descriptor*) {
                                   data.member = bench.member(0, data.member);
                                   data.round = 5;
                                   data.flags = wire::kDataOpening;
                                 });
    CHECK(bench.give(0, blocks).empty());
    CHECK(bench.give(1, bench.keyed_data(1, 5, false, shape, 0, kNoKey)).empty());
  }
  SECTION("blocks, of a round of pairs") {
    const Session session{.ranks = 2, .streams = bench.streams, .payload_bytes = 508};
    const auto geometry = KeyedGeometry::make(1000, 1, ElementType::kFloat32, session, 0);
    const auto shape = wire::shape_of(geometry.value());
    CHECK(bench.give(0, bench.keyed_data(0, 5, true, shape, 0, kNoKey)).empty());
    const auto blocks =
        block_packet<wire::Data>(kJob, shape, false, std::vector<Block>(shape.columns),
                                 [&](wire::Data& data, wire::Descriptor*) {
                                   data.member = bench.member(1, data.member);
                                   data.round = 5;
                                 });
    CHECK(bench.give(1, blocks).empty());
  }
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
  CHECK(bench.engine().counters().jobs_aborted == 0);
}

TEST_CASE("an opening round's blocks must lie on their columns") {
  Bench bench(1, 4);
  const std::uint32_t width = bench.geometry(1).columns;
  std::vector<Block> blocks(width);
  blocks[0].index = 1;  // column 1's
  SECTION("of an op's first round") {
    bench.form();
    CHECK(bench.give(0, bench.data(0, 0, true, blocks, 4u * width)).empty());
  }
  SECTION("of a resumed one") {
    bench.resume();
    bench.sync(0, 5);
    CHECK(bench.give(0, bench.data(0, 5, true, blocks, 4u * width)).empty());
  }
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
}

TEST_CASE("a SYNC of a stream that is live is told so") {
  Bench bench;
  bench.form();
  const auto status = of_kind<wire::Status>(bench.sync(0, 0));
  REQUIRE(status.size() == 1);
  CHECK(status[0].packet().as<wire::Status>().live == 1);
  CHECK(bench.drops(DropReason::kDuplicate) == 1);
}

TEST_CASE("a round whose result finds no buffer is finished as soon as there is one") {
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.sink.pool->dry = true;
  CHECK(bench.give(1, bench.short_op(1, 0, 2, 0)).empty());
  CHECK(bench.engine().next_deadline() <= bench.now);
  CHECK(bench.pass(10us).empty());
  bench.sink.pool->dry = false;
  const auto results = of_kind<wire::Result>(bench.pass(10us));
  REQUIRE(results.size() == 2);
  CHECK(sum_of(results[0]) == 3);
  CHECK(bench.engine().counters().rounds_stalled == 1);
  CHECK(bench.engine().next_deadline() > bench.now);
}

TEST_CASE("a round that waits for a buffer does not make every turn look at all jobs") {
  struct Looks final : StageObserver {
    void enter(Stage stage) override { count += stage == Stage::kOther ? 1 : 0; }
    int count = 0;
  } looks;
  Bench bench;
  bench.form();
  bench.give(0, bench.short_op(0, 0, 1, 0));
  bench.pass(0ms);
  bench.sink.pool->dry = true;
  bench.give(1, bench.short_op(1, 0, 2, 0));
  bench.sink.observe(&looks);
  for (int turn = 0; turn < 1000; ++turn) bench.pass(1us);
  CHECK(looks.count == 0);
  CHECK(bench.engine().counters().rounds_finished == 0);
}

TEST_CASE("control packets that find no buffer are counted, and asked for again") {
  Bench bench;
  bench.sink.pool->dry = true;
  auto hello = wire::make<wire::Hello>(kJob);
  CHECK(bench.give(0, hello).empty());
  CHECK(bench.engine().counters().control_packets_lost == 1);
  bench.sink.pool->dry = false;
  CHECK(bench.give(0, hello).size() == 1);
}

// ---------------------------------------------------------------------------- what operators read
TEST_CASE("events are kept up to a bound, and refusals, which anybody can cause, hide no others") {
  JobEvents events;
  for (int i = 0; i < 10'000; ++i) events.keep({.kind = JobEvent::Kind::kRefused});
  CHECK(events.list.size() == limits::kMaxFrequentEvents);
  CHECK(events.lost == 10'000 - limits::kMaxFrequentEvents);
  events.keep({.kind = JobEvent::Kind::kAborted});
  CHECK(events.list.back().kind == JobEvent::Kind::kAborted);
  for (int i = 0; i < 10'000; ++i) events.keep({.kind = JobEvent::Kind::kLeft});
  CHECK(events.list.size() == limits::kMaxEvents);
  CHECK(events.lost == 20'001 - limits::kMaxEvents);
}

}  // namespace aggregator_engine_tests
