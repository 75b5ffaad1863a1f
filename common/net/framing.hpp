// Ethernet, VLAN tags, ARP, IPv4, ICMP echo, IGMP and UDP as bytes: the one place that reads and
// writes these headers. Pure functions without DPDK, so that every malformed frame can be tried in
// a test or a fuzzer.
//
// A VLAN's tag is put on last and taken off first: all that stands below the tag's functions deals
// with frames without one.
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
/// What stands before every datagram's payload; no IPv4 options. Only IGMP has these.
inline constexpr std::size_t kHeaderBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
static_assert(limits::kMaxPayload == limits::kMaxMtu - kIpv4Bytes - kUdpBytes);
inline constexpr std::size_t kArpFrameBytes = 42;
/// What stands before an IGMP message of ours: its IPv4 header has the option Router Alert.
inline constexpr std::size_t kIgmpHeaderBytes = kEthernetBytes + kIpv4Bytes + 4;

inline constexpr std::uint16_t kNoVlan = 0;  ///< instead of a VLAN: frames have no tag

/// The VLAN in the 16 bits of a tag behind its type; priority and drop eligibility are the rest.
constexpr std::uint16_t vlan_of_tag(std::uint16_t control) {
  return control & 0x0fff;
}

/// The VLAN that a frame's tag names, kNoVlan if the tag is for its priority alone. Empty: the
/// frame has no 802.1Q tag, or ends within it.
std::optional<std::uint16_t> vlan_of(std::span<const std::byte> frame);

/// Takes the tag out of a frame that has one: it begins kTagBytes later from now on.
void take_out_tag(std::span<std::byte> frame);

/// Puts a tag of priority 0 into the frame that begins kTagBytes into `room`: it begins with `room`
/// from now on.
void put_in_tag(std::span<std::byte> room, std::uint16_t vlan);

/// The addresses of one of our ports; IPv4 addresses in host byte order.
struct LocalAddress {
  MacAddress mac{};
  std::uint32_t ipv4 = 0;
  std::span<const std::uint32_t> groups{};  ///< multicast addresses that were joined there
};

/// Why a received frame is not a datagram for us; kDatagram when it is one.
enum class FrameVerdict : std::uint8_t {
  kDatagram,
  kArp,             ///< for parse_arp
  kEcho,            ///< an ICMP echo request: for to_echo_reply
  kIgmp,            ///< to a group of ours or to all hosts: for igmp_message
  kTooShort,        ///< ends within a header
  kOtherMac,        ///< addressed to other stations
  kOtherVlan,       ///< has a tag, whatever VLAN that names
  kOtherProtocol,   ///< neither IPv4 nor ARP, or IPv4 with something else than what is above
  kBadIpHeader,     ///< version or header length impossible
  kIpOptions,       ///< legal, but nothing of ours sends them
  kFragment,        ///< we set DF and never fragment
  kBadIpChecksum,   //
  kOtherIp,         ///< addressed to another host, or a group that has the same Ethernet address
  kBadLength,       ///< IPv4 or UDP length beyond the frame or in conflict with each other
  kBadUdpChecksum,  //
  kBadIcmp,         ///< length or checksum
  kBadIgmp,         ///< length, checksum, or a TTL that is not 1
};

/// Which checksums the port has verified already.
struct Verified {
  bool ip = false;
  bool udp = false;
};

/// The payload starts at kHeaderBytes. `from` and `payload_bytes` hold only for kDatagram.
struct ParsedFrame {
  FrameVerdict verdict = FrameVerdict::kTooShort;
  Endpoint from;  ///< all but port_id
  std::size_t payload_bytes = 0;
  bool to_group = false;  ///< also only for kDatagram
};

/// Judges a whole frame as received at `us`. Who has joined no group hears no IGMP.
ParsedFrame parse_frame(std::span<const std::byte> frame, const LocalAddress& us,
                        Verified verified = {});

/// The message in a frame that is kIgmp.
std::span<const std::byte> igmp_message(std::span<const std::byte> frame);

/// Writes a frame with an IGMP message, whose checksum it completes, from `us` to the multicast
/// address `to`. `out` has the message's bytes and kIgmpHeaderBytes.
void write_igmp(std::span<std::byte> out, const LocalAddress& us, std::uint32_t to,
                std::span<const std::byte> message);

/// Makes of a frame that is kEcho the reply to it, and returns its length: the request's, without
/// what Ethernet has padded.
std::size_t to_echo_reply(std::span<std::byte> frame);

/// Writes the headers of a datagram of `payload_bytes` <= 65507 from `us` to `to`: DF, TTL 64, IPv4
/// checksum right, UDP checksum 0 ("none").
void write_headers(std::span<std::byte, kHeaderBytes> out, const LocalAddress& us,
                   const Endpoint& to, std::size_t payload_bytes, std::uint16_t ip_id);

/// Stores the full UDP checksum into headers made by write_headers.
void write_udp_checksum(std::span<std::byte, kHeaderBytes> headers,
                        std::span<const std::byte> payload);

/// Stores only the pseudo header's sum, as ports that finish the checksum themselves expect.
void write_udp_pseudo_checksum(std::span<std::byte, kHeaderBytes> headers);

enum class ArpOperation : std::uint16_t { kRequest = 1, kReply = 2 };

/// IPv4 over Ethernet ARP; addresses in host byte order.
struct Arp {
  ArpOperation operation = ArpOperation::kRequest;
  MacAddress sender_mac{};
  std::uint32_t sender_ipv4 = 0;
  MacAddress target_mac{};
  std::uint32_t target_ipv4 = 0;
  friend bool operator==(const Arp&, const Arp&) = default;
};

/// Empty for anything that is not a well-formed IPv4-over-Ethernet request or reply.
std::optional<Arp> parse_arp(std::span<const std::byte> frame);

/// The frame of `arp`, to `destination`.
std::array<std::byte, kArpFrameBytes> make_arp(const Arp& arp, const MacAddress& destination);

}  // namespace sluice::net
