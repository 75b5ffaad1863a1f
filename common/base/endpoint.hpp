// The source or destination of a datagram. The engines only copy and compare it.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

struct Endpoint {
  std::uint16_t port_id = 0;          ///< local network port (DPDK's number)
  std::array<std::uint8_t, 6> mac{};  ///< the peer's Ethernet address
  std::uint32_t ipv4 = 0;             ///< the peer's address, host byte order
  std::uint16_t udp_port = 0;         ///< the peer's UDP port, host byte order
  std::uint16_t local_udp_port = 0;   ///< ours, host byte order
  /// The aggregator's lane, if the peer is an aggregator; a local port has a queue for each.
  std::uint8_t lane = 0;
  bool off_machine = false;  ///< the port leads to other machines
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

}  // namespace sluice
