// The parts of a membership by themselves: those who wait for a job, and its members.
#include "aggregator/engine/formation.hpp"

#include <chrono>

#include "aggregator/engine/members.hpp"
#include "common/protocol/build.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::aggregator::formation_tests {
namespace {

using namespace std::chrono_literals;

/// A job of two ranks at an aggregator whose KEEPALIVE interval is 100 ms.
struct Parts {
  EngineConfig config;
  std::uint64_t ids = 0;
  Serials serials;
  JobRecord record{configured(), serials, 42};
  Formation formation{record};
  Members members{record};
  ControlPackets out;
  Time now = Time{} + 1h;

  const EngineConfig& configured() {
    config.unique = [this] { return ++ids; };
    config.liveness_timeout = 1s;
    config.payload_bytes = 1400;
    return config;
  }
  wire::Join join(std::uint16_t rank) {
    auto join = wire::make<wire::Join>(42);
    join.nonce = 100u + rank;
    join.serial = serials.next();
    join.rank = rank;
    join.world_size = 2;
    join.streams = 4;
    join.block_elements = 16;
    join.payload_bytes = 1400;
    join.shards = 1;
    join.history = 2;
    join.flags = wire::kJoinNoProgress;
    return join;
  }
  DropReason comes(const wire::Join& join) {
    return formation.on_join({.port_id = join.rank}, join, now, out);
  }
  Session begin() {
    for (const Rank rank : {Rank{0}, Rank{1}}) CHECK(comes(join(rank.value)) == DropReason::kNone);
    REQUIRE(formation.complete(now));
    const auto agreed = formation.agree(0);
    members.begin(agreed, formation.candidates(), now, out);
    formation.clear();
    return agreed.session;
  }
};

using Case = Members::JoinCase;

TEST_CASE("candidates agree on the smallest payload, and say who is absent until then") {
  Parts parts;
  auto modest = parts.join(0);
  modest.payload_bytes = 508;
  CHECK(parts.comes(modest) == DropReason::kNone);
  CHECK(!parts.formation.complete(parts.now));
  CHECK(parts.formation.absent(modest).size() == 1);
  CHECK(parts.formation.absent(parts.join(1)).empty());
  CHECK(parts.comes(parts.join(1)) == DropReason::kNone);
  REQUIRE(parts.formation.complete(parts.now));
  const auto [session, resumed] = parts.formation.agree(0);
  CHECK(session.ranks == 2);
  CHECK(session.payload_bytes == 508);
  CHECK(session.streams == 4);
  CHECK(session.history == 2);
  CHECK(!resumed);
}

TEST_CASE("candidates that name the same host are told that there are hosts") {
  const auto has_hosts = [](std::uint64_t first, std::uint64_t second) {
    Parts parts;
    auto joins = std::array{parts.join(0), parts.join(1)};
    joins[0].host = first;
    joins[1].host = second;
    for (const wire::Join& join : joins) CHECK(parts.comes(join) == DropReason::kNone);
    return parts.formation.agree(0).session.has_hosts;
  };
  CHECK(has_hosts(7, 7));
  CHECK(!has_hosts(7, 8));
  CHECK(!has_hosts(0, 0));
  CHECK(!has_hosts(0, 7));
}

TEST_CASE("the candidates are complete only while all of them say that they wait") {
  Parts parts;
  CHECK(parts.comes(parts.join(0)) == DropReason::kNone);
  parts.now += 201ms;
  CHECK(parts.comes(parts.join(1)) == DropReason::kNone);
  CHECK(!parts.formation.complete(parts.now));
  parts.formation.on_time(parts.now + 199ms, parts.out);
  CHECK(parts.formation.candidates().size() == 1);
}

TEST_CASE("who was dismissed is void, and is told why again") {
  Parts parts;
  const auto join = parts.join(0);
  CHECK(parts.comes(join) == DropReason::kNone);
  parts.formation.dismiss(about(wire::AbortReason::kAbsent, Rank{1}), parts.out);
  CHECK(parts.formation.empty());
  CHECK(parts.record.take_events().size() == 1);
  CHECK(parts.comes(join) == DropReason::kStaleJoin);
  auto again = parts.join(0);  // the same attempt, with a new serial
  CHECK(parts.comes(again) == DropReason::kBadJoin);
  CHECK(parts.record.take_events().size() == 1);
}

TEST_CASE("a member is found by its token, also the former one until the new one is used") {
  Parts parts;
  const Session session = parts.begin();
  const std::uint64_t former = parts.ids - 1;  // tokens are the ids made last
  wire::MemberHeader header{};
  header.token = former;
  Rank who{0};
  if (!parts.members.find(header)) who = Rank{1};
  header.rank = who.value;
  REQUIRE(parts.members.find(header) == who);
  auto join = parts.join(who.value);
  join.nonce = 7;
  join.generation = session.generation;
  join.epoch = session.epoch;
  REQUIRE(parts.members.judge(join) == Case::kRejoins);
  parts.members.rebind(who, {.port_id = 9}, join, parts.now, parts.out);
  const std::uint64_t token = parts.ids;
  CHECK(parts.members.find(header) == who);
  CHECK(parts.members.has_token(token));
  parts.members.spoke(who, token);
  CHECK(!parts.members.find(header));
  CHECK(!parts.members.has_token(former));
}

TEST_CASE("what a JOIN beside a member is about is told by its serial, generation and epoch") {
  Parts parts;
  const Session session = parts.begin();
  auto join = parts.join(0);
  CHECK(parts.members.judge(join) == Case::kRepeated);
  join.nonce = 7;
  CHECK(parts.members.judge(join) == Case::kSpeaksOfOtherLife);
  join.generation = session.generation;
  CHECK(parts.members.judge(join) == Case::kRejoins);
  join.epoch = session.epoch + 1;
  CHECK(parts.members.judge(join) == Case::kElsewhere);
  join.epoch = 0;
  parts.members.spoke(Rank{0}, 0);
  CHECK(parts.members.judge(join) == Case::kAnotherProcess);
  join.serial = 1;
  CHECK(parts.members.judge(join) == Case::kStale);
  parts.members.on_leave(Rank{0}, 0, Departure::kByChoice, true, parts.out);
  CHECK(parts.members.judge(join) == Case::kWaitsForOthers);
}

namespace {

wire::KeepAlive keep_alive(std::uint64_t number) {
  auto packet = wire::make<wire::KeepAlive>(0);
  packet.number = number;
  return packet;
}

}  // namespace

TEST_CASE("a contended member keeps its place by two signs of liveness, and loses it by silence") {
  Parts parts;
  parts.begin();
  for (const Rank r : {Rank{0}, Rank{1}}) parts.members.spoke(r, 0);
  auto other = parts.join(0);
  other.nonce = 7;
  parts.members.contend({.port_id = 9}, other, parts.now);
  parts.members.on_keep_alive(Rank{0}, keep_alive(1), parts.now, parts.out);
  CHECK(!parts.members.settle_contention(parts.now, parts.out));
  CHECK(parts.record.take_events().empty());
  parts.members.on_keep_alive(Rank{0}, keep_alive(2), parts.now, parts.out);
  CHECK(!parts.members.settle_contention(parts.now, parts.out));
  CHECK(parts.record.take_events().size() == 1);  // it is refused

  other.nonce = 8;
  parts.members.contend({.port_id = 9}, other, parts.now);
  CHECK(!parts.members.settle_contention(parts.now + 299ms, parts.out));
  const auto restarted = parts.members.settle_contention(parts.now + 300ms, parts.out);
  REQUIRE(restarted);
  CHECK(restarted->join.nonce == 8);
}

}  // namespace
}  // namespace sluice::aggregator::formation_tests
