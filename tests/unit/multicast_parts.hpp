// Frames to multicast groups, made without the code that they test.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/multicast_address.hpp"
#include "common/net/framing.hpp"
#include "tests/unit/frame_parts.hpp"

namespace sluice::net::testing {

inline constexpr LocalAddress kHost{{0x02, 0, 0, 0, 0, 0x01}, 0x0a4d'0101};       // 10.77.1.1
inline constexpr LocalAddress kSender{{0x02, 0, 0, 0, 0, 0x02}, 0x0a4d'0001};     // 10.77.0.1
inline constexpr std::array<std::uint32_t, 2> kGroups{0xefc0'0001, 0xefc0'0101};  // 239.192.x.1
inline constexpr LocalAddress kMember{kHost.mac, kHost.ipv4, kGroups};
inline constexpr std::uint16_t kOurPort = 4748;
inline constexpr std::uint16_t kTheirPort = 4747;

inline unsigned checksum(std::span<const std::byte> in, unsigned sum = 0) {
  return ~reference_sum(in, sum) & 0xffff;
}

inline void set16(Bytes& frame, std::size_t at, unsigned value) {
  frame[at] = static_cast<std::byte>(value >> 8);
  frame[at + 1] = static_cast<std::byte>(value);
}

inline void set_ip(Bytes& frame, std::size_t at, std::uint32_t address) {
  set16(frame, at, address >> 16);
  set16(frame, at + 2, address & 0xffff);
}

/// The IPv4 header's checksum, after a field was changed; and UDP's gets no more computed.
inline void repair(Bytes& frame) {
  const std::size_t header = std::max(20u, (static_cast<unsigned>(frame[14]) & 0xf) * 4);
  set16(frame, 24, 0);
  if (frame.size() >= 14 + header) set16(frame, 24, checksum(std::span(frame).subspan(14, header)));
  if (frame[23] == std::byte{17} && header == 20 && frame.size() >= 42) set16(frame, 40, 0);
}

/// All checksums of a frame, as far as it has any.
inline void repair_all(Bytes& frame) {
  if (frame.size() < 34) return;
  repair(frame);
  const std::size_t header = std::max(20u, (static_cast<unsigned>(frame[14]) & 0xf) * 4);
  const std::size_t length =
      static_cast<std::size_t>(frame[16]) << 8 | static_cast<std::size_t>(frame[17]);
  const std::size_t end = std::min(14 + length, frame.size());
  const bool is_icmp = frame[23] == std::byte{1};
  const bool is_igmp = frame[23] == std::byte{2};
  if ((!is_icmp && !is_igmp) || end < 14 + header + 4) return;
  set16(frame, 14 + header + 2, 0);
  set16(frame, 14 + header + 2, checksum(std::span(frame).subspan(14 + header, end - 14 - header)));
}

/// To the multicast address `to`, and its Ethernet address.
inline void address_to(Bytes& frame, std::uint32_t to) {
  const auto mac = multicast_mac(to);
  std::ranges::copy(std::as_bytes(std::span(mac)), frame.begin());
  set_ip(frame, 30, to);
}

inline Bytes datagram_to(const LocalAddress& to, std::size_t size) {
  Endpoint peer;
  peer.mac = to.mac;
  peer.ipv4 = to.ipv4;
  peer.udp_port = kOurPort;
  peer.local_udp_port = kTheirPort;
  Bytes frame(kHeaderBytes + size);
  for (std::size_t i = 0; i < size; ++i) frame[kHeaderBytes + i] = static_cast<std::byte>(i * 7);
  const std::span<std::byte, kHeaderBytes> headers(frame.data(), kHeaderBytes);
  write_headers(headers, kSender, peer, size, 1);
  write_udp_checksum(headers, std::span(frame).subspan(kHeaderBytes));
  return frame;
}

inline Bytes group_datagram(std::uint32_t group, std::size_t size) {
  return datagram_to({multicast_mac(group), group}, size);
}

/// A general query of version 3, to be answered within `code` tenths of a second.
inline Bytes query_message(int code = 10) {
  Bytes message = bytes({0x11, code, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0});
  set16(message, 2, checksum(message));
  return message;
}

/// So many bytes of options: a Router Alert, and nothing.
inline Bytes igmp_frame(std::uint32_t to, const Bytes& message, std::size_t options = 4) {
  Bytes frame(34 + options);
  address_to(frame, to);
  std::ranges::copy(std::as_bytes(std::span(kSender.mac)), frame.begin() + 6);
  set16(frame, 12, 0x0800);
  set16(frame, 14, static_cast<unsigned>(0x4500 + (options / 4 << 8)));
  set16(frame, 16, static_cast<unsigned>(20 + options + message.size()));
  set16(frame, 22, 0x0102);
  set_ip(frame, 26, kSender.ipv4);
  if (options != 0) set_ip(frame, 34, 0x9404'0000);
  repair(frame);
  frame.insert(frame.end(), message.begin(), message.end());
  return frame;
}

inline Bytes query_frame(std::uint32_t to, std::size_t options = 4) {
  return igmp_frame(to, query_message(), options);
}

}  // namespace sluice::net::testing
