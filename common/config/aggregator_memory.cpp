#include <algorithm>

#include <unistd.h>

#include "common/base/limits.hpp"
#include "common/base/packet_memory.hpp"
#include "common/config/aggregator_config.hpp"

namespace sluice::config {

std::uint64_t ring_buffers(const AggregatorConfig& config) {
  const std::uint64_t vhost_ports = config.vhost_dir.empty() ? 0 : config.vhost_max_ports;
  const std::uint64_t given_to_lanes =
      config.ports.empty() ? 0 : (config.lanes - std::uint64_t{1}) * limits::kHandOverFrames;
  return limits::kVhostPortBuffers * vhost_ports +
         limits::kNetworkPortBuffers * config.ports.size() + given_to_lanes;
}

std::uint32_t dpdk_memory_mib(const AggregatorConfig& config) {
  return limits::kDaemonDpdkMib + (config.lanes - 1u) * limits::kFurtherLaneDpdkMib;
}

std::uint32_t packet_memory_mib(const AggregatorConfig& config) {
  if (config.memory_mib != 0) return config.memory_mib;
  constexpr std::uint64_t kMib = 1 << 20;
  const bool local = !config.vhost_dir.empty();
  const std::uint64_t vhost_ports = local ? config.vhost_max_ports : 0;
  const std::uint64_t ports = config.ports.size();
  const std::uint64_t shards = std::uint64_t{config.shards} * config.lanes;
  const std::uint64_t streams = (config.streams + shards - 1) / shards;
  const std::uint64_t mtu = std::max(local ? config.mtu : 0, ports != 0 ? config.port_mtu : 0);
  const std::uint64_t buffers =
      std::min<std::uint64_t>(config.max_jobs, limits::kFullJobs) * streams * (config.history + 2) +
      streams * (vhost_ports + limits::kHeldOfNetworkPort * ports) + ring_buffers(config);
  return static_cast<std::uint32_t>(dpdk_memory_mib(config) +
                                    (config.lanes * buffers * packet_buffer_bytes(mtu) + kMib - 1) /
                                        kMib);
}

std::uint32_t least_memory_mib(AggregatorConfig config) {
  config.memory_mib = 0;
  config.max_jobs = 1;
  return packet_memory_mib(config);
}

void check_machine_has(std::uint64_t packet_memory_mib) {
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  const std::uint64_t machine_mib = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) >> 20;
  if (packet_memory_mib > machine_mib)
    throw Error(ErrorCode::kUnavailable, std::to_string(packet_memory_mib) +
                                             " MiB of packet memory are wanted, and this machine "
                                             "has " +
                                             std::to_string(machine_mib) + " MiB in all");
}

}  // namespace sluice::config
