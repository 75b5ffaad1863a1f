// DatagramIo over a ring that loops back, and over links in memory.
#include "common/net/datagram_io.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/packet_buffer.hpp"
#include "common/net/clock.hpp"
#include "common/net/memory_link.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/loopback.hpp"

namespace datagram_io_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;

TEST_CASE("A datagram arrives with its bytes and its sender") {
  Loopback loop;
  for (std::size_t size : {0, 1, 18, 1472}) {
    Buffer payload = loop.io.allocate(size);
    const Bytes sent = pattern(size);
    std::copy(sent.begin(), sent.end(), payload.writable().begin());
    loop.io.send(loop.self, std::move(payload));
    loop.io.flush();
    std::size_t received = 0;
    CHECK(loop.io.receive([&](const Endpoint& from, Buffer arrived) {
      ++received;
      CHECK(from == loop.self);
      CHECK(copy_of(arrived.bytes()) == sent);
    }) == 1);
    CHECK(received == 1);
  }
  CHECK(loop.io.counters().rx_datagrams == 4);
  CHECK(loop.io.counters().rx_bytes == 1491);
  CHECK(loop.io.counters().tx_bytes == 1491);
  CHECK(loop.pools_are_full());
}

TEST_CASE("Every malformed frame moves its counter and goes back to its pool") {
  Loopback loop;
  const LocalAddress us{loop.port.mac(), kUs.ipv4};
  for (const FrameFault& fault : kFrameFaults) {
    INFO(fault.name);
    Bytes frame = frame_with(kThem, endpoint(us, kListening, 7), pattern(64));
    fault.spoil(frame);
    const std::uint64_t before = loop.io.counters().*fault.counter;
    loop.inject(frame);
    CHECK(loop.receive_all().empty());
    CHECK(loop.io.counters().*fault.counter == before + 1);
  }
  CHECK(loop.io.counters().rx_frames == std::size(kFrameFaults));
  CHECK(loop.pools_are_full());
}

TEST_CASE("A shared payload is copied for a port that takes no chains") {
  Loopback loop(false);
  Buffer payload = loop.io.allocate(1472);
  const Bytes sent = pattern(1472, 3);
  std::copy(sent.begin(), sent.end(), payload.writable().begin());
  for (int peer = 0; peer < 5; ++peer) loop.io.send(loop.self, payload.share());
  loop.io.flush();
  CHECK(payload.references() == 1);
  CHECK(loop.receive_all() == std::vector<Bytes>(5, sent));
  CHECK(loop.io.counters().tx_linearised == 5);
  CHECK(loop.io.counters().tx_chained == 0);
  payload = {};
  CHECK(loop.pools_are_full());
}

TEST_CASE("A chained frame that comes in is refused whole, and every reference comes back") {
  Loopback loop(true);
  Buffer payload = loop.io.allocate(100);
  for (int peer = 0; peer < 5; ++peer) loop.io.send(loop.self, payload.share());
  loop.io.flush();
  CHECK(payload.references() == 6);
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().tx_chained == 5);
  CHECK(loop.io.counters().rx_multi_segment == 5);
  CHECK(payload.references() == 1);
  payload = {};
  CHECK(loop.pools_are_full());
}

TEST_CASE("A frame that a device spread over buffers is put together where the first has room") {
  Loopback loop(true, 2500, 64, 1472);
  Buffer payload = loop.io.allocate(100);
  const Bytes sent = pattern(100, 3);
  std::copy(sent.begin(), sent.end(), payload.writable().begin());
  for (int peer = 0; peer < 5; ++peer) loop.io.send(loop.self, payload.share());
  loop.io.flush();
  CHECK(loop.io.counters().tx_chained == 5);
  CHECK(loop.receive_all() == std::vector<Bytes>(5, sent));
  CHECK(loop.io.counters().rx_multi_segment == 0);
  CHECK(payload.references() == 1);
  payload = {};
  CHECK(loop.pools_are_full());
}

TEST_CASE("A full ring keeps order, sends nothing twice and drops what exceeds the backlog") {
  Loopback loop;
  constexpr std::uint32_t kOffered = 2000;
  for (std::uint32_t i = 0; i < kOffered; ++i) {
    Buffer payload = loop.io.allocate(sizeof(i));
    REQUIRE(payload);
    std::memcpy(payload.writable().data(), &i, sizeof(i));
    loop.io.send(loop.self, std::move(payload));
  }
  loop.io.flush();
  const IoCounters& counters = loop.io.counters();
  const std::uint64_t in_ring = counters.tx_frames;
  CHECK(in_ring < kOffered);
  CHECK(counters.tx_partial_bursts > 0);
  CHECK(loop.io.backlog(loop.port.id()) == 64);
  CHECK(loop.io.left_backlog());
  CHECK(counters.tx_backlog_full == kOffered - in_ring - 64);

  // The ring drains a little at a time while the backlog moves up.
  std::vector<std::uint32_t> order;
  const auto keep = [&](const Endpoint&, Buffer payload) {
    std::memcpy(&order.emplace_back(), payload.bytes().data(), sizeof(std::uint32_t));
  };
  while (loop.io.receive(keep) > 0) loop.io.flush();
  std::vector<std::uint32_t> expected(in_ring + 64);
  std::iota(expected.begin(), expected.end(), 0u);
  CHECK(order == expected);
  CHECK(loop.io.backlog(loop.port.id()) == 0);
  CHECK_FALSE(loop.io.left_backlog());
  CHECK(loop.pools_are_full());
}

TEST_CASE("Nobody is answered before there is room for all the answers") {
  start_eal_once();
  constexpr std::size_t kAsked = 200;
  constexpr std::size_t kAnswers = 16;  // to each
  BufferPool payloads("asked", 2047, 1472);
  BufferPool headers("asked-headers", 63, 0);
  MemoryLink link({.name = "asked", .frames = 256, .mtu = 1500}, payloads);
  DatagramIo io(payloads, headers, 64, kAnswers);
  io.listen(kListening);
  io.add_port(link.port());
  for (std::size_t i = 0; i < kAsked; ++i)
    link.send(link.far_end(kListening, kListening), link.allocate(i + 1));
  link.flush();
  std::size_t next = 0;
  const auto answer = [&](const Endpoint& from, Buffer question) {
    CHECK(question.bytes().size() == ++next);
    for (std::size_t i = 0; i < kAnswers; ++i) io.send(from, io.allocate(next));
  };
  // The port takes as many as its ring holds, then nothing.
  while (io.receive(answer) > 0) io.flush();
  CHECK(next < kAsked);
  CHECK(io.held_back());
  CHECK(io.counters().tx_backlog_full == 0);

  std::size_t answers = 0;
  const auto count = [&](const Endpoint&, Buffer payload) {
    CHECK(payload.bytes().size() == answers++ / kAnswers + 1);
  };
  for (const Time give_up = now() + 20s; answers < kAsked * kAnswers && now() < give_up;) {
    link.receive(count);
    io.receive(answer);
    io.flush();
  }
  CHECK(answers == kAsked * kAnswers);
  io.receive(answer);
  CHECK_FALSE(io.held_back());
  CHECK(io.counters().tx_backlog_full == 0);
  CHECK(payloads.available() == payloads.size());
}

TEST_CASE("A local peer is not answered to the network before there is room") {
  start_eal_once();
  constexpr std::size_t kAsked = 200;
  constexpr std::size_t kAnswers = 16;  // to each
  BufferPool payloads("routed", 2047, 1472);
  BufferPool headers("routed-headers", 63, 0);
  MemoryLink local({.name = "local", .frames = 256, .mtu = 1500}, payloads);
  MemoryLink network({.name = "network", .frames = 64, .mtu = 1500}, payloads);
  DatagramIo io(payloads, headers, 64, kAnswers);
  io.listen(kListening);
  io.add_port(local.port());
  PortView away = network.port();
  away.off_machine = true;
  io.add_port(away);
  for (std::size_t i = 0; i < kAsked; ++i)
    local.send(local.far_end(kListening, kListening), local.allocate(1));
  local.flush();
  const Endpoint peer = network.far_end(kListening, kListening);
  std::size_t taken = 0;
  const auto answer = [&](const Endpoint&, const Buffer&) {
    ++taken;
    for (std::size_t i = 0; i < kAnswers; ++i) io.send(peer, io.allocate(1));
  };
  std::size_t answers = 0;
  const auto count = [&](const Endpoint&, const Buffer&) { ++answers; };
  for (const Time give_up = now() + 20s; answers < kAsked * kAnswers && now() < give_up;) {
    io.receive(answer);
    io.flush();
    network.receive(count);
  }
  CHECK(answers == kAsked * kAnswers);
  CHECK(io.counters().tx_backlog_full == 0);

  // Where the network takes nothing at all, local peers are served, and what is for it is dropped.
  for (std::size_t i = 0; i < kAsked; ++i)
    local.send(local.far_end(kListening, kListening), local.allocate(1));
  local.flush();
  for (const Time give_up = now() + 20s; taken < 2 * kAsked && now() < give_up;) {
    io.receive(answer);
    io.flush();
  }
  CHECK(taken == 2 * kAsked);
  CHECK(io.counters().tx_backlog_full > 0);
  while (io.has_backlog()) {
    io.flush();
    network.receive(count);
  }
  while (network.receive(count) > 0) {
  }
}

TEST_CASE("What is queued at the end still leaves, within a bound") {
  start_eal_once();
  constexpr std::size_t kQueued = 300;  // many more than the ring holds
  BufferPool payloads("last", 511, 1472);
  BufferPool headers("last-headers", 63, 0);
  MemoryLink link({.name = "last", .frames = 64, .mtu = 1500}, payloads);
  DatagramIo io(payloads, headers);
  io.add_port(link.port());
  Endpoint peer = link.far_end(kListening, kListening);
  for (std::size_t i = 0; i < kQueued; ++i) io.send(peer, io.allocate(1));
  CHECK_FALSE(io.drain(1ms));  // nobody takes them
  CHECK(io.has_backlog());
  auto drained = std::async(std::launch::async, [&] { return io.drain(20s); });
  std::size_t came = 0;
  for (const Time give_up = now() + 20s; came < kQueued && now() < give_up;)
    link.receive([&](const Endpoint&, const Buffer&) { ++came; });
  CHECK(drained.get());
  CHECK(came == kQueued);
}

TEST_CASE("What cannot be sent is dropped by reason") {
  Loopback loop(true, 4);
  const IoCounters& counters = loop.io.counters();
  SECTION("no such port") {
    Endpoint nowhere = loop.self;
    nowhere.port_id = 31;
    loop.io.send(nowhere, loop.io.allocate(1));
    loop.io.send_frame(31, loop.io.allocate(1));
    CHECK(counters.tx_unknown_port == 2);
  }
  SECTION("beyond the MTU") {
    PortView narrow = loop.port.view(0);
    narrow.mtu = 576;
    loop.io.remove_port(loop.port.id());
    loop.io.add_port(narrow);
    loop.io.send(loop.self, loop.io.allocate(549));
    CHECK(counters.tx_too_long == 1);
    loop.io.send(loop.self, loop.io.allocate(548));
    CHECK(counters.tx_datagrams == 1);
  }
  SECTION("no buffers") {
    std::vector<Buffer> all;
    for (int i = 0; i < 4; ++i) all.push_back(loop.io.allocate(10));
    CHECK_FALSE(loop.io.allocate(10));
    CHECK(counters.pool_empty == 1);
    std::vector<Buffer> headers;
    while (Buffer header = loop.headers.allocate(0)) headers.push_back(std::move(header));
    loop.io.send(loop.self, all[0].share());
    CHECK(counters.pool_empty == 2);
    CHECK(all[0].references() == 1);
    CHECK_FALSE(loop.io.resolve(loop.port.id(), kThem.ipv4, now()));
    CHECK(counters.pool_empty == 3);
  }
  SECTION("the port goes") {
    loop.io.send(loop.self, loop.io.allocate(10));
    loop.io.remove_port(loop.port.id());
    CHECK(counters.tx_port_removed == 1);
    loop.io.send(loop.self, loop.io.allocate(10));
    CHECK(counters.tx_unknown_port == 1);
    CHECK(loop.io.receive([](const Endpoint&, Buffer) {}) == 0);
    loop.io.add_port(loop.port.view(0));
  }
  loop.io.flush();
  loop.receive_all();
  CHECK(loop.pools_are_full());
}

TEST_CASE("While a link is down, what was queued and what is sent is dropped") {
  Loopback loop;
  const IoCounters& counters = loop.io.counters();
  const std::uint16_t port = loop.port.id();
  const auto send = [&] { loop.io.send(loop.self, loop.io.allocate(10)); };
  for (int i = 0; i < 3; ++i) send();
  loop.io.set_link(port, false);
  CHECK(counters.tx_link_down == 3);
  CHECK(loop.io.backlog(port) == 0);
  send();
  loop.io.flush();
  CHECK(counters.tx_link_down == 4);
  CHECK(counters.tx_frames == 0);
  CHECK(loop.pools_are_full());
  loop.io.set_link(port, true);
  send();
  loop.io.flush();
  CHECK(loop.receive_all().size() == 1);
  CHECK(counters.tx_link_down == 4);
  loop.io.set_link(31, false);  // no such port
}

TEST_CASE("A copy needs a buffer too") {
  Loopback loop(false, 1);
  Buffer only = loop.io.allocate(10);
  loop.io.send(loop.self, only.share());
  CHECK(loop.io.counters().pool_empty == 1);
  CHECK(only.references() == 1);
}

}  // namespace datagram_io_tests
