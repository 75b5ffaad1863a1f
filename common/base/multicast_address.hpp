// IPv4 multicast addresses (RFC 5771), and the Ethernet addresses to which they are sent (RFC
// 1112).
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

/// `ipv4` in host byte order.
constexpr bool is_multicast(std::uint32_t ipv4) {
  return ipv4 >> 28 == 0xe;
}

/// Whether it is in 224.0.0.0/24. Switches deliver these to every host, and routers do not forward
/// them, so a group of ours cannot be one of them.
constexpr bool is_link_local_multicast(std::uint32_t ipv4) {
  return ipv4 >> 8 == 0xe00000;
}

/// Each is shared by 32 groups: a station that receives one of them must also check the IPv4
/// address.
constexpr std::array<std::uint8_t, 6> multicast_mac(std::uint32_t ipv4) {
  return {0x01,
          0x00,
          0x5e,
          static_cast<std::uint8_t>(ipv4 >> 16 & 0x7f),
          static_cast<std::uint8_t>(ipv4 >> 8),
          static_cast<std::uint8_t>(ipv4)};
}

/// Consecutive groups, of which every job has one.
struct GroupRange {
  std::uint32_t first = 0;  ///< IPv4, host byte order
  std::uint32_t count = 0;  ///< 0: jobs have none

  constexpr std::uint32_t of(std::uint32_t job) const {
    return count == 0 ? 0 : first + job % count;
  }
};

}  // namespace sluice
