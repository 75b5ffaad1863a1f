// What ports answer by themselves, their VLANs, and the table of neighbours.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/net/clock.hpp"
#include "common/net/datagram_io.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/loopback.hpp"

namespace arp_and_vlan_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;
using namespace std::chrono_literals;

TEST_CASE("ARP requests for our address are answered, others are not") {
  Loopback loop;
  const Arp request{ArpOperation::kRequest, kThem.mac, kThem.ipv4, {}, kUs.ipv4};
  loop.inject(copy_of(make_arp(request, kBroadcastMac)));
  loop.receive_all();
  CHECK(loop.io.counters().arp_replies_sent == 1);
  loop.io.flush();
  loop.receive_all();  // the reply comes back to its sender, who is not its addressee
  CHECK(loop.io.counters().rx_other_mac == 1);

  Arp other = request;
  other.target_ipv4 = 0x0101'0101;
  loop.inject(copy_of(make_arp(other, kBroadcastMac)));
  Bytes garbage = copy_of(make_arp(request, kBroadcastMac));
  garbage[15] = std::byte{9};
  loop.inject(garbage);
  loop.receive_all();
  CHECK(loop.io.counters().arp_replies_sent == 1);
  CHECK(loop.io.counters().arp_ignored == 2);
  CHECK(loop.pools_are_full());
}

TEST_CASE("Pings of our address are answered in their own buffers") {
  Loopback loop;
  const LocalAddress us{loop.port.mac(), kUs.ipv4};
  loop.inject(echo_request(us, 56));
  CHECK(loop.receive_all().empty());  // the answer is for them
  CHECK(loop.io.counters().echoes_answered == 1);
  CHECK(loop.io.counters().rx_other_mac == 0);
  loop.io.flush();
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_other_mac == 1);
  Bytes damaged = echo_request(us, 56);
  damaged.back() ^= std::byte{1};
  loop.inject(damaged);
  loop.receive_all();
  CHECK(loop.io.counters().rx_bad_icmp == 1);
  CHECK(loop.io.counters().echoes_answered == 1);
  CHECK(loop.pools_are_full());
}

namespace {

Bytes frame_for(const Loopback& loop) {
  return frame_with(kThem, endpoint({loop.port.mac(), kUs.ipv4}, kListening, 7), pattern(64));
}

Bytes first(std::size_t count, const Bytes& of) {
  return copy_of(std::span(of).first(count));
}

}  // namespace

TEST_CASE("A port of a VLAN tags what it sends, and takes what has its tag") {
  Loopback loop;
  loop.move_to_vlan(kVlan);
  const auto send = [&](Buffer payload) {
    loop.io.send(loop.self, std::move(payload));
    loop.io.flush();
  };
  for (const std::size_t size : {0u, 1u, 18u, 1472u}) {
    Buffer payload = loop.io.allocate(size);
    std::ranges::copy(pattern(size), payload.writable().begin());
    send(payload.share());  // copied behind a header
    send(std::move(payload));
    CHECK(loop.receive_all() == std::vector<Bytes>(2, pattern(size)));
  }
  for (const std::uint16_t other : {std::uint16_t{8}, kNoVlan}) {
    const std::uint64_t before = loop.io.counters().rx_other_vlan;
    loop.move_to_vlan(kVlan);
    send(loop.io.allocate(10));
    loop.move_to_vlan(other);
    CHECK(loop.receive_all().empty());
    CHECK(loop.io.counters().rx_other_vlan == before + 1);
  }
  CHECK(loop.pools_are_full());
}

TEST_CASE("A port of a VLAN drops what has no tag, another one, or two, and counts it") {
  Loopback loop;
  loop.move_to_vlan(kVlan);
  const Bytes frame = frame_for(loop);
  loop.inject(tagged(frame, 0xb000 | kVlan));
  CHECK(loop.receive_all() == std::vector<Bytes>{pattern(64)});
  const std::vector<Bytes> others{frame, tagged(frame, 8), tagged(frame, 0), tagged(tagged(frame)),
                                  first(17, tagged(frame))};
  for (const Bytes& other : others) loop.inject(other);
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_other_vlan == others.size());
  loop.inject(first(18, tagged(frame)));
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_too_short == 1);
  CHECK(loop.pools_are_full());
}

TEST_CASE("A port without a VLAN drops what has a tag, and counts it") {
  Loopback loop;
  for (const std::uint16_t control : std::array<std::uint16_t, 3>{0, kVlan, 0xe000})
    loop.inject(tagged(frame_for(loop), control));
  CHECK(loop.receive_all().empty());
  CHECK(loop.io.counters().rx_other_vlan == 3);
}

TEST_CASE("In a VLAN, ARP, pings and IGMP have its tag, too") {
  Loopback loop;
  loop.move_to_vlan(kVlan);
  const IoCounters& counters = loop.io.counters();
  const Arp request{ArpOperation::kRequest, kThem.mac, kThem.ipv4, {}, kUs.ipv4};
  loop.inject(tagged(copy_of(make_arp(request, kBroadcastMac))));
  loop.inject(tagged(echo_request({loop.port.mac(), kUs.ipv4}, 56)));
  loop.receive_all();
  CHECK(counters.arp_replies_sent == 1);
  CHECK(counters.echoes_answered == 1);
  loop.io.flush();
  loop.receive_all();
  CHECK(counters.rx_other_mac == 2);  // both answers, which are for them
  constexpr std::array<std::uint32_t, 1> kGroup{0xefc0'0001};
  loop.io.set_groups(kGroup, Time{1s});
  loop.io.flush();
  loop.receive_all();
  CHECK(counters.igmp_reports_sent == 1);
  CHECK(counters.rx_other_mac == 3);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), kThem.ipv4, Time{1s}));
  loop.io.flush();
  loop.receive_all();
  CHECK(counters.arp_ignored == 1);  // our own question
  CHECK(counters.rx_other_vlan == 0);
  CHECK(loop.pools_are_full());
}

TEST_CASE("An address is asked for at a bounded rate until it is known") {
  Loopback loop;
  const std::uint16_t port = loop.port.id();
  const IoCounters& counters = loop.io.counters();
  const Time start{1s};
  CHECK_FALSE(loop.io.resolve(port, kThem.ipv4, start));
  CHECK_FALSE(loop.io.resolve(port, kThem.ipv4, start + 99ms));
  CHECK(counters.arp_requests_sent == 1);
  CHECK_FALSE(loop.io.resolve(port, kThem.ipv4, start + 100ms));
  CHECK(counters.arp_requests_sent == 2);

  const auto say = [&](const MacAddress& mac, std::uint32_t ipv4) {
    const Arp reply{ArpOperation::kReply, mac, ipv4, loop.port.mac(), kUs.ipv4};
    loop.inject(copy_of(make_arp(reply, loop.port.mac())));
    loop.receive_all();
  };
  say(kThem.mac, 0x0505'0505);  // nobody asked
  CHECK(counters.arp_learned == 0);
  say(kThem.mac, kThem.ipv4);
  CHECK(counters.arp_learned == 1);
  CHECK(loop.io.resolve(port, kThem.ipv4, start) == kThem.mac);
  say(kUs.mac, kThem.ipv4);  // it moved
  CHECK(loop.io.resolve(port, kThem.ipv4, start) == kUs.mac);

  // It may have moved without a word; the old address serves until the new one is known.
  CHECK(loop.io.resolve_again(port, kThem.ipv4, start + 1s) == kUs.mac);
  CHECK(loop.io.resolve_again(port, kThem.ipv4, start + 1s + 99ms) == kUs.mac);
  CHECK(counters.arp_requests_sent == 3);
  say(kThem.mac, kThem.ipv4);
  CHECK(loop.io.resolve_again(port, kThem.ipv4, start + 1s + 99ms) == kThem.mac);
  CHECK_FALSE(loop.io.resolve_again(port, 0x0505'0505, start + 2s));
  CHECK(counters.arp_requests_sent == 4);
  CHECK_FALSE(loop.io.resolve(31, kThem.ipv4, start));
}

TEST_CASE("Where several claim an address, each of the last few has its turn") {
  Loopback loop;
  const std::uint16_t port = loop.port.id();
  Time now{1s};
  loop.io.resolve(port, kThem.ipv4, now);
  const auto host = [](std::uint8_t number) { return MacAddress{2, 0, 0, 0, 0, number}; };
  const auto claim = [&](std::uint8_t number) {
    const Arp claim{ArpOperation::kRequest, host(number), kThem.ipv4, {}, kThem.ipv4};
    loop.inject(copy_of(make_arp(claim, kBroadcastMac)));
    loop.receive_all();
  };
  const auto at = [&](std::size_t turn) {
    return loop.io.resolve_again(port, kThem.ipv4, now, turn);
  };
  CHECK(loop.io.claimants(port, kThem.ipv4).empty());
  CHECK_FALSE(at(1));
  claim(1);
  CHECK(at(1) == host(1));
  claim(2);
  claim(2);
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(2), host(1)});
  CHECK(loop.io.resolve(port, kThem.ipv4, now) == host(2));
  for (std::size_t turn = 0; turn < 4; ++turn) CHECK(at(turn) == host(turn % 2 == 0 ? 2 : 1));
  claim(1);
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(1), host(2)});
  for (std::uint8_t number = 3; number < 100; ++number) claim(number);
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(99), host(98), host(97), host(96)});
  for (int i = 0; i < 20; ++i) {  // only one of them goes on
    now += 1s;
    at(0);
    claim(97);
  }
  CHECK(loop.io.claimants(port, kThem.ipv4) == std::vector{host(97)});
  CHECK(loop.io.claimants(31, kThem.ipv4).empty());
  loop.io.flush();
  loop.receive_all();
  CHECK(loop.pools_are_full());
}

TEST_CASE("Addresses beyond the network are reached through the gateway") {
  Loopback loop;
  PortView view = loop.port.view(0);
  view.gateway = kThem.ipv4;
  view.prefix = 24;
  loop.io.remove_port(loop.port.id());
  loop.io.add_port(view);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), 0x0808'0808, Time{1s}));
  const Arp reply{ArpOperation::kReply, kThem.mac, kThem.ipv4, loop.port.mac(), kUs.ipv4};
  loop.inject(copy_of(make_arp(reply, loop.port.mac())));
  loop.receive_all();
  CHECK(loop.io.resolve(loop.port.id(), 0x0808'0808, Time{1s}) == kThem.mac);
  CHECK(loop.io.resolve(loop.port.id(), 0x0909'0909, Time{1s}) == kThem.mac);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), kUs.ipv4 + 1, Time{1s}));
}

TEST_CASE("The table of neighbours is bounded") {
  Loopback loop;
  for (std::uint32_t i = 0; i < 256; ++i) loop.io.resolve(loop.port.id(), i + 1, Time{1s});
  CHECK(loop.io.counters().arp_table_full == 0);
  CHECK_FALSE(loop.io.resolve(loop.port.id(), 257, Time{1s}));
  CHECK(loop.io.counters().arp_table_full == 1);
}

}  // namespace arp_and_vlan_tests
