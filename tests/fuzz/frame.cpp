// libFuzzer target of parse_frame and Igmp: what comes from the wire is dropped with a reason, or
// its parts lie within it; and whatever is heard, few reports are sent, each of which another host
// understands.
//
// Input: a byte of choices, then the frame. Checksums would keep the fuzzer out, so it may choose
// that they are right.
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/net/framing.hpp"
#include "common/net/igmp.hpp"
#include "tests/unit/multicast_parts.hpp"

namespace {

using namespace sluice;
using namespace sluice::net;
using testing::Bytes;
using testing::kGroups;
using testing::kHost;
using testing::kMember;

enum Choice : std::uint8_t {
  kRepairs = 1,
  kIpVerified = 2,
  kUdpVerified = 4,
  kHasGroups = 8,
  kLeaves = 16,
  kHasVlan = 32,  // and a frame is only parsed further if it has a tag
};

/// A report of all that is due, as another host hears it.
void send_all(Igmp& igmp, Time now) {
  unsigned messages = 0;
  while (const auto message = igmp.next_message(now)) {
    ++messages;
    assert(messages <= 2 * kMaxGroups);
    Bytes frame(kIgmpHeaderBytes + message->size);
    write_igmp(frame, kHost, message->to, message->bytes());
    LocalAddress other = testing::kSender;
    other.groups = std::span(&message->to, 1);
    assert(parse_frame(frame, other).verdict == FrameVerdict::kIgmp);
    assert(igmp_message(frame).size() == message->size);
  }
  assert(igmp.next_time() > now);
}

void hear(std::span<const std::byte> message, bool leaves) {
  Igmp igmp(1);
  igmp.set_groups(kGroups);
  Time now{std::chrono::hours(1)};
  send_all(igmp, now);
  const Igmp::Outcome outcome = igmp.take(message, now);
  assert(outcome != Igmp::Outcome::kReport);  // nobody has asked
  if (leaves) igmp.set_groups({});
  send_all(igmp, now);
  // 7 reports of each change, and an answer for each group.
  for (int wakes = 0; igmp.next_time() != kNever; ++wakes) {
    assert(wakes <= 2 * 7 + 2);
    now = igmp.next_time();
    send_all(igmp, now);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto choices = data[0];
  const auto given = std::as_bytes(std::span(data, size)).subspan(1);
  Bytes frame(given.begin(), given.end());
  if ((choices & kHasVlan) != 0) {
    const auto vlan = vlan_of(frame);
    if (!vlan) return 0;
    assert(*vlan <= 0x0fff);
    take_out_tag(frame);
    frame.erase(frame.begin(), frame.begin() + kTagBytes);
  }
  if ((choices & kRepairs) != 0) testing::repair_all(frame);
  const Verified verified{.ip = (choices & kIpVerified) != 0, .udp = (choices & kUdpVerified) != 0};
  const LocalAddress& us = (choices & kHasGroups) != 0 ? kMember : kHost;
  const ParsedFrame parsed = parse_frame(frame, us, verified);
  switch (parsed.verdict) {
    case FrameVerdict::kDatagram:
      assert(kHeaderBytes + parsed.payload_bytes <= frame.size());
      assert(!parsed.to_group || !us.groups.empty());
      break;
    case FrameVerdict::kIgmp: {
      assert(!us.groups.empty());
      const auto message = igmp_message(frame);
      assert(message.size() >= kIgmpBytes);
      hear(Bytes(message.begin(), message.end()), (choices & kLeaves) != 0);
      break;
    }
    case FrameVerdict::kArp:
      parse_arp(frame);
      break;
    case FrameVerdict::kEcho:
      assert(to_echo_reply(frame) <= frame.size());
      break;
    default:
      break;
  }
  return 0;
}
