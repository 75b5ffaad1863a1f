// What comes to another lane than its own is handed over.
#include "common/net/hand_over.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <utility>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/memory_link.hpp"
#include "common/net/vhost.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/frame_parts.hpp"
#include "tests/unit/one_eal.hpp"
#include "tests/unit/temporary_directory.hpp"

namespace hand_over_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

/// Two lanes of which the first gets all that comes, and the second is to have it.
struct Lanes {
  static constexpr std::uint16_t kSecond = kListening + 1;  // UDP port
  BufferPool payloads;
  BufferPool headers;
  MemoryLink link;
  HandOver others;
  DatagramIo first, second;

  explicit Lanes(std::size_t fan_out = 0, bool off_machine = true)
      : payloads((start_eal_once(), "lanes"), 8191, 1472),
        headers("lanes-headers", 63, 0),
        link({.name = "lanes", .frames = 2048, .mtu = 1500}, payloads),
        others(2),
        first(payloads, headers),
        second(payloads, headers, 64, fan_out) {
    first.listen(kListening);
    second.listen(kSecond);
    others.listens(0, kListening);
    others.listens(1, kSecond);
    first.join(others, 0);
    second.join(others, 1);
    PortView port = link.port();
    port.off_machine = off_machine;
    first.add_port(port);
    second.add_port(port);
  }

  void send(std::size_t datagrams, std::uint16_t to) {
    for (std::size_t i = 0; i < datagrams; ++i)
      link.send(link.far_end(to, kListening), link.allocate(i % 1000 + 1));
    link.flush();
  }
  void first_receives() {
    while (first.receive([](const Endpoint&, const Buffer&) { FAIL("not its own"); }) > 0) {
    }
  }
};

}  // namespace

TEST_CASE("What comes to another lane is handed over, in order") {
  Lanes lanes;
  constexpr std::size_t kSent = 100;
  lanes.send(kSent, Lanes::kSecond);
  lanes.first_receives();
  CHECK(lanes.first.counters().rx_handed_over == kSent);
  std::size_t taken = 0;
  const auto answer = [&](const Endpoint& from, Buffer payload) {
    CHECK(payload.bytes().size() == ++taken);
    CHECK(from.local_udp_port == Lanes::kSecond);
    lanes.second.send(from, std::move(payload));
  };
  while (lanes.second.receive(answer) > 0) lanes.second.flush();
  CHECK(taken == kSent);
  CHECK(lanes.second.counters().rx_datagrams == kSent);
  std::size_t answers = 0;
  while (lanes.link.receive([&](const Endpoint&, Buffer) { ++answers; }) > 0) {
  }
  CHECK(answers == kSent);
  CHECK(lanes.payloads.available() == lanes.payloads.size());
}

TEST_CASE("A lane that takes nothing is handed no more than its ring holds") {
  Lanes lanes;
  constexpr std::size_t kSent = 1500;
  lanes.send(kSent, Lanes::kSecond);
  lanes.first_receives();
  const auto& counters = lanes.first.counters();
  CHECK(counters.rx_handed_over == limits::kHandOverFrames - 1);
  CHECK(counters.rx_hand_over_full == kSent - counters.rx_handed_over);
  lanes.second.remove_port(lanes.link.port().id);
  for (unsigned i = 0; i < limits::kHandOverFrames / limits::kBurst; ++i)
    lanes.second.receive([](const Endpoint&, const Buffer&) { FAIL("its port is gone"); });
  CHECK(lanes.payloads.available() == lanes.payloads.size());
}

TEST_CASE("A lane takes what it is handed when there is room for the answers") {
  constexpr std::size_t kSent = 200;
  constexpr std::size_t kAnswers = 32;
  Lanes lanes(kAnswers);
  lanes.send(kSent, Lanes::kSecond);
  lanes.first_receives();
  std::size_t taken = 0, answers = 0;
  const auto answer = [&](const Endpoint& from, const Buffer& payload) {
    CHECK(payload.bytes().size() == ++taken);
    for (std::size_t i = 0; i < kAnswers; ++i) lanes.second.send(from, lanes.second.allocate(1));
  };
  while (lanes.second.receive(answer) > 0 && taken < kSent / 2) {
  }
  CHECK(taken < kSent / 2);  // nothing has left
  for (const Time give_up = now() + 20s; answers < kSent * kAnswers && now() < give_up;) {
    lanes.second.flush();
    lanes.link.receive([&](const Endpoint&, Buffer) { ++answers; });
    lanes.second.receive(answer);
  }
  CHECK(answers == kSent * kAnswers);
  CHECK(lanes.second.counters().tx_backlog_full == 0);
}

TEST_CASE("A port that takes nothing holds up no other's datagrams that were handed over") {
  constexpr std::size_t kAnswers = 32;
  Lanes lanes(kAnswers);
  MemoryLink stuck({.name = "stuck", .frames = 64, .mtu = 1500}, lanes.payloads);
  PortView port = stuck.port();
  port.off_machine = true;
  lanes.first.add_port(port);
  lanes.second.add_port(port);
  std::size_t taken = 0;
  const auto answer = [&](const Endpoint& from, const Buffer&) {
    taken += from.port_id == lanes.link.port().id;
    for (std::size_t i = 0; i < kAnswers; ++i) lanes.second.send(from, lanes.second.allocate(1));
  };
  // Nobody reads what goes back there.
  for (const Time give_up = now() + 20s;
       lanes.second.counters().rx_hand_over_full == 0 && now() < give_up;) {
    stuck.send(stuck.far_end(Lanes::kSecond, kListening), stuck.allocate(1));
    stuck.flush();
    lanes.first.receive([](const Endpoint&, const Buffer&) {});
    lanes.second.receive(answer);
    lanes.second.flush();
  }
  CHECK(lanes.second.counters().rx_hand_over_full > 0);
  constexpr std::size_t kSent = 10;
  lanes.send(kSent, Lanes::kSecond);
  for (const Time give_up = now() + 20s; taken < kSent && now() < give_up;) {
    lanes.first.receive([](const Endpoint&, const Buffer&) {});
    lanes.second.receive(answer);
    lanes.second.flush();
    lanes.link.receive([](const Endpoint&, Buffer) {});
  }
  CHECK(taken == kSent);
}

TEST_CASE("What is handed over keeps no lane from what comes to itself") {
  Lanes lanes;
  lanes.send(limits::kBurst * 4, Lanes::kSecond);
  lanes.first_receives();
  lanes.send(1, kListening + 2);  // closed, so it is counted when it is fetched
  lanes.second.receive([&](const Endpoint&, const Buffer&) {});
  CHECK(lanes.second.counters().rx_port_closed == 1);
  CHECK(lanes.second.counters().rx_datagrams == limits::kBurst);
}

TEST_CASE("Local peers' frames are handed to nobody: they have a queue for each lane") {
  Lanes lanes(0, false);
  lanes.send(3, Lanes::kSecond);
  lanes.first_receives();
  CHECK(lanes.first.counters().rx_port_closed == 3);
  CHECK(lanes.first.counters().rx_handed_over == 0);
}

TEST_CASE("A UDP port of no lane is closed") {
  Lanes lanes;
  lanes.send(3, kListening + 2);
  lanes.first_receives();
  CHECK(lanes.first.counters().rx_port_closed == 3);
  CHECK(lanes.first.counters().rx_handed_over == 0);
}

TEST_CASE("A daemon's lanes are told to its workers") {
  const TemporaryDirectory directory;
  CHECK(lanes_at(directory.path) == 1);
  CHECK(lanes_at(directory.path + "/none") == 1);
  tell_lanes(directory.path, 8);
  CHECK(lanes_at(directory.path) == 8);
  tell_lanes(directory.path, 2);
  CHECK(lanes_at(directory.path) == 2);
  for (const char* const garbage : {"", "x", "-3", "99999999999999999999"}) {
    std::ofstream(directory.path + "/lanes") << garbage;
    CHECK(lanes_at(directory.path) >= 1);
    CHECK(lanes_at(directory.path) <= limits::kMaxLanes);
  }
  CHECK_THROWS_WITH(tell_lanes(directory.path + "/none", 2),
                    Contains("/none/lanes' cannot be written"));
}

}  // namespace hand_over_tests
