// The aggregator's engine under packets that no honest worker sends: of members that lie to their
// own job, of ranks that play several parts, and of hosts that know no secret but see some packets.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/unit/aggregator_bench.hpp"
#include "tests/unit/catch.hpp"

namespace hostile_packets_tests {

using namespace sluice;
using namespace sluice::parts;
using namespace std::chrono_literals;

// --------------------------------------------------------------------------- members of the job
TEST_CASE("a LEAVE that acknowledges the last result awaited finishes the round") {
  Bench bench(3, 2);
  bench.form();
  bench.give(0, bench.long_op(0, 0, true));
  bench.give(1, bench.long_op(1, 0, false));
  bench.give(2, bench.long_op(2, 0, false));
  bench.give(0, bench.long_op(0, 1, true));
  bench.ack(2, 1);
  // Round 2 has its contribution and awaits that rank 1 acknowledges round 0, which it does so:
  CHECK(bench.give(0, bench.long_op(0, 2, true)).empty());
  CHECK(of_kind<wire::Result>(bench.leave(1)).size() == 3);
  for (int i = 0; i < 3; ++i) bench.pass(1s - 1ms);  // nobody is waited for
  for (const auto& event : bench.events)
    if (event.kind == aggregator::JobEvent::Kind::kStraggler)
      CHECK(event.straggler.rank.value < bench.ranks);
}

TEST_CASE("a resumed round's packet with more columns than its op is dropped") {
  Bench bench(2, 4);
  bench.resume();
  bench.sync(0, 5);
  bench.sync(1, 5);
  const Geometry geometry = bench.geometry(100);
  const std::vector<Block> blocks(geometry.columns);
  CHECK(bench.give(0, bench.data(0, 5, true, blocks, 100)).empty());
  wire::Shape shape = wire::shape_of(geometry);
  shape.columns = wire::kMaxColumns;
  const std::vector<Block> more(wire::kMaxColumns);
  bench.give(1, block_packet<wire::Data>(kJob, shape, true, more,
                                         [&](wire::Data& fixed, wire::Descriptor*) {
                                           fixed.member = bench.member(1, fixed.member);
                                           fixed.round = 5;
                                           fixed.flags = wire::kDataOpening;
                                         }));
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
  CHECK(bench.engine().live_jobs() == 1);
}

// ------------------------------------------------------------------------------ who may be anybody
TEST_CASE("a JOIN repeated with another Ethernet address redirects nobody") {
  Bench bench;
  auto join = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  Endpoint elsewhere = at_rank(0);
  elsewhere.mac = {2, 0, 0, 0, 0, 9};
  bench.engine().receive(elsewhere, received(bench.sink, wire::bytes_of(join)), bench.now,
                         bench.sink);
  CHECK(bench.sink.take().empty());
  CHECK(bench.drops(DropReason::kBadChallenge) == 1);
}

TEST_CASE("a HELLO of another version is answered with no more bytes than it has, and not often") {
  Bench bench;
  bench.config.reply_rate_limit = 5;
  const auto hello = [](std::size_t size, std::uint8_t version = 2) {
    auto made = wire::make<wire::Hello>(kJob);
    made.header.version = version;
    made.header.length = static_cast<std::uint16_t>(size);
    made.nonce = 4711;
    std::vector<std::byte> bytes(size);
    std::memcpy(bytes.data(), &made, std::min(size, sizeof made));
    return bytes;
  };
  const auto give = [&](const std::vector<std::byte>& bytes) {
    bench.engine().receive(at_rank(0), received(bench.sink, bytes), bench.now, bench.sink);
    return bench.sink.take();
  };
  for (const std::size_t size : {32u, 128u, 1400u}) {
    CAPTURE(size);
    const auto answers = give(hello(size, size == 32 ? 0 : 255));
    REQUIRE(of_kind<wire::Versions>(answers).size() == 1);
    CHECK(answers[0].datagram->size() == 32);
    const auto& versions = answers[0].packet().as<wire::Versions>();
    CHECK(versions.header.job == kJob);
    CHECK(versions.nonce == 4711u);
    CHECK(versions.lowest == wire::kVersion);
    CHECK(versions.highest == wire::kVersion);
    CHECK(answers[0].packet().has_integrity());
  }
  CHECK(give(hello(31)).empty());
  std::vector<std::byte> join = hello(128);
  join[3] = std::byte{2};
  CHECK(give(join).empty());
  join[3] = std::byte{0x8c};  // a VERSION: two aggregators must not answer each other
  CHECK(give(join).empty());
  CHECK(bench.drops(DropReason::kBadVersion) == 5);
  CHECK(bench.drops(DropReason::kWrongDirection) == 0);
  std::size_t answered = 3;
  for (int i = 0; i < 20; ++i) answered += give(hello(128)).size();
  CHECK(answered == 5);
  CHECK(bench.drops(DropReason::kBadVersion) == 25);
  CHECK(bench.engine().live_jobs() == 0);
}

TEST_CASE("a member's token is never refused, whoever shows it") {
  Bench bench;
  bench.form();
  auto packet = wire::make<wire::KeepAlive>(kJob);
  packet.member = bench.member(0, packet.member);
  packet.number = 1;
  SECTION("under another rank's number") {
    packet.member.rank = 1;
  }
  SECTION("under a number that no rank has") {
    packet.member.rank = 60'000;
  }
  CHECK(bench.give(5, packet).empty());
  CHECK(bench.drops(DropReason::kUnknownToken) == 1);
}

TEST_CASE(
    "ranks of generations without progress that do not come together are told who is missing") {
  Bench bench(2);
  bench.config.formation_timeout = 350ms;  // KEEPALIVEs are due every 100 ms
  auto join = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  join.generation = 3;
  bench.give(0, join);
  bench.pass(250ms);  // too old to be believed, and not yet forgotten
  auto other = bench.join_packet(1, 8, bench.challenge_serial(1, 8));
  other.generation = 4;
  CHECK(of_kind<wire::Pending>(bench.give(1, other)).size() == 1);
  const AbortInfo why = abort_of(bench.pass(100ms));
  CHECK(why.reason == wire::AbortReason::kAbsent);
  CHECK(why.rank_a == Rank{0});
}

TEST_CASE("JOINs that are refused make no ended job forgotten") {
  Bench bench;
  bench.form();
  bench.leave(0);
  bench.leave(1);
  for (std::uint32_t i = 1; i < 4000; ++i) {
    auto join = bench.join_packet(0, i, bench.challenge_serial(0, i, kJob + i));
    join.header.job = kJob + i;
    join.shard = 9;  // not here
    CHECK(of_kind<wire::Abort>(bench.give(0, join)).size() == 1);
    bench.now += 2ms;
  }
  CHECK(of_kind<wire::Left>(bench.leave(0)).size() == 1);  // it still knows
}

}  // namespace hostile_packets_tests
