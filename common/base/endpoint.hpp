// Where a datagram came from or goes to. The engines copy and compare it, and know no more.
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
  std::uint8_t lane = 0;  ///< of the aggregator that the peer is; a local port has a queue for each
  bool off_machine = false;  ///< the port leads out of this machine, through real wires
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

}  // namespace sluice
