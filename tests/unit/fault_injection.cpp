// Faults that are put in on purpose, for tests of programs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/packet_buffer.hpp"
#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/loopback.hpp"

namespace fault_injection_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

// Sends numbered datagrams through a port that has faults, and gives what came of them.
struct FaultyLoopback : Loopback {
  static constexpr std::uint32_t kSent = 1000;

  explicit FaultyLoopback(const char* faults) {
    io.remove_port(port.id());
    io.inject_faults(parse_faults(faults));
    PortView view = port.view(0);
    view.udp_checksum = UdpChecksum::kSoftware;
    io.add_port(view);
  }

  static Bytes datagram(std::uint32_t number) {
    Bytes all = pattern(sizeof number + number % 300, number);
    std::memcpy(all.data(), &number, sizeof number);
    return all;
  }

  void send(std::uint32_t number) {
    const Bytes bytes_to_send = datagram(number);
    Buffer payload = io.allocate(bytes_to_send.size());
    REQUIRE(payload);
    std::copy(bytes_to_send.begin(), bytes_to_send.end(), payload.writable().begin());
    io.send(self, std::move(payload));
    io.flush();
  }

  // Until nothing comes any more and nothing is held back.
  std::vector<Bytes> run() {
    std::vector<Bytes> all;
    const auto keep = [&](const Endpoint&, Buffer payload) {
      all.push_back(copy_of(payload.bytes()));
    };
    for (std::uint32_t i = 0; i < kSent; ++i) {
      send(i);
      io.receive(keep);
    }
    const auto all_are_back = [&] {
      io.flush();
      io.receive(keep);
      return pools_are_full();
    };
    for (const Time give_up = now() + 20s; !all_are_back() && now() < give_up;) {
    }
    CHECK(pools_are_full());
    CHECK(io.counters().rx_bad_udp_checksum == 0);
    return all;
  }
};

std::vector<std::uint32_t> numbers(const std::vector<Bytes>& datagrams) {
  std::vector<std::uint32_t> all;
  for (const Bytes& datagram : datagrams) std::memcpy(&all.emplace_back(), datagram.data(), 4);
  return all;
}

std::size_t differing_bits(const Bytes& a, const Bytes& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    count += static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(a[i] ^ b[i])));
  return count;
}

}  // namespace

TEST_CASE("A list of faults is read, and refused with what is expected") {
  CHECK_FALSE(parse_faults("").any());
  const FaultPlan plan =
      parse_faults("seed=7,loss=0.01,duplicate=0.5,reorder=1,flip=1e-3,overtaking=20,direction=tx");
  CHECK(plan == FaultPlan{7, 0.01, 0.5, 1, 1e-3, 20, false, true});
  CHECK(parse_faults("loss=1").any());
  CHECK(parse_faults("direction=rx") == FaultPlan{.sending = false});
  for (const char* wrong : {"loss", "loss=", "loss=2", "loss=-0.1", "loss=0.1x", "loss=nan", "=1",
                            "gain=1", "seed=-1", "direction=up", "overtaking=0", "loss=1,,flip=1"})
    CHECK_THROWS_WITH(parse_faults(wrong, "SLUICE_FAULTS"),
                      Catch::StartsWith("SLUICE_FAULTS must be a list of seed=N") &&
                          Contains("not '" + std::string(wrong) + "'"));
}

TEST_CASE("Frames are lost as the seed says, each counted") {
  const auto lost = [](const char* faults, std::uint64_t IoCounters::*counter) {
    FaultyLoopback loop(faults);
    const std::vector<std::uint32_t> came = numbers(loop.run());
    CHECK(std::is_sorted(came.begin(), came.end()));
    CHECK(came.size() == FaultyLoopback::kSent - loop.io.counters().*counter);
    return loop.io.counters().*counter;
  };
  CHECK(lost("seed=7,loss=0.1,direction=tx", &IoCounters::tx_fault_lost) == 107);
  CHECK(lost("seed=7,loss=0.1,direction=rx", &IoCounters::rx_fault_lost) == 103);
  CHECK(lost("seed=8,loss=0.1,direction=tx", &IoCounters::tx_fault_lost) == 115);
  CHECK(lost("loss=1,direction=tx", &IoCounters::tx_fault_lost) == FaultyLoopback::kSent);
  CHECK(lost("seed=7", &IoCounters::rx_fault_lost) == 0);
}

TEST_CASE("Frames come twice, whole both times") {
  for (const char* direction : {"rx", "tx", "both"}) {
    FaultyLoopback loop((std::string("seed=7,duplicate=0.1,direction=") + direction).c_str());
    const std::vector<Bytes> came = loop.run();
    const IoCounters& counters = loop.io.counters();
    CHECK(came.size() ==
          FaultyLoopback::kSent + counters.rx_fault_duplicated + counters.tx_fault_duplicated);
    CHECK((counters.rx_fault_duplicated > 0) == (direction != std::string("tx")));
    CHECK((counters.tx_fault_duplicated > 0) == (direction != std::string("rx")));
    const std::vector<std::uint32_t> order = numbers(came);
    for (std::size_t i = 0; i < came.size(); ++i)
      CHECK(came[i] == FaultyLoopback::datagram(order[i]));
  }
}

TEST_CASE("Frames are overtaken by a few, and none is missing") {
  for (const char* direction : {"rx", "tx"}) {
    FaultyLoopback loop(
        (std::string("seed=7,reorder=0.1,overtaking=5,direction=") + direction).c_str());
    std::vector<std::uint32_t> order = numbers(loop.run());
    const IoCounters& counters = loop.io.counters();
    CHECK(counters.rx_fault_reordered + counters.tx_fault_reordered > 50);
    std::uint32_t newest = 0;
    std::size_t overtaken = 0;
    for (const std::uint32_t number : order) {
      if (number < newest) ++overtaken;
      newest = std::max(newest, number);
    }
    CHECK(overtaken > 50);
    CHECK(overtaken <= counters.rx_fault_reordered + counters.tx_fault_reordered);
    std::sort(order.begin(), order.end());
    std::vector<std::uint32_t> expected(FaultyLoopback::kSent);
    std::iota(expected.begin(), expected.end(), 0u);
    CHECK(order == expected);
  }
}

TEST_CASE("A frame that nobody overtakes is held back for a moment only") {
  FaultyLoopback loop("reorder=1");
  loop.send(0);
  std::size_t came = 0;
  for (const Time give_up = now() + 20s; came == 0 && now() < give_up;) {
    loop.io.flush();
    loop.io.receive([&](const Endpoint&, Buffer) { ++came; });
  }
  CHECK(came == 1);
  CHECK(loop.io.counters().tx_fault_reordered == 1);
  CHECK(loop.io.counters().rx_fault_reordered == 1);
}

TEST_CASE("What is held back when a port goes comes back to its pool") {
  FaultyLoopback loop("reorder=1,direction=tx,overtaking=1000");
  for (std::uint32_t i = 0; i < 10; ++i) loop.io.send(loop.self, loop.io.allocate(8));
  loop.io.remove_port(loop.port.id());
  CHECK(loop.pools_are_full());
  loop.io.add_port(loop.port.view(0));
}

TEST_CASE("One bit of a payload is flipped, unseen by UDP's checksum and by the sender") {
  const auto vlan = GENERATE(kNoVlan, kVlan);
  for (const char* direction : {"rx", "tx"}) {
    FaultyLoopback loop((std::string("seed=7,flip=0.1,direction=") + direction).c_str());
    loop.move_to_vlan(vlan);
    const std::vector<Bytes> came = loop.run();
    REQUIRE(came.size() == FaultyLoopback::kSent);
    std::uint64_t flipped = 0;
    for (std::uint32_t i = 0; i < FaultyLoopback::kSent; ++i) {
      const std::size_t bits = differing_bits(came[i], FaultyLoopback::datagram(i));
      CHECK(bits <= 1);
      flipped += bits;
    }
    CHECK(flipped > 50);
    CHECK(flipped == loop.io.counters().rx_fault_flipped + loop.io.counters().tx_fault_flipped);
  }

  FaultyLoopback loop("flip=1,direction=tx");
  Buffer payload = loop.io.allocate(100);
  const Bytes before = pattern(100);
  std::copy(before.begin(), before.end(), payload.writable().begin());
  for (const bool chain : {false, true}) {
    PortView view = loop.port.view(0);
    view.vlan = vlan;
    view.chain = chain;
    view.udp_checksum = UdpChecksum::kSoftware;
    loop.io.remove_port(view.id);
    loop.io.add_port(view);
    loop.io.send(loop.self, payload.share());
    loop.io.flush();
    const std::vector<Bytes> came = loop.receive_all();
    REQUIRE(came.size() == 1);
    CHECK(differing_bits(came[0], before) == 1);
    CHECK(copy_of(payload.bytes()) == before);
    CHECK(payload.references() == 1);
  }
  CHECK(loop.io.counters().tx_fault_flipped == 2);
}

}  // namespace fault_injection_tests
