// common/net/framing: frames against some written by hand.
#include <cstddef>
#include <cstring>
#include <span>

#include "common/net/framing.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/frame_parts.hpp"

namespace frames_tests {

using namespace sluice;
using namespace sluice::net;
using namespace sluice::net::testing;

TEST_CASE("Headers are written byte by byte as the standards say") {
  Bytes headers(kHeaderBytes);
  write_headers(std::span<std::byte, kHeaderBytes>(headers.data(), kHeaderBytes), kUs,
                endpoint(kThem, 0x1234, 0x5678), 87, 0);
  // The IPv4 header is a published example, checksum b861.
  CHECK(headers == bytes({0x02, 0,    0,    0,    0,    0x02, 0x02, 0,    0,    0,    0,
                          0x01, 0x08, 0x00, 0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00,
                          0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8, 0x00,
                          0xc7, 0x56, 0x78, 0x12, 0x34, 0x00, 0x5f, 0x00, 0x00}));
}

TEST_CASE("A UDP checksum agrees with an independent computation") {
  for (std::size_t size : {0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 1471, 1472, 8972}) {
    Bytes frame = frame_with(kThem, endpoint(kUs, 1, 2), pattern(size));
    CHECK(reference_udp_sum(frame) == 0xffff);
    CHECK((frame[40] != std::byte{0} || frame[41] != std::byte{0}));
    const ParsedFrame parsed = parse_frame(frame, kUs);
    CHECK(parsed.verdict == FrameVerdict::kDatagram);
    CHECK(parsed.payload_bytes == size);
  }
}

TEST_CASE("A UDP checksum that comes out as zero is sent as ffff") {
  // Two payload bytes that make the sum ffff and so its complement zero.
  Bytes frame = frame_with(kThem, endpoint(kUs, 1, 2), bytes({0, 0}), UdpChecksum::kNone);
  const unsigned rest = 0xffff - reference_udp_sum(frame);
  frame = frame_with(kThem, endpoint(kUs, 1, 2),
                     bytes({static_cast<int>(rest >> 8), static_cast<int>(rest & 0xff)}));
  CHECK(frame[40] == std::byte{0xff});
  CHECK(frame[41] == std::byte{0xff});
  CHECK(parse_frame(frame, kUs).verdict == FrameVerdict::kDatagram);
}

TEST_CASE("A good frame gives its sender and its payload, padded or not") {
  const Bytes payload = pattern(5);
  Bytes frame = frame_with(kThem, endpoint(kUs, 0x1771, 0x4242), payload);
  frame.resize(60);
  const ParsedFrame parsed = parse_frame(frame, kUs);
  REQUIRE(parsed.verdict == FrameVerdict::kDatagram);
  CHECK(parsed.from == endpoint(kThem, 0x4242, 0x1771));
  CHECK(parsed.payload_bytes == 5);
}

TEST_CASE("Every malformed frame is told apart") {
  for (const FrameFault& fault : kFrameFaults) {
    INFO(fault.name);
    Bytes frame = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
    fault.spoil(frame);
    CHECK(parse_frame(frame, kUs).verdict == fault.verdict);
  }
}

TEST_CASE("No frame cut short is read beyond its end") {
  const Bytes whole = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(parse_frame(cut, kUs).verdict != FrameVerdict::kDatagram);
    CHECK_FALSE(parse_arp(cut));
  }
}

TEST_CASE("A ping becomes its answer") {
  const std::size_t data_bytes = GENERATE(0u, 1u, 56u, 1472u);
  const Bytes request = echo_request(kUs, data_bytes);
  REQUIRE(parse_frame(request, kUs).verdict == FrameVerdict::kEcho);
  Bytes reply = request;
  REQUIRE(to_echo_reply(reply) == 42 + data_bytes);
  reply.resize(42 + data_bytes);
  Bytes expected(request.begin(), request.begin() + 42 + static_cast<std::ptrdiff_t>(data_bytes));
  std::memcpy(&expected[0], kThem.mac.data(), 6);
  std::memcpy(&expected[6], kUs.mac.data(), 6);
  std::swap_ranges(expected.begin() + 26, expected.begin() + 30, expected.begin() + 30);
  expected[34] = std::byte{0};
  const auto without_checksums = [](Bytes frame) {
    for (const std::size_t at : {24u, 25u, 36u, 37u}) frame[at] = std::byte{0};
    return frame;
  };
  CHECK(without_checksums(reply) == without_checksums(expected));
  CHECK(reference_sum(std::span(reply).subspan(14, 20)) == 0xffff);
  CHECK(reference_sum(std::span(reply).subspan(34)) == 0xffff);
  CHECK(parse_frame(reply, kThem).verdict == FrameVerdict::kOtherProtocol);  // answers none
}

TEST_CASE("A ping that is damaged, or cut short, is not answered") {
  const Bytes good = echo_request(kUs, 56);
  for (std::size_t at = 34; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= std::byte{0x10};
    CHECK(parse_frame(bad, kUs).verdict == FrameVerdict::kBadIcmp);
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    const auto verdict = parse_frame(cut, kUs).verdict;
    CHECK((verdict == FrameVerdict::kTooShort || verdict == FrameVerdict::kBadIcmp));
  }
  Bytes headless = good;  // whose IPv4 packet ends within the message's head
  headless[16] = std::byte{0};
  headless[17] = std::byte{27};
  repair_ip(headless);
  CHECK(parse_frame(headless, kUs).verdict == FrameVerdict::kBadIcmp);
}

TEST_CASE("A VLAN's tag is put behind the addresses, and taken out again") {
  const Bytes frame = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  Bytes wire = tagged(frame);
  CHECK(Bytes(wire.begin(), wire.begin() + 12) == Bytes(frame.begin(), frame.begin() + 12));
  CHECK(Bytes(wire.begin() + 12, wire.begin() + 16) == bytes({0x81, 0x00, 0x00, 0x07}));
  CHECK(Bytes(wire.begin() + 16, wire.end()) == Bytes(frame.begin() + 12, frame.end()));
  CHECK(vlan_of(wire) == kVlan);
  take_out_tag(wire);
  CHECK(Bytes(wire.begin() + 4, wire.end()) == frame);
}

TEST_CASE("A tag names a VLAN, whatever its priority") {
  const Bytes frame = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  CHECK(vlan_of(tagged(frame, 0xf000 | kVlan)) == kVlan);
  CHECK(vlan_of(tagged(frame, 0xe000)) == kNoVlan);  // it is for its priority alone
  CHECK(vlan_of(tagged(frame, 4094)) == 4094);
  CHECK(vlan_of(frame) == std::nullopt);
  Bytes providers = tagged(frame);
  providers[12] = std::byte{0x88}, providers[13] = std::byte{0xa8};
  CHECK(vlan_of(providers) == std::nullopt);
  const Bytes wire = tagged(frame);
  for (std::size_t size = 0; size < kEthernetBytes + kTagBytes; ++size)
    CHECK(vlan_of(std::span(wire).first(size)) == std::nullopt);
}

TEST_CASE("A frame with a tag is of another VLAN, be it to us, to all or to a group") {
  const Arp request{ArpOperation::kRequest, kThem.mac, kThem.ipv4, {}, kUs.ipv4};
  Bytes to_group = frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64));
  to_group[0] = std::byte{0x01};
  for (const Bytes& frame : {frame_with(kThem, endpoint(kUs, kListening, 7), pattern(64)),
                             copy_of(make_arp(request, kBroadcastMac)), to_group}) {
    Bytes wire = tagged(frame);
    CHECK(parse_frame(wire, kUs).verdict == FrameVerdict::kOtherVlan);
    wire[12] = std::byte{0x88}, wire[13] = std::byte{0xa8};
    CHECK(parse_frame(wire, kUs).verdict == FrameVerdict::kOtherVlan);
  }
}

TEST_CASE("ARP is written and read byte by byte as the standard says") {
  const Arp reply{ArpOperation::kReply, kUs.mac, kUs.ipv4, kThem.mac, kThem.ipv4};
  const auto frame = make_arp(reply, kThem.mac);
  CHECK(copy_of(frame) == bytes({0x02, 0,    0,    0,    0,    0x02, 0x02, 0,    0,    0,    0,
                                 0x01, 0x08, 0x06, 0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x02,
                                 0x02, 0,    0,    0,    0,    0x01, 0xc0, 0xa8, 0x00, 0x01, 0x02,
                                 0,    0,    0,    0,    0x02, 0xc0, 0xa8, 0x00, 0xc7}));
  CHECK(parse_arp(frame) == reply);
  for (std::size_t at : {14u, 16u, 18u, 19u, 20u}) {  // types, lengths and operation
    auto wrong = frame;
    wrong[at] ^= std::byte{0x40};
    CHECK_FALSE(parse_arp(wrong));
  }
}

}  // namespace frames_tests
