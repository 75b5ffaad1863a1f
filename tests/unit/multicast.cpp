// Multicast delivery (docs/protocol.md#multicast-delivery): which members count as receivers of the
// group, what goes there, and what a worker reports about it.
#include "aggregator/engine/multicast.hpp"

#include <vector>

#include "common/base/multicast_address.hpp"
#include "tests/unit/aggregator_bench.hpp"
#include "tests/unit/catch.hpp"

namespace multicast_tests {

using namespace sluice;
using namespace sluice::parts;
using aggregator::JobEvent;
using aggregator::Multicast;

namespace {

constexpr std::uint32_t kGroup = 0xefff'4a2a;  // 239.255.74.42
constexpr Duration kInterval = 500ms;

Endpoint behind(std::uint16_t port, unsigned rank) {
  return {.port_id = port, .ipv4 = 10 + rank, .udp_port = 4748, .off_machine = true};
}

/// Three ranks behind one port and one behind another.
struct Group {
  Group() { multicast.begin(kGroup, members, kInterval); }

  void tell(std::uint16_t rank, std::uint64_t newest, std::uint32_t of_last = ~0u) {
    multicast.on_keep_alive(Rank{rank}, newest, of_last, now);
  }
  void beacons(int count) {
    for (; count > 0; --count) multicast.next_beacon(now);
  }
  bool receives_group(std::uint16_t rank) const {
    return multicast.paths()[0].receiving.contains(Rank{rank});
  }
  bool misses_group(std::uint16_t rank) const { return multicast.misses_group(Rank{rank}); }

  std::vector<Endpoint> members{behind(1, 0), behind(1, 1), behind(1, 2), behind(2, 3)};
  Multicast multicast;
  Time now = Time{1h};
};

/// Three ranks behind one port of an aggregator with a group for them. They have shown that they
/// receive it.
struct GroupBench : Bench {
  GroupBench() : Bench(3) {
    off_machine = one_port = true;
    config.groups = {.first = 0xefff'4a00, .count = 256};
    form();
    for (unsigned r = 0; r < 3; ++r) keep_alive(r, 1);
    pass(0ms);
    for (unsigned r = 0; r < 3; ++r) keep_alive(r, 2, 1);
  }
};

std::vector<std::uint32_t> addresses(const std::vector<Sent>& sent) {
  std::vector<std::uint32_t> all;
  for (const Sent& each : sent) all.push_back(each.to.ipv4);
  return all;
}

using Addresses = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("groups have Ethernet addresses, and each job has a group of the range") {
  CHECK(multicast_mac(0xefff'4a2a) == std::array<std::uint8_t, 6>{1, 0, 0x5e, 0x7f, 0x4a, 0x2a});
  CHECK(is_multicast(0xe000'0001));
  CHECK(is_multicast(0xefff'ffff));
  CHECK(!is_multicast(0xf000'0000));
  CHECK(!is_multicast(0xdfff'ffff));
  CHECK(is_link_local_multicast(0xe000'00ff));
  CHECK(!is_link_local_multicast(0xe000'0100));
  CHECK(GroupRange{}.of(7) == 0);
  CHECK(GroupRange{0xefff'4a00, 256}.of(0x1ff) == 0xefff'4aff);
}

TEST_CASE("members behind one port share a path, and local ones have none") {
  Group group;
  REQUIRE(group.multicast.paths().size() == 2);
  const Multicast::Path& path = group.multicast.paths()[0];
  CHECK(path.members.size() == 3);
  CHECK(path.group.ipv4 == kGroup);
  CHECK(path.group.mac == multicast_mac(kGroup));
  CHECK(path.group.port_id == 1);
  CHECK(path.group.udp_port == 4748);
  CHECK(path.receiving.empty());
  group.members[1].udp_port = 50'000;  // from which it was told to send
  group.multicast.begin(kGroup, group.members, kInterval);
  CHECK(group.multicast.paths()[0].members.size() == 3);
  CHECK(group.multicast.paths()[0].group.udp_port == 4748);
  std::vector<Endpoint> local{{.port_id = 1}, {.port_id = 2}};
  group.multicast.begin(kGroup, local, kInterval);
  CHECK(group.multicast.paths().empty());
  group.multicast.begin(0, group.members, kInterval);
  CHECK(group.multicast.paths().empty());
  group.tell(0, 0);
  CHECK(group.multicast.beacon_due() == kNever);
  CHECK(!group.misses_group(0));
}

TEST_CASE("a member receives the group if it lacks no more than three BEACONs") {
  Group group;
  CHECK(group.multicast.beacon_due() == kNever);
  group.tell(0, 0);
  CHECK(group.multicast.beacon_due() == group.now);
  CHECK(group.multicast.next_beacon(group.now) == 1);
  CHECK(group.multicast.beacon_due() == group.now + kInterval);
  group.tell(0, 1);
  CHECK(group.receives_group(0));
  group.tell(0, 2);  // there was none with this number
  CHECK(!group.receives_group(0));
  group.tell(0, 1);
  group.beacons(3);
  group.tell(0, 1);
  group.tell(1, 0);
  CHECK(group.receives_group(0));
  CHECK(!group.receives_group(1));
  CHECK(group.misses_group(1));
  group.beacons(1);
  group.tell(0, 1);
  CHECK(!group.receives_group(0));
  CHECK(group.misses_group(0));
  CHECK(group.misses_group(1));
  group.tell(0, 5);
  CHECK(group.receives_group(0));
  CHECK(!group.misses_group(0));
}

TEST_CASE("who lacks the last BEACON gets another soon, and who lacks many waits for the next") {
  Group group;
  group.beacons(1);
  group.tell(0, 0);
  CHECK(group.multicast.beacon_due() == group.now + 20ms);
  group.beacons(1);
  group.now += 30ms;
  group.tell(0, 1);
  CHECK(group.multicast.beacon_due() == group.now);
  group.beacons(1);
  group.tell(0, 3);
  CHECK(group.multicast.beacon_due() == group.now + kInterval);
  group.multicast.repaired(Rank{0});
  CHECK(group.multicast.beacon_due() == group.now + 20ms);
  group.beacons(1);
  group.tell(1, 0);
  group.multicast.repaired(Rank{1});
  CHECK(group.multicast.beacon_due() == group.now + kInterval);
}

TEST_CASE("who loses more than a quarter of the BEACONs is left out of the group for a while") {
  Group group;
  const auto receives_group = [&](std::uint64_t newest, std::uint32_t of_last,
                                  Duration later = 0s) {
    group.now += later;
    group.tell(1, newest, of_last);
    return group.receives_group(1);
  };
  group.beacons(40);
  CHECK(receives_group(40, 1));  // it begins to receive the group
  group.beacons(31);
  CHECK(receives_group(71, 1));
  group.beacons(1);
  CHECK(receives_group(72, 0x00ff'ffff));
  CHECK(!receives_group(72, 0x007f'ffff));
  CHECK(group.misses_group(1));
  CHECK(!receives_group(72, ~0u, 9s));
  group.beacons(31);
  CHECK(receives_group(103, 1, 1s));  // what was before counts no more
  CHECK(!group.misses_group(1));
  group.beacons(32);
  CHECK(!receives_group(135, 1));
  CHECK(!receives_group(135, ~0u, 19s));  // twice as long
  CHECK(receives_group(135, ~0u, 1s));
}

TEST_CASE("who is bound again has shown nothing, and who left is nowhere") {
  Group group;
  group.beacons(5);
  for (std::uint16_t r = 0; r < 4; ++r) group.tell(r, 5);
  CHECK(!group.multicast.paths()[1].receiving.contains(Rank{3}));  // alone there
  group.multicast.rebound(Rank{0}, behind(2, 0));
  CHECK(!group.receives_group(0));
  CHECK(!group.misses_group(0));
  CHECK(group.multicast.paths()[0].members.size() == 2);
  CHECK(group.multicast.paths()[1].members.size() == 2);
  group.tell(0, 5);  // of its former port
  CHECK(!group.multicast.paths()[1].receiving.contains(Rank{0}));
  CHECK(group.multicast.beacon_due() <= group.now + 20ms);
  group.beacons(1);
  group.tell(0, 6);
  group.tell(3, 6);
  CHECK(group.multicast.paths()[1].receiving.size() == 2);
  group.multicast.left(Rank{1});
  CHECK(!group.receives_group(1));
  group.tell(1, 6);
  CHECK(!group.receives_group(1));
  CHECK(!group.misses_group(1));
}

TEST_CASE("a port without members takes up no memory: who is bound again and again adds none") {
  Group group;
  for (std::uint16_t port = 1; port < 1000; ++port) {
    Endpoint at = behind(3, 0);
    at.udp_port = port;
    group.multicast.rebound(Rank{0}, at);
  }
  CHECK(group.multicast.paths().size() == 3);
}

// ------------------------------------------------------------------------------------ the engine
TEST_CASE("the WELCOME names the job's group, and a BEACON goes there when a rank asks") {
  Bench bench(3);
  bench.off_machine = bench.one_port = true;
  bench.config.groups = {.first = 0xefff'4a00, .count = 256};
  bench.form();
  const auto again = of_kind<wire::Welcome>(bench.join(0, bench.seats[0].nonce));
  REQUIRE(again.size() == 1);
  CHECK(again[0].packet().as<wire::Welcome>().group == kGroup);
  CHECK(of_kind<wire::Beacon>(bench.keep_alive(0, 1)).empty());
  const auto beacons = of_kind<wire::Beacon>(bench.pass(0ms));
  REQUIRE(beacons.size() == 1);
  CHECK(beacons[0].to.ipv4 == kGroup);
  CHECK(beacons[0].packet().as<wire::Beacon>().number == 1);
  CHECK(beacons[0].packet().as<wire::Beacon>().epoch == bench.epoch);
  CHECK(bench.engine().next_deadline() <= bench.now + 100ms);
  CHECK(of_kind<wire::Beacon>(bench.pass(100ms)).size() == 1);
}

TEST_CASE("one RESULT to the group is for all members that receive it") {
  GroupBench bench;
  const auto results = of_kind<wire::Result>(bench.short_op_of_all());
  CHECK(addresses(results) == Addresses{kGroup});
  CHECK(sum_of(results.at(0)) == 3);
  CHECK(bench.engine().counters().group_packets == 1);
  CHECK(bench.engine().counters().results_by_group == 3);
  CHECK(bench.engine().counters().results_sent == 3);
}

TEST_CASE("who lost the RESULT of the group gets it by unicast, and nobody else does") {
  GroupBench bench;
  bench.short_op_of_all();
  const auto repaired = of_kind<wire::Result>(bench.probe(2, 0));
  CHECK(addresses(repaired) == Addresses{at_rank(2).ipv4});
}

TEST_CASE("a member that misses the group gets every RESULT by unicast") {
  GroupBench bench;
  for (int i = 0; i < 4; ++i) bench.pass(100ms);
  bench.keep_alive(0, 3, 5);
  bench.keep_alive(2, 3, 5);
  bench.keep_alive(1, 3, 1);
  REQUIRE(!bench.events.empty());
  CHECK(bench.events.back().kind == JobEvent::Kind::kMissesGroup);
  CHECK(bench.events.back().rank == Rank{1});
  CHECK(bench.engine().counters().group_unreachable == 1);
  CHECK(addresses(of_kind<wire::Result>(bench.short_op_of_all())) ==
        Addresses{kGroup, at_rank(1).ipv4});
  bench.keep_alive(1, 4, 5);
  CHECK(bench.events.back().kind == JobEvent::Kind::kReceivesGroup);
}

TEST_CASE("a KEEPALIVE that is late says nothing of the group") {
  GroupBench bench;
  for (int i = 0; i < 4; ++i) bench.pass(100ms);
  bench.keep_alive(0, 2, 0);
  CHECK(bench.engine().counters().group_unreachable == 0);
}

TEST_CASE("two ranks need no group: one of them at most lacks a sum that is moved") {
  Bench bench(2);
  bench.off_machine = bench.one_port = true;
  bench.config.groups = {.first = 0xefff'4a00, .count = 256};
  bench.form();
  const auto again = of_kind<wire::Welcome>(bench.join(0, bench.seats[0].nonce));
  REQUIRE(again.size() == 1);
  CHECK(again[0].packet().as<wire::Welcome>().group == 0);
}

TEST_CASE("one rank alone at its port needs no group, and neither does who has left") {
  GroupBench bench;
  bench.short_op_of_all();
  for (unsigned r = 0; r < 3; ++r) bench.ack(r, 1);
  bench.leave(0);
  bench.leave(1);
  CHECK(of_kind<wire::Beacon>(bench.pass(500ms)).empty());
}

TEST_CASE("sums that few ranks lack do not go to the group") {
  GroupBench bench;
  const auto reduce = [&](unsigned rank) {  // to rank 0
    auto bytes = bench.short_op(rank, 0, 1, 0);
    auto* const descriptor = reinterpret_cast<wire::Descriptor*>(bytes.data() + sizeof(wire::Data));
    descriptor->collective = static_cast<std::uint8_t>(wire::Collective::kReduce);
    if (rank != 0) descriptor->flags = wire::kWantsPart;  // no element
    return bytes;
  };
  std::vector<Sent> last;
  for (unsigned r = 0; r < 3; ++r) last = bench.give(r, reduce(r));
  const auto results = of_kind<wire::Result>(last);
  CHECK(addresses(results) == Addresses{at_rank(0).ipv4, at_rank(1).ipv4, at_rank(2).ipv4});
  CHECK(bench.engine().counters().results_withheld == 2);
  CHECK(bench.engine().counters().group_packets == 0);
}

}  // namespace multicast_tests
