// The UDP ports from which a worker sends. A device may spread packets over its queues by a hash of
// addresses and ports (RSS). A source port is chosen so that the hash leads to the queue of the
// right lane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/limits.hpp"

namespace sluice {

/// A worker's default, with which it begins, and which it keeps if no aggregator chooses another
/// one.
inline constexpr std::uint16_t kWorkerUdpPort = 4748;

/// The dynamic ports (RFC 6335) are divided among the lanes: those of lane l begin at
/// kFirstSourcePort + l * kSourcePortsOfLane.
inline constexpr std::uint16_t kFirstSourcePort = 49152;
inline constexpr std::uint16_t kSourcePortsOfLane = 2048;
static_assert(kFirstSourcePort + limits::kMaxLanes * kSourcePortsOfLane == 65536);

constexpr std::uint16_t first_source_port(std::size_t lane) {
  return static_cast<std::uint16_t>(kFirstSourcePort + lane * kSourcePortsOfLane);
}
constexpr bool is_source_port_of(std::size_t lane, std::uint16_t udp_port) {
  const std::size_t first = first_source_port(lane);
  return udp_port >= first && udp_port < first + kSourcePortsOfLane;
}

/// By lane; 0: any port.
using SourcePorts = std::array<std::uint16_t, limits::kMaxLanes>;

}  // namespace sluice
