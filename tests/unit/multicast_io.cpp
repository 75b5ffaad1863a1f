// DatagramIo and Port with multicast groups, over rings that loop back: what a port sends comes
// back to it, so that its reports are heard as another host's would be.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/net/datagram_io.hpp"
#include "common/net/igmp.hpp"
#include "common/net/memory_link.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/multicast_parts.hpp"
#include "tests/unit/one_eal.hpp"

namespace multicast_io_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;

namespace {

PortOptions ring(const std::string& device) {
  PortOptions options;
  options.device = device;
  options.ipv4 = kHost.ipv4;
  return options;
}

struct Loop {
  BufferPool payloads;
  BufferPool headers;
  Port port;
  DatagramIo io;
  Time now{1h};
  std::size_t received = 0;

  explicit Loop(const std::string& device = "net_ring0")
      : payloads((start_eal_once(), device + "-payloads"), 511, 1472),
        headers(device + "-headers", 63, 0),
        port(ring(device), payloads),
        io(payloads, headers) {
    io.listen(kOurPort);
    io.add_port(port.view(0));
  }
  ~Loop() {
    turn();
    while (io.receive([](const Endpoint&, const Buffer&) {}) > 0) {
    }
  }

  void join(std::span<const std::uint32_t> groups) { io.set_groups(groups, now); }

  void turn(Duration passed = {}) {
    now += passed;
    io.on_time(now);
    io.receive([&](const Endpoint&, const Buffer&) { ++received; });
    io.flush();
  }
  void run(Duration longest) {
    for (const Time end = now + longest; now < end;) turn(10ms);
  }

  /// As if it had come.
  void inject(const Bytes& frame) {
    Buffer buffer = io.allocate(frame.size());
    REQUIRE(buffer);
    std::ranges::copy(frame, buffer.writable().begin());
    io.send_frame(port.id(), std::move(buffer));
    io.flush();
    turn();
  }

  std::uint64_t reports() const { return io.counters().igmp_reports_sent; }
};

constexpr std::span<const std::uint32_t> kBoth = kGroups;
constexpr std::span<const std::uint32_t> kFirst = kBoth.first(1);

/// A general query of version 2, which reports are sent to the group itself for.
Bytes old_query() {
  Bytes message = bytes({0x11, 10, 0, 0, 0, 0, 0, 0});
  set16(message, 2, checksum(message));
  return igmp_frame(kAllHosts, message, 0);
}

}  // namespace

TEST_CASE("Datagrams to a group arrive from when it is joined until it is left") {
  Loop loop;
  const Bytes frame = group_datagram(kGroups[0], 100);
  loop.inject(frame);
  CHECK(loop.received == 0);
  CHECK(loop.io.counters().rx_other_mac == 1);

  loop.join(kFirst);
  loop.inject(frame);
  loop.inject(group_datagram(kGroups[1], 100));
  CHECK(loop.received == 1);
  CHECK(loop.io.counters().rx_datagrams == 1);
  CHECK(loop.io.counters().rx_group_datagrams == 1);

  loop.join({});
  loop.inject(frame);
  CHECK(loop.received == 1);
}

TEST_CASE("A group's datagram tells its sender as any other") {
  Loop loop;
  loop.join(kFirst);
  Buffer buffer = loop.io.allocate(142);
  std::ranges::copy(group_datagram(kGroups[0], 100), buffer.writable().begin());
  loop.io.send_frame(loop.port.id(), std::move(buffer));
  loop.io.flush();
  Endpoint sender;
  std::size_t size = 0;
  while (loop.io.receive([&](const Endpoint& from, const Buffer& payload) {
    sender = from;
    size = payload.bytes().size();
  }) > 0) {
  }
  CHECK(size == 100);
  CHECK(sender.port_id == loop.port.id());
  CHECK(sender.mac == kSender.mac);
  CHECK(sender.ipv4 == kSender.ipv4);
  CHECK(sender.udp_port == kTheirPort);
  CHECK(sender.local_udp_port == kOurPort);
  CHECK(sender.off_machine);
}

TEST_CASE("What is joined or left is reported twice, and the same again not at all") {
  Loop loop;
  loop.run(5s);
  CHECK(loop.reports() == 0);
  loop.join(kBoth);
  CHECK(loop.reports() == 1);
  loop.run(1s);
  CHECK(loop.reports() == 2);
  loop.join(kBoth);
  loop.run(1s);
  CHECK(loop.reports() == 2);
  loop.join({});
  CHECK(loop.reports() == 3);
  loop.run(5s);
  CHECK(loop.reports() == 4);
  CHECK(loop.io.counters().rx_other_mac == 4);  // they came back, and are for routers
}

TEST_CASE("A port that comes later reports what is joined already, and one that comes again") {
  Loop loop;
  const PortView port = loop.port.view(0);
  loop.io.remove_port(port.id);
  loop.join(kFirst);
  loop.run(1s);
  CHECK(loop.reports() == 0);
  for (std::uint64_t lives = 1; lives <= 3; ++lives) {
    loop.io.add_port(port);
    loop.turn();
    CHECK(loop.reports() == 2 * lives - 1);
    loop.run(2s);
    CHECK(loop.reports() == 2 * lives);
    loop.inject(group_datagram(kGroups[0], 100));
    CHECK(loop.received == lives);
    loop.io.remove_port(port.id);
  }
  loop.io.add_port(port);
}

TEST_CASE("Each port reports") {
  Loop loop;
  Port other(ring("net_ring1"), loop.payloads);
  loop.io.add_port(other.view(0));
  loop.join(kFirst);
  CHECK(loop.reports() == 2);
  loop.run(2s);
  CHECK(loop.reports() == 4);
  loop.io.remove_port(other.id());
}

TEST_CASE("When a link comes up again, what is joined is reported anew") {
  Loop loop;
  const std::uint16_t port = loop.port.id();
  loop.io.set_link(port, false);
  loop.io.set_link(port, true);
  loop.run(2s);
  CHECK(loop.reports() == 0);
  loop.join(kBoth);
  loop.run(2s);
  loop.io.set_link(port, false);
  loop.run(2s);
  CHECK(loop.reports() == 2);
  loop.io.set_link(port, true);
  loop.turn();
  CHECK(loop.reports() == 3);
  loop.run(2s);
  CHECK(loop.reports() == 4);
}

TEST_CASE("Queries are answered in time, and only while something is joined") {
  Loop loop;
  loop.inject(query_frame(kAllHosts));
  CHECK(loop.io.counters().rx_other_mac == 1);
  CHECK(loop.io.counters().igmp_queries == 0);
  loop.join(kFirst);
  loop.run(2s);
  for (std::uint64_t asked = 1; asked <= 3; ++asked) {
    loop.inject(query_frame(kAllHosts));
    CHECK(loop.io.counters().igmp_queries == asked);
    loop.run(1s);
    CHECK(loop.reports() == 2 + asked);
  }
}

TEST_CASE("Messages of version 2 leave the port, and are heard as another host's") {
  Loop loop;
  loop.join(kBoth);
  loop.run(2s);
  loop.inject(old_query());
  loop.run(1s);
  CHECK(loop.reports() == 4);  // one for each group; back here, where nothing waits any more
  CHECK(loop.io.counters().igmp_ignored == 2);

  loop.inject(old_query());
  Bytes report = bytes({0x16, 0, 0, 0, 239, 192, 0, 1});
  set16(report, 2, checksum(report));
  loop.inject(igmp_frame(kGroups[0], report));
  CHECK(loop.io.counters().igmp_reports_heard == 1);
  loop.run(1s);
  CHECK(loop.reports() == 5);
}

TEST_CASE("IGMP that is malformed or about others is counted") {
  Loop loop;
  loop.join(kFirst);
  loop.run(2s);
  Bytes damaged = query_frame(kAllHosts);
  damaged.back() ^= std::byte{1};
  loop.inject(damaged);
  CHECK(loop.io.counters().igmp_ignored == 1);
  Bytes other = bytes({0x11, 10, 0, 0, 239, 192, 9, 9, 2, 125, 0, 0});
  set16(other, 2, checksum(other));
  loop.inject(igmp_frame(kAllHosts, other));
  CHECK(loop.io.counters().igmp_ignored == 2);
  loop.run(2s);
  CHECK(loop.reports() == 2);
}

TEST_CASE("Groups are the network's: a local peer's port neither reports nor receives them") {
  Loop loop;
  MemoryLink local({.name = "groups", .frames = 64, .mtu = 1500}, loop.payloads);
  loop.io.add_port(local.port());
  loop.join(kFirst);
  loop.run(2s);
  CHECK(loop.reports() == 2);  // of the other port
  CHECK(local.receive([](const Endpoint&, const Buffer&) {}) == 0);
  Endpoint group = local.far_end(kOurPort, kTheirPort);
  group.mac = multicast_mac(kGroups[0]);
  group.ipv4 = kGroups[0];
  const std::uint64_t before = loop.io.counters().rx_other_mac;
  local.send(group, local.allocate(10));
  local.flush();
  loop.turn();
  CHECK(loop.received == 0);
  CHECK(loop.io.counters().rx_other_mac == before + 1);
  loop.io.remove_port(local.port().id);
}

TEST_CASE("A report of many groups needs a payload's buffer, and is lost without") {
  Loop loop;
  std::vector<std::uint32_t> groups;
  for (std::uint32_t i = 0; i < kMaxGroups; ++i) groups.push_back(kGroups[0] + i);
  std::vector<Buffer> all;
  while (Buffer buffer = loop.payloads.allocate(100)) all.push_back(std::move(buffer));
  loop.join(groups);
  CHECK(loop.reports() == 0);
  CHECK(loop.io.counters().pool_empty == 1);
  all.clear();
  loop.run(2s);
  CHECK(loop.reports() == 1);  // the second time
}

TEST_CASE("A device is told of groups by some means, which is undone") {
  Loop loop;
  using Means = GroupFilter::Means;
  const Means means = loop.port.receive_groups(kBoth);
  CHECK(means == Means::kAllMulticast);  // all that rings can
  CHECK(loop.port.receive_groups(kFirst) == means);
  CHECK(loop.port.receive_groups({}) == Means::kNone);
  for (const Means each :
       {Means::kNone, Means::kDevice, Means::kKernel, Means::kAllMulticast, Means::kPromiscuous})
    CHECK(std::string(name(each)).size() > 5);
}

}  // namespace multicast_io_tests
