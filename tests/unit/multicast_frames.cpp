// common/net/framing: frames to multicast groups, and IGMP.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "common/base/multicast_address.hpp"
#include "common/net/igmp.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/multicast_parts.hpp"

namespace multicast_frames_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;

namespace {

struct Fault {
  const char* name;
  FrameVerdict verdict;
  void (*spoil)(Bytes&);
};

FrameVerdict judged(const Bytes& frame, Verified verified = {}) {
  return parse_frame(frame, kMember, verified).verdict;
}

const Fault kDatagramFaults[] = {
    {"cut within the headers", FrameVerdict::kTooShort, [](Bytes& f) { f.resize(41); }},
    {"a group nobody joined", FrameVerdict::kOtherMac,
     [](Bytes& f) { f[5] = f[33] = std::byte{99}, repair(f); }},
    {"a group of the same Ethernet address", FrameVerdict::kOtherIp,
     [](Bytes& f) { f[31] ^= std::byte{0x80}, repair(f); }},
    {"a group's address, another's Ethernet address", FrameVerdict::kOtherMac,
     [](Bytes& f) { f[5] = std::byte{2}; }},
    {"our address in a group's frame", FrameVerdict::kOtherIp,
     [](Bytes& f) { set_ip(f, 30, kHost.ipv4), repair(f); }},
    {"a group in a frame to us alone", FrameVerdict::kOtherIp,
     [](Bytes& f) { std::ranges::copy(std::as_bytes(std::span(kHost.mac)), f.begin()); }},
    {"a group's frame with another vendor's bytes", FrameVerdict::kOtherMac,
     [](Bytes& f) { f[2] = std::byte{0x5f}; }},
    {"a broadcast", FrameVerdict::kOtherMac,
     [](Bytes& f) { std::fill_n(f.begin(), 6, std::byte{0xff}); }},
    {"ARP", FrameVerdict::kOtherMac, [](Bytes& f) { f[13] = std::byte{6}; }},
    {"version 6", FrameVerdict::kBadIpHeader, [](Bytes& f) { f[14] = std::byte{0x65}, repair(f); }},
    {"a header of four words", FrameVerdict::kBadIpHeader,
     [](Bytes& f) { f[14] = std::byte{0x44}, repair(f); }},
    {"options", FrameVerdict::kIpOptions, [](Bytes& f) { f[14] = std::byte{0x46}, repair(f); }},
    {"header checksum", FrameVerdict::kBadIpChecksum, [](Bytes& f) { f[24] ^= std::byte{1}; }},
    {"a fragment", FrameVerdict::kFragment, [](Bytes& f) { f[20] = std::byte{0x20}, repair(f); }},
    {"TCP", FrameVerdict::kOtherProtocol, [](Bytes& f) { f[23] = std::byte{6}, repair(f); }},
    {"ICMP: a group is not pinged", FrameVerdict::kOtherProtocol,
     [](Bytes& f) { f[23] = std::byte{1}, f[34] = std::byte{8}, f[35] = std::byte{0}, repair(f); }},
    {"a length beyond the frame", FrameVerdict::kBadLength,
     [](Bytes& f) { f[17] = std::byte{0xff}, f[39] = std::byte{0xff - 20}, repair(f); }},
    {"a payload bit", FrameVerdict::kBadUdpChecksum, [](Bytes& f) { f.back() ^= std::byte{4}; }},
    {"UDP to all hosts", FrameVerdict::kOtherProtocol,
     [](Bytes& f) { address_to(f, kAllHosts), repair(f); }},
};

const Fault kIgmpFaults[] = {
    {"forwarded", FrameVerdict::kBadIgmp, [](Bytes& f) { f[22] = std::byte{2}, repair(f); }},
    {"TTL 0", FrameVerdict::kBadIgmp, [](Bytes& f) { f[22] = std::byte{0}, repair(f); }},
    {"header checksum", FrameVerdict::kBadIpChecksum, [](Bytes& f) { f[25] ^= std::byte{1}; }},
    {"an option's bit", FrameVerdict::kBadIpChecksum, [](Bytes& f) { f[37] ^= std::byte{1}; }},
    {"a message's bit", FrameVerdict::kBadIgmp, [](Bytes& f) { f.back() ^= std::byte{1}; }},
    {"a length beyond the frame", FrameVerdict::kBadIgmp,
     [](Bytes& f) { f[17] = std::byte{0xff}, repair(f); }},
    {"no room for a message", FrameVerdict::kBadIgmp,
     [](Bytes& f) { f[17] = std::byte{24 + 7}, repair(f); }},
    {"options beyond the length", FrameVerdict::kBadIgmp,
     [](Bytes& f) { f[17] = std::byte{20}, repair(f); }},
    {"options beyond the frame", FrameVerdict::kTooShort,
     [](Bytes& f) { f[14] = std::byte{0x4f}; }},
    {"a fragment", FrameVerdict::kFragment, [](Bytes& f) { f[21] = std::byte{1}, repair(f); }},
    {"to all routers", FrameVerdict::kOtherMac,
     [](Bytes& f) { address_to(f, kAllRouters), repair(f); }},
    {"a group nobody joined", FrameVerdict::kOtherMac,
     [](Bytes& f) { address_to(f, 0xefc0'0063), repair(f); }},
    {"to us alone", FrameVerdict::kIpOptions,
     [](Bytes& f) {
       std::ranges::copy(std::as_bytes(std::span(kHost.mac)), f.begin());
       set_ip(f, 30, kHost.ipv4), repair(f);
     }},
    {"to another station", FrameVerdict::kOtherMac, [](Bytes& f) { f[0] = std::byte{2}; }},
};

}  // namespace

TEST_CASE("A datagram to a joined group is one for us, and says so") {
  const std::uint32_t group = GENERATE(kGroups[0], kGroups[1]);
  const Bytes frame = group_datagram(group, 33);
  const ParsedFrame parsed = parse_frame(frame, kMember);
  REQUIRE(parsed.verdict == FrameVerdict::kDatagram);
  CHECK(parsed.to_group);
  CHECK(parsed.payload_bytes == 33);
  CHECK(parsed.from.mac == kSender.mac);
  CHECK(parsed.from.ipv4 == kSender.ipv4);
  CHECK(parsed.from.udp_port == kTheirPort);
  CHECK(parsed.from.local_udp_port == kOurPort);
}

TEST_CASE("Groups change nothing for a datagram to us") {
  const Bytes frame = datagram_to(kHost, 33);
  for (const LocalAddress& us : {kHost, kMember}) {
    const ParsedFrame parsed = parse_frame(frame, us);
    CHECK(parsed.verdict == FrameVerdict::kDatagram);
    CHECK_FALSE(parsed.to_group);
  }
  Bytes other = frame;
  other[5] ^= std::byte{1};
  CHECK(judged(other) == FrameVerdict::kOtherMac);
}

TEST_CASE("Who has joined nothing takes no frame of a group, and no IGMP") {
  CHECK(parse_frame(group_datagram(kGroups[0], 33), kHost).verdict == FrameVerdict::kOtherMac);
  CHECK(parse_frame(query_frame(kAllHosts), kHost).verdict == FrameVerdict::kOtherMac);
}

TEST_CASE("Every malformed frame to a group is told apart") {
  for (const Fault& fault : kDatagramFaults) {
    INFO(fault.name);
    Bytes frame = group_datagram(kGroups[0], 64);
    fault.spoil(frame);
    CHECK(judged(frame) == fault.verdict);
  }
}

TEST_CASE("IGMP to all hosts or to a joined group is given as it is, with options or without") {
  const std::uint32_t to = GENERATE(kAllHosts, kGroups[0], kGroups[1]);
  const std::size_t options = GENERATE(0u, 4u, 40u);
  const std::size_t padding = GENERATE(0u, 14u);
  Bytes frame = query_frame(to, options);
  frame.resize(frame.size() + padding);
  REQUIRE(judged(frame) == FrameVerdict::kIgmp);
  const auto message = igmp_message(frame);
  CHECK(Bytes(message.begin(), message.end()) == query_message());
}

TEST_CASE("Every malformed frame with IGMP is told apart") {
  for (const Fault& fault : kIgmpFaults) {
    INFO(fault.name);
    Bytes frame = query_frame(kAllHosts);
    fault.spoil(frame);
    CHECK(judged(frame) == fault.verdict);
  }
}

TEST_CASE("A header's checksum that the port has verified is not computed again, IGMP's is") {
  Bytes frame = query_frame(kAllHosts);
  frame[25] ^= std::byte{1};
  CHECK(judged(frame, {.ip = true, .udp = true}) == FrameVerdict::kIgmp);
  frame.back() ^= std::byte{1};
  CHECK(judged(frame, {.ip = true, .udp = true}) == FrameVerdict::kBadIgmp);
}

TEST_CASE("No frame to a group that is cut short is read beyond its end") {
  for (const Bytes& whole : {group_datagram(kGroups[0], 64), query_frame(kAllHosts, 40)})
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      const FrameVerdict verdict = judged(cut, {.ip = true, .udp = true});
      CHECK(verdict != FrameVerdict::kDatagram);
      CHECK(verdict != FrameVerdict::kIgmp);
    }
}

TEST_CASE("A frame with IGMP is written byte by byte as the standards say") {
  const Bytes report = bytes({0x16, 0, 0, 0, 239, 192, 0, 1});
  Bytes frame(kIgmpHeaderBytes + report.size());
  write_igmp(frame, kHost, kGroups[0], report);
  CHECK(frame == bytes({0x01, 0x00, 0x5e, 0x40, 0x00, 0x01,  // the group's
                        0x02, 0,    0,    0,    0,    0x01,  // ours
                        0x08, 0x00,                          //
                        0x46, 0xc0, 0x00, 0x20, 0,    0,    0, 0, 0x01, 0x02, 0x29, 0x09,
                        10,   77,   1,    1,    239,  192,  0, 1, 0x94, 0x04, 0,    0,  //
                        0x16, 0,    0xfa, 0x3d, 239,  192,  0, 1}));
  CHECK(judged(frame) == FrameVerdict::kIgmp);  // at another host
}

TEST_CASE("A report of every group comes through") {
  Igmp igmp(7);
  std::vector<std::uint32_t> groups;
  for (std::uint32_t i = 0; i < kMaxGroups; ++i) groups.push_back(kGroups[0] + i);
  igmp.set_groups(groups);
  const IgmpMessage report = igmp.next_message(Time{}).value();
  Bytes frame(kIgmpHeaderBytes + report.size);
  write_igmp(frame, kSender, report.to, report.bytes());
  address_to(frame, kAllHosts);  // where we would hear it
  repair(frame);
  REQUIRE(judged(frame) == FrameVerdict::kIgmp);
  CHECK(igmp_message(frame).size() == report.size);
}

}  // namespace multicast_frames_tests
