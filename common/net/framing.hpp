// Ethernet, ARP, IPv4, ICMP echo and UDP as bytes: the one place that reads and writes these
// headers. Pure functions without DPDK, so that every malformed frame can be tried in a test or a
// fuzzer.
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
/// What stands before every datagram's payload; no VLAN tag, no IPv4 options.
inline constexpr std::size_t kHeaderBytes = kEthernetBytes + kIpv4Bytes + kUdpBytes;
static_assert(limits::kMaxPayload == limits::kMaxMtu - kIpv4Bytes - kUdpBytes);
inline constexpr std::size_t kArpFrameBytes = 42;

/// The addresses of one of our ports; ipv4 in host byte order.
struct LocalAddress {
  MacAddress mac{};
  std::uint32_t ipv4 = 0;
};

/// Why a received frame is not a datagram for us; kDatagram when it is one.
enum class FrameVerdict : std::uint8_t {
  kDatagram,
  kArp,             ///< for parse_arp
  kEcho,            ///< an ICMP echo request: for to_echo_reply
  kTooShort,        ///< ends within a header
  kOtherMac,        ///< addressed to another station
  kOtherProtocol,   ///< neither IPv4 nor ARP, or IPv4 but neither UDP nor an echo request
  kBadIpHeader,     ///< version or header length impossible
  kIpOptions,       ///< legal, but nothing of ours sends them
  kFragment,        ///< we set DF and never fragment
  kBadIpChecksum,   //
  kOtherIp,         ///< addressed to another host
  kBadLength,       ///< IPv4 or UDP length beyond the frame or in conflict with each other
  kBadUdpChecksum,  //
  kBadIcmp,         ///< length or checksum
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
};

/// Judges a whole frame as received at `us`.
ParsedFrame parse_frame(std::span<const std::byte> frame, const LocalAddress& us,
                        Verified verified = {});

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
