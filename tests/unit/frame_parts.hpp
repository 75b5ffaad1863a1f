// Frames as they are on the wire, made and spoilt by hand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "common/base/endpoint.hpp"
#include "common/base/udp_checksum.hpp"
#include "common/net/framing.hpp"
#include "common/net/io_counters.hpp"

namespace sluice::net::testing {

using Bytes = std::vector<std::byte>;

inline Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

inline Bytes pattern(std::size_t size, unsigned seed = 0) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 7 + seed);
  return out;
}

inline Bytes copy_of(std::span<const std::byte> in) {
  return {in.begin(), in.end()};
}

// The Internet checksum by the letter of RFC 1071: sixteen bits at a time, carries added at once.
inline unsigned reference_sum(std::span<const std::byte> in, unsigned sum = 0) {
  for (std::size_t i = 0; i < in.size(); i += 2) {
    const unsigned high = static_cast<unsigned>(in[i]) << 8;
    const unsigned low = i + 1 < in.size() ? static_cast<unsigned>(in[i + 1]) : 0;
    sum += high | low;
    if (sum > 0xffff) sum -= 0xffff;
  }
  return sum;
}

// UDP's, of a whole frame: pseudo header, UDP header, payload.
inline unsigned reference_udp_sum(const Bytes& frame) {
  const std::span<const std::byte> all(frame);
  unsigned sum = reference_sum(all.subspan(26, 8));
  sum = reference_sum(bytes({0, 17}), sum);
  sum = reference_sum(all.subspan(38, 2), sum);
  return reference_sum(all.subspan(34), sum);
}

inline const LocalAddress kUs{{0x02, 0, 0, 0, 0, 0x01}, 0xC0A8'0001};    // 192.168.0.1
inline const LocalAddress kThem{{0x02, 0, 0, 0, 0, 0x02}, 0xC0A8'00C7};  // 192.168.0.199

inline Endpoint endpoint(const LocalAddress& peer, std::uint16_t theirs, std::uint16_t ours) {
  Endpoint e;
  e.mac = peer.mac;
  e.ipv4 = peer.ipv4;
  e.udp_port = theirs;
  e.local_udp_port = ours;
  return e;
}

inline Bytes frame_with(const LocalAddress& from, const Endpoint& to, const Bytes& payload,
                        UdpChecksum checksum = UdpChecksum::kSoftware) {
  Bytes frame(kHeaderBytes + payload.size());
  const std::span<std::byte, kHeaderBytes> headers(frame.data(), kHeaderBytes);
  write_headers(headers, from, to, payload.size(), 1);
  if (checksum == UdpChecksum::kSoftware) write_udp_checksum(headers, payload);
  std::copy(payload.begin(), payload.end(), frame.begin() + kHeaderBytes);
  return frame;
}

// Puts the IPv4 header checksum right again after a field was changed.
inline void repair_ip(Bytes& frame) {
  frame[24] = frame[25] = std::byte{0};
  const unsigned sum = ~reference_sum(std::span(frame).subspan(14, 20));
  frame[24] = static_cast<std::byte>(sum >> 8);
  frame[25] = static_cast<std::byte>(sum);
}

struct FrameFault {
  const char* name;
  FrameVerdict verdict;
  std::uint64_t IoCounters::*counter;
  void (*spoil)(Bytes&);
};

inline const FrameFault kFrameFaults[] = {
    {"shorter than Ethernet", FrameVerdict::kTooShort, &IoCounters::rx_too_short,
     [](Bytes& f) { f.resize(13); }},
    {"ends within the headers", FrameVerdict::kTooShort, &IoCounters::rx_too_short,
     [](Bytes& f) { f.resize(41); }},
    {"for another station", FrameVerdict::kOtherMac, &IoCounters::rx_other_mac,
     [](Bytes& f) { f[5] ^= std::byte{0x80}; }},
    {"a broadcast that is not ARP", FrameVerdict::kOtherMac, &IoCounters::rx_other_mac,
     [](Bytes& f) { std::fill_n(f.begin(), 6, std::byte{0xff}); }},
    {"IPv6", FrameVerdict::kOtherProtocol, &IoCounters::rx_other_protocol,
     [](Bytes& f) { f[12] = std::byte{0x86}, f[13] = std::byte{0xdd}; }},
    {"version 5", FrameVerdict::kBadIpHeader, &IoCounters::rx_bad_ip_header,
     [](Bytes& f) { f[14] = std::byte{0x55}, repair_ip(f); }},
    {"header of four words", FrameVerdict::kBadIpHeader, &IoCounters::rx_bad_ip_header,
     [](Bytes& f) { f[14] = std::byte{0x44}, repair_ip(f); }},
    {"IPv4 options", FrameVerdict::kIpOptions, &IoCounters::rx_ip_options,
     [](Bytes& f) { f[14] = std::byte{0x46}, repair_ip(f); }},
    {"IPv4 checksum", FrameVerdict::kBadIpChecksum, &IoCounters::rx_bad_ip_checksum,
     [](Bytes& f) { f[24] ^= std::byte{1}; }},
    {"for another host", FrameVerdict::kOtherIp, &IoCounters::rx_other_ip,
     [](Bytes& f) { f[33] ^= std::byte{1}, repair_ip(f); }},
    {"first fragment", FrameVerdict::kFragment, &IoCounters::rx_fragment,
     [](Bytes& f) { f[20] = std::byte{0x20}, repair_ip(f); }},
    {"last fragment", FrameVerdict::kFragment, &IoCounters::rx_fragment,
     [](Bytes& f) { f[21] = std::byte{0x01}, repair_ip(f); }},
    {"TCP", FrameVerdict::kOtherProtocol, &IoCounters::rx_other_protocol,
     [](Bytes& f) { f[23] = std::byte{6}, repair_ip(f); }},
    {"IPv4 length beyond the frame", FrameVerdict::kBadLength, &IoCounters::rx_bad_length,
     [](Bytes& f) { f[17] = std::byte{0xff}, f[39] = std::byte{0xff - 20}, repair_ip(f); }},
    {"UDP length beyond IPv4's", FrameVerdict::kBadLength, &IoCounters::rx_bad_length,
     [](Bytes& f) { f[39] = std::byte{0xff}; }},
    {"UDP length below its header's", FrameVerdict::kBadLength, &IoCounters::rx_bad_length,
     [](Bytes& f) { f[39] = std::byte{7}, f[17] = std::byte{27}, repair_ip(f); }},
    {"payload bit", FrameVerdict::kBadUdpChecksum, &IoCounters::rx_bad_udp_checksum,
     [](Bytes& f) { f.back() ^= std::byte{0x10}; }},
    {"nobody listens", FrameVerdict::kDatagram, &IoCounters::rx_port_closed,
     [](Bytes& f) { f[36] ^= std::byte{1}, f[40] = f[41] = std::byte{0}; }},
};

inline constexpr std::uint16_t kListening = 0x1771;

/// An ICMP echo request of kThem, as ping(8) sends it, with so many bytes of data; padded.
inline Bytes echo_request(const LocalAddress& to, std::size_t data_bytes) {
  Bytes data(data_bytes);
  for (std::size_t i = 0; i < data_bytes; ++i) data[i] = static_cast<std::byte>(i);
  Bytes frame = frame_with(kThem, endpoint(to, 0, 0), data, UdpChecksum::kNone);
  frame[23] = std::byte{1};
  repair_ip(frame);
  const std::uint8_t head[] = {8, 0, 0, 0, 0x12, 0x34, 0, 7};  // id, number
  std::memcpy(&frame[34], head, sizeof head);
  const unsigned sum = ~reference_sum(std::span(frame).subspan(34));
  frame[36] = static_cast<std::byte>(sum >> 8);
  frame[37] = static_cast<std::byte>(sum);
  if (frame.size() < 60) frame.resize(60);
  return frame;
}

inline constexpr std::uint16_t kVlan = 7;

/// As it is on the wire, in a VLAN; `control` is all that the tag says.
inline Bytes tagged(const Bytes& frame, std::uint16_t control = kVlan) {
  Bytes out(kTagBytes);
  out.insert(out.end(), frame.begin(), frame.end());
  put_in_tag(out, control);
  return out;
}

}  // namespace sluice::net::testing
