#include "common/net/framing.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "common/base/multicast_address.hpp"
#include "common/net/big_endian.hpp"
#include "common/net/igmp.hpp"

namespace sluice::net {
namespace {

constexpr std::uint16_t kTypeIpv4 = 0x0800;
constexpr std::uint16_t kTypeArp = 0x0806;
constexpr std::uint16_t kTypeTag = 0x8100;
// 802.1ad: the tag of a provider, outside of another one.
constexpr std::uint16_t kTypeServiceTag = 0x88a8;
constexpr std::uint8_t kProtocolIcmp = 1;
constexpr std::uint8_t kProtocolIgmp = 2;
constexpr std::uint8_t kProtocolUdp = 17;
constexpr std::uint8_t kTtl = 64;

// Offsets of fields within the frame.
constexpr std::size_t kEtherType = 12;  // both addresses come before it
constexpr std::size_t kTagControl = kEtherType + 2;
constexpr std::size_t kIp = kEthernetBytes;
constexpr std::size_t kIpTotalLength = kIp + 2;
constexpr std::size_t kIpId = kIp + 4;
constexpr std::size_t kIpFragment = kIp + 6;
constexpr std::size_t kIpTtl = kIp + 8;
constexpr std::size_t kIpProtocol = kIp + 9;
constexpr std::size_t kIpChecksum = kIp + 10;
constexpr std::size_t kIpSource = kIp + 12;
constexpr std::size_t kIpDestination = kIp + 16;
constexpr std::size_t kUdp = kIp + kIpv4Bytes;
constexpr std::size_t kUdpDestination = kUdp + 2;
constexpr std::size_t kUdpLength = kUdp + 4;
constexpr std::size_t kUdpChecksum = kUdp + 6;
constexpr std::size_t kIcmp = kUdp;  // type, code, checksum
constexpr std::size_t kIcmpChecksum = kIcmp + 2;
constexpr std::size_t kIcmpBytes = 8;
constexpr std::size_t kArp = kEthernetBytes;
constexpr std::size_t kIpOption = kIp + kIpv4Bytes;
constexpr std::size_t kIgmpChecksum = 2;  // of the message

constexpr std::uint16_t kDontFragment = 0x4000;
constexpr std::uint16_t kFragmentMask = 0x3fff;  // more-fragments bit and offset

using ConstBytes = std::span<const std::byte>;
using Bytes = std::span<std::byte>;

MacAddress get_mac(ConstBytes b, std::size_t at) {
  MacAddress mac;
  std::memcpy(mac.data(), b.data() + at, mac.size());
  return mac;
}

void put_mac(Bytes b, std::size_t at, const MacAddress& mac) {
  std::memcpy(b.data() + at, mac.data(), mac.size());
}

// Sums 32-bit words in the machine's byte order. By RFC 1071 the ones' complement sum may be
// computed in any byte order and width, and folded at the end. 2^32 words fit before the sum
// overflows.
std::uint64_t raw_sum(ConstBytes bytes) {
  std::uint64_t sum = 0;
  std::size_t at = 0;
  for (; at + 4 <= bytes.size(); at += 4) {
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + at, 4);
    sum += word;
  }
  std::uint32_t last = 0;  // the tail, padded with zeros
  if (at < bytes.size()) std::memcpy(&last, bytes.data() + at, bytes.size() - at);
  return sum + last;
}

// Folds to 16 bits, as a value in network order.
std::uint16_t fold(std::uint64_t sum) {
  sum = (sum & 0xffff'ffff) + (sum >> 32);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  const auto folded = static_cast<std::uint16_t>(sum);
  if constexpr (std::endian::native == std::endian::little)
    return static_cast<std::uint16_t>(folded << 8 | folded >> 8);
  return folded;
}

// What UDP's checksum covers in addition to the UDP datagram: addresses, protocol and length.
std::uint64_t pseudo_header_sum(ConstBytes frame) {
  std::array<std::byte, 12> pseudo{};
  std::memcpy(pseudo.data(), frame.data() + kIpSource, 8);
  put8(pseudo, 9, kProtocolUdp);
  put16(pseudo, 10, get16(frame, kUdpLength));
  return raw_sum(pseudo);
}

FrameVerdict judge_icmp(ConstBytes frame) {
  constexpr std::uint16_t kEchoRequest = 0x0800;  // with code 0
  const std::size_t ip_bytes = get16(frame, kIpTotalLength);
  if (ip_bytes > frame.size() - kIp || ip_bytes < kIpv4Bytes + kIcmpBytes)
    return FrameVerdict::kBadIcmp;
  if (fold(raw_sum(frame.subspan(kIcmp, ip_bytes - kIpv4Bytes))) != 0xffff)
    return FrameVerdict::kBadIcmp;
  return get16(frame, kIcmp) == kEchoRequest ? FrameVerdict::kEcho : FrameVerdict::kOtherProtocol;
}

FrameVerdict judge_ip(ConstBytes frame, const LocalAddress& us, Verified verified) {
  const unsigned version = get8(frame, kIp) >> 4;
  const std::size_t header_bytes = (get8(frame, kIp) & 0xfu) * 4u;
  if (version != 4 || header_bytes < kIpv4Bytes) return FrameVerdict::kBadIpHeader;
  if (header_bytes > kIpv4Bytes) return FrameVerdict::kIpOptions;
  if (!verified.ip && fold(raw_sum(frame.subspan(kIp, kIpv4Bytes))) != 0xffff)
    return FrameVerdict::kBadIpChecksum;
  if (get32(frame, kIpDestination) != us.ipv4) return FrameVerdict::kOtherIp;
  if (get16(frame, kIpFragment) & kFragmentMask) return FrameVerdict::kFragment;
  if (get8(frame, kIpProtocol) == kProtocolUdp) return FrameVerdict::kDatagram;
  return get8(frame, kIpProtocol) == kProtocolIcmp ? judge_icmp(frame)
                                                   : FrameVerdict::kOtherProtocol;
}

// Frames may be longer than the IPv4 packet (Ethernet pads to 60 bytes), never shorter.
FrameVerdict judge_udp(ConstBytes frame, Verified verified) {
  const std::size_t ip_bytes = get16(frame, kIpTotalLength);
  const std::size_t udp_bytes = get16(frame, kUdpLength);
  if (ip_bytes > frame.size() - kIp || udp_bytes < kUdpBytes || udp_bytes + kIpv4Bytes != ip_bytes)
    return FrameVerdict::kBadLength;
  if (verified.udp || get16(frame, kUdpChecksum) == 0) return FrameVerdict::kDatagram;
  const std::uint64_t sum = pseudo_header_sum(frame) + raw_sum(frame.subspan(kUdp, udp_bytes));
  return fold(sum) == 0xffff ? FrameVerdict::kDatagram : FrameVerdict::kBadUdpChecksum;
}

std::size_t ip_header_bytes(ConstBytes frame) {
  return (get8(frame, kIp) & 0xfu) * 4u;
}

FrameVerdict judge_igmp(ConstBytes frame) {
  const std::size_t ip_bytes = get16(frame, kIpTotalLength);
  if (ip_bytes > frame.size() - kIp || ip_bytes < ip_header_bytes(frame) + kIgmpBytes)
    return FrameVerdict::kBadIgmp;
  // Only a host on the link can have sent it, as nobody forwards such packets.
  if (get8(frame, kIpTtl) != 1) return FrameVerdict::kBadIgmp;
  return fold(raw_sum(igmp_message(frame))) == 0xffff ? FrameVerdict::kIgmp
                                                      : FrameVerdict::kBadIgmp;
}

// Judges an IPv4 packet to a group of ours or to all hosts, as judge_ip does.
FrameVerdict judge_group_ip(ConstBytes frame, Verified verified) {
  const std::size_t header_bytes = ip_header_bytes(frame);
  if (get8(frame, kIp) >> 4 != 4 || header_bytes < kIpv4Bytes) return FrameVerdict::kBadIpHeader;
  const std::uint8_t protocol = get8(frame, kIpProtocol);
  if (header_bytes > kIpv4Bytes && protocol != kProtocolIgmp) return FrameVerdict::kIpOptions;
  if (frame.size() < kIp + header_bytes) return FrameVerdict::kTooShort;
  if (!verified.ip && fold(raw_sum(frame.subspan(kIp, header_bytes))) != 0xffff)
    return FrameVerdict::kBadIpChecksum;
  if (get16(frame, kIpFragment) & kFragmentMask) return FrameVerdict::kFragment;
  if (protocol == kProtocolIgmp) return judge_igmp(frame);
  const bool is_datagram = protocol == kProtocolUdp && get32(frame, kIpDestination) != kAllHosts;
  return is_datagram ? FrameVerdict::kDatagram : FrameVerdict::kOtherProtocol;
}

bool is_tag(std::uint16_t type) {
  return type == kTypeTag || type == kTypeServiceTag;
}

// Judges a frame that is not addressed to our Ethernet address alone. It is a separate function so
// that it does not slow down the common case.
[[gnu::noinline]] FrameVerdict judge_shared(ConstBytes frame, std::span<const std::uint32_t> groups,
                                            Verified verified) {
  const MacAddress destination = get_mac(frame, 0);
  const std::uint16_t type = get16(frame, kEtherType);
  if (is_tag(type)) return FrameVerdict::kOtherVlan;
  if (destination == kBroadcastMac && type == kTypeArp) return FrameVerdict::kArp;
  const auto shares_mac = [&](std::uint32_t group) { return multicast_mac(group) == destination; };
  const bool is_ours = !groups.empty() && type == kTypeIpv4 &&
                       (shares_mac(kAllHosts) || std::ranges::any_of(groups, shares_mac));
  if (!is_ours) return FrameVerdict::kOtherMac;
  if (frame.size() < kHeaderBytes) return FrameVerdict::kTooShort;
  const std::uint32_t to = get32(frame, kIpDestination);
  if (to != kAllHosts && std::ranges::find(groups, to) == groups.end())
    return FrameVerdict::kOtherIp;
  if (!shares_mac(to)) return FrameVerdict::kOtherMac;
  return judge_group_ip(frame, verified);
}

FrameVerdict judge_own(ConstBytes frame, const LocalAddress& us, Verified verified) {
  const std::uint16_t type = get16(frame, kEtherType);
  if (type == kTypeArp) return FrameVerdict::kArp;
  if (type != kTypeIpv4)
    return is_tag(type) ? FrameVerdict::kOtherVlan : FrameVerdict::kOtherProtocol;
  if (frame.size() < kHeaderBytes) return FrameVerdict::kTooShort;
  return judge_ip(frame, us, verified);
}

FrameVerdict judge(ConstBytes frame, const LocalAddress& us, Verified verified) {
  if (frame.size() < kEthernetBytes) return FrameVerdict::kTooShort;
  const bool is_own = get_mac(frame, 0) == us.mac;
  const FrameVerdict verdict =
      is_own ? judge_own(frame, us, verified) : judge_shared(frame, us.groups, verified);
  return verdict == FrameVerdict::kDatagram ? judge_udp(frame, verified) : verdict;
}

}  // namespace

std::optional<std::uint16_t> vlan_of(ConstBytes frame) {
  if (frame.size() < kEthernetBytes + kTagBytes || get16(frame, kEtherType) != kTypeTag)
    return std::nullopt;
  return vlan_of_tag(get16(frame, kTagControl));
}

void take_out_tag(Bytes frame) {
  std::memmove(frame.data() + kTagBytes, frame.data(), kEtherType);
}

void put_in_tag(Bytes room, std::uint16_t vlan) {
  std::memmove(room.data(), room.data() + kTagBytes, kEtherType);
  put16(room, kEtherType, kTypeTag);
  put16(room, kTagControl, vlan);
}

ParsedFrame parse_frame(ConstBytes frame, const LocalAddress& us, Verified verified) {
  ParsedFrame parsed;
  parsed.verdict = judge(frame, us, verified);
  if (parsed.verdict != FrameVerdict::kDatagram) return parsed;
  parsed.from.mac = get_mac(frame, 6);
  parsed.from.ipv4 = get32(frame, kIpSource);
  parsed.from.udp_port = get16(frame, kUdp);
  parsed.from.local_udp_port = get16(frame, kUdpDestination);
  parsed.payload_bytes = get16(frame, kUdpLength) - kUdpBytes;
  parsed.to_group = (get8(frame, 0) & 1) != 0;
  return parsed;
}

ConstBytes igmp_message(ConstBytes frame) {
  const std::size_t header_bytes = ip_header_bytes(frame);
  return frame.subspan(kIp + header_bytes, get16(frame, kIpTotalLength) - header_bytes);
}

void write_igmp(Bytes out, const LocalAddress& us, std::uint32_t to, ConstBytes message) {
  assert(out.size() == kIgmpHeaderBytes + message.size());
  constexpr std::size_t kHeader = kIgmpHeaderBytes - kIp;
  constexpr std::uint16_t kVersionLengthAndService = 0x4600 | 0xc0;  // internetwork control
  constexpr std::uint32_t kRouterAlert = 0x9404'0000;
  const MacAddress group = multicast_mac(to);
  put_mac(out, 0, group);
  put_mac(out, 6, us.mac);
  put16(out, kEtherType, kTypeIpv4);
  put16(out, kIp, kVersionLengthAndService);
  put16(out, kIpTotalLength, static_cast<std::uint16_t>(kHeader + message.size()));
  put16(out, kIpId, 0);
  put16(out, kIpFragment, 0);
  put16(out, kIpTtl, 1 << 8 | kProtocolIgmp);
  put16(out, kIpChecksum, 0);
  put32(out, kIpSource, us.ipv4);
  put32(out, kIpDestination, to);
  put32(out, kIpOption, kRouterAlert);
  put16(out, kIpChecksum, static_cast<std::uint16_t>(~fold(raw_sum(out.subspan(kIp, kHeader)))));
  const Bytes body = out.subspan(kIgmpHeaderBytes);
  std::ranges::copy(message, body.begin());
  put16(body, kIgmpChecksum, 0);
  put16(body, kIgmpChecksum, static_cast<std::uint16_t>(~fold(raw_sum(body))));
}

std::size_t to_echo_reply(Bytes frame) {
  const MacAddress sender = get_mac(frame, 6);
  const std::uint32_t source = get32(frame, kIpSource);
  const std::size_t ip_bytes = get16(frame, kIpTotalLength);
  put_mac(frame, 6, get_mac(frame, 0));
  put_mac(frame, 0, sender);
  put32(frame, kIpSource, get32(frame, kIpDestination));
  put32(frame, kIpDestination, source);
  put8(frame, kIpTtl, kTtl);
  put16(frame, kIpChecksum, 0);
  put16(frame, kIpChecksum,
        static_cast<std::uint16_t>(~fold(raw_sum(frame.subspan(kIp, kIpv4Bytes)))));
  put32(frame, kIcmp, 0);  // an echo reply
  const Bytes message = frame.subspan(kIcmp, ip_bytes - kIpv4Bytes);
  put16(frame, kIcmpChecksum, static_cast<std::uint16_t>(~fold(raw_sum(message))));
  return kIp + ip_bytes;
}

void write_headers(std::span<std::byte, kHeaderBytes> out, const LocalAddress& us,
                   const Endpoint& to, std::size_t payload_bytes, std::uint16_t ip_id) {
  constexpr std::uint16_t kVersionAndLength = 0x4500;  // no type of service
  constexpr std::uint16_t kTtlAndProtocol = kTtl << 8 | kProtocolUdp;
  const auto udp_bytes = static_cast<std::uint16_t>(kUdpBytes + payload_bytes);
  const auto ip_bytes = static_cast<std::uint16_t>(kIpv4Bytes + udp_bytes);
  put_mac(out, 0, to.mac);
  put_mac(out, 6, us.mac);
  put16(out, kEtherType, kTypeIpv4);
  put16(out, kIp, kVersionAndLength);
  put16(out, kIpTotalLength, ip_bytes);
  put16(out, kIpId, ip_id);
  put16(out, kIpFragment, kDontFragment);
  put16(out, kIpTtl, kTtlAndProtocol);
  // Computed from the values: to read back what was just written, in other widths, would stall.
  std::uint32_t sum = kVersionAndLength + ip_bytes + ip_id + kDontFragment + kTtlAndProtocol;
  for (const std::uint32_t address : {us.ipv4, to.ipv4})
    sum += (address >> 16) + (address & 0xffff);
  sum = (sum & 0xffff) + (sum >> 16);
  put16(out, kIpChecksum, static_cast<std::uint16_t>(~(sum + (sum >> 16))));
  put32(out, kIpSource, us.ipv4);
  put32(out, kIpDestination, to.ipv4);
  put16(out, kUdp, to.local_udp_port);
  put16(out, kUdpDestination, to.udp_port);
  put16(out, kUdpLength, udp_bytes);
  put16(out, kUdpChecksum, 0);
}

void write_udp_checksum(std::span<std::byte, kHeaderBytes> headers, ConstBytes payload) {
  put16(headers, kUdpChecksum, 0);
  const std::uint64_t sum =
      pseudo_header_sum(headers) + raw_sum(headers.subspan(kUdp, kUdpBytes)) + raw_sum(payload);
  const auto checksum = static_cast<std::uint16_t>(~fold(sum));
  put16(headers, kUdpChecksum, checksum == 0 ? 0xffff : checksum);  // 0 would mean "none"
}

void write_udp_pseudo_checksum(std::span<std::byte, kHeaderBytes> headers) {
  put16(headers, kUdpChecksum, fold(pseudo_header_sum(headers)));
}

std::optional<Arp> parse_arp(ConstBytes frame) {
  if (frame.size() < kArpFrameBytes || get16(frame, kEtherType) != kTypeArp) return std::nullopt;
  // Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
  if (get16(frame, kArp) != 1 || get16(frame, kArp + 2) != kTypeIpv4 ||
      get16(frame, kArp + 4) != 0x0604)
    return std::nullopt;
  const std::uint16_t operation = get16(frame, kArp + 6);
  if (operation != 1 && operation != 2) return std::nullopt;
  return Arp{static_cast<ArpOperation>(operation), get_mac(frame, kArp + 8),
             get32(frame, kArp + 14), get_mac(frame, kArp + 18), get32(frame, kArp + 24)};
}

std::array<std::byte, kArpFrameBytes> make_arp(const Arp& arp, const MacAddress& destination) {
  std::array<std::byte, kArpFrameBytes> frame{};
  put_mac(frame, 0, destination);
  put_mac(frame, 6, arp.sender_mac);
  put16(frame, kEtherType, kTypeArp);
  put16(frame, kArp, 1);
  put16(frame, kArp + 2, kTypeIpv4);
  put16(frame, kArp + 4, 0x0604);
  put16(frame, kArp + 6, static_cast<std::uint16_t>(arp.operation));
  put_mac(frame, kArp + 8, arp.sender_mac);
  put32(frame, kArp + 14, arp.sender_ipv4);
  put_mac(frame, kArp + 18, arp.target_mac);
  put32(frame, kArp + 24, arp.target_ipv4);
  return frame;
}

}  // namespace sluice::net
