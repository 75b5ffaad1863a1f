// Ethernet, VLAN tags, ARP, IPv4, ICMP echo, IGMP and UDP as bytes: the only place that reads and
// writes these headers. These are pure functions without DPDK, so that tests and fuzzers can try
// every malformed frame.
//
// A VLAN's tag is added last and removed first: all functions below those for tags handle frames
// without a tag.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/endpoint.hpp"
#include "common/base/limits.hpp"

namespace sluice::net {

using MacAddress = std::array<std::uint8_t, 6>;

inline constexpr MacAddress kBroadcastMac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
inline constexpr std::size_t kEthernetBytes = 14;
inline constexpr std::size_t kIpv4Bytes = 20;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kTagBytes = 4;  ///< 802.1Q
/// The headers before every datagram's payload. They have no IPv4 options; only IGMP has these.
inline constexpr std::size_t kHeaderBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
static_assert(limits::kMaxPayload == limits::kMaxMtu - kIpv4Bytes - kUdpBytes);
inline constexpr std::size_t kArpFrameBytes = 42;
/// The headers before an IGMP message of ours: the IPv4 header has the option Router Alert.
inline constexpr std::size_t kIgmpHeaderBytes = kEthernetBytes + kIpv4Bytes + 4;

inline constexpr std::uint16_t kNoVlan = 0;  ///< in place of a VLAN: frames have no tag

/// The VLAN in the 16 bits behind the type of a tag; the other bits are priority and drop
/// eligibility.
constexpr std::uint16_t vlan_of_tag(std::uint16_t control) {
  return control & 0x0fff;
}

/// The VLAN that a frame's tag names; kNoVlan if the tag only has a priority. Nothing if the frame
/// has no 802.1Q tag or ends within it.
std::optional<std::uint16_t> vlan_of(std::span<const std::byte> frame);

/// Removes the tag of a frame that has one: the frame begins kTagBytes later afterwards.
void take_out_tag(std::span<std::byte> frame);

/// Inserts a tag of priority 0. The frame begins kTagBytes into `room` before, and at the start of
/// `room` afterwards.
void put_in_tag(std::span<std::byte> room, std::uint16_t vlan);

/// The addresses of one of our ports; IPv4 addresses in host byte order.
struct LocalAddress {
  MacAddress mac{};
  std::uint32_t ipv4 = 0;
  std::span<const std::uint32_t> groups{};  ///< joined multicast addresses
};

/// Why a received frame is not a datagram for us; kDatagram if it is one.
enum class FrameVerdict : std::uint8_t {
  kDatagram,
  kArp,            ///< for parse_arp
  kEcho,           ///< an ICMP echo request: for to_echo_reply
  kIgmp,           ///< to a group of ours or to all hosts: for igmp_message
  kTooShort,       ///< ends within a header
  kOtherMac,       ///< addressed to other stations
  kOtherVlan,      ///< has a tag of any VLAN
  kOtherProtocol,  ///< neither IPv4 nor ARP, or IPv4 with a protocol that is not listed here
  kBadIpHeader,    ///< version or header length impossible
  kIpOptions,      ///< legal, but we never send them
  kFragment,       ///< we set DF and never fragment
  kBadIpChecksum,  //
  /// Addressed to another host, or to a group with the same Ethernet address as one of ours.
  kOtherIp,
  kBadLength,       ///< IPv4 or UDP length exceeds the frame, or they conflict
  kBadUdpChecksum,  //
  kBadIcmp,         ///< length or checksum
  kBadIgmp,         ///< length, checksum, or a TTL that is not 1
};

/// The checksums that the port has verified already.
struct Verified {
  bool ip = false;
  bool udp = false;
};

/// The payload starts at kHeaderBytes. `from` and `payload_bytes` are valid only for kDatagram.
struct ParsedFrame {
  FrameVerdict verdict = FrameVerdict::kTooShort;
  Endpoint from;  ///< without port_id
  std::size_t payload_bytes = 0;
  bool to_group = false;  ///< valid only for kDatagram
};

/// Judges a whole frame received at `us`. A host that has joined no group accepts no IGMP.
ParsedFrame parse_frame(std::span<const std::byte> frame, const LocalAddress& us,
                        Verified verified = {});

/// The message in a frame that was judged as kIgmp.
std::span<const std::byte> igmp_message(std::span<const std::byte> frame);

/// Writes a frame with an IGMP message from `us` to the multicast address `to`, and completes the
/// checksum of the message. `out` has room for the message's bytes and kIgmpHeaderBytes.
void write_igmp(std::span<std::byte> out, const LocalAddress& us, std::uint32_t to,
                std::span<const std::byte> message);

/// Turns a frame that was judged as kEcho into the reply. Returns its length: that of the request,
/// without Ethernet's padding.
std::size_t to_echo_reply(std::span<std::byte> frame);

/// Writes the headers of a datagram of `payload_bytes` <= 65507 from `us` to `to`: DF, TTL 64, a
/// correct IPv4 checksum, UDP checksum 0 ("none").
void write_headers(std::span<std::byte, kHeaderBytes> out, const LocalAddress& us,
                   const Endpoint& to, std::size_t payload_bytes, std::uint16_t ip_id);

/// Writes the full UDP checksum into headers made by write_headers.
void write_udp_checksum(std::span<std::byte, kHeaderBytes> headers,
                        std::span<const std::byte> payload);

/// Writes only the sum of the pseudo header, for ports that complete the checksum themselves.
void write_udp_pseudo_checksum(std::span<std::byte, kHeaderBytes> headers);

enum class ArpOperation : std::uint16_t { kRequest = 1, kReply = 2 };

/// ARP for IPv4 over Ethernet; addresses are in host byte order.
struct Arp {
  ArpOperation operation = ArpOperation::kRequest;
  MacAddress sender_mac{};
  std::uint32_t sender_ipv4 = 0;
  MacAddress target_mac{};
  std::uint32_t target_ipv4 = 0;
  friend bool operator==(const Arp&, const Arp&) = default;
};

/// Nothing if it is not a well-formed request or reply of ARP for IPv4 over Ethernet.
std::optional<Arp> parse_arp(std::span<const std::byte> frame);

/// The frame of `arp`, to `destination`.
std::array<std::byte, kArpFrameBytes> make_arp(const Arp& arp, const MacAddress& destination);

}  // namespace sluice::net
