#include "aggregator/daemon/lane_pools.hpp"

#include <algorithm>
#include <string>

#include "common/base/limits.hpp"
#include "common/base/packet_memory.hpp"
#include "common/net/framing.hpp"

namespace sluice::aggregator {
namespace {

std::uint16_t largest_mtu(const config::AggregatorConfig& config) {
  const std::uint16_t local = config.vhost_dir.empty() ? 0 : config.mtu;
  const std::uint16_t network = config.ports.empty() ? 0 : config.port_mtu;
  return std::max(local, network);
}

}  // namespace

std::size_t largest_payload(const config::AggregatorConfig& config) {
  return largest_mtu(config) - net::kIpv4Bytes - net::kUdpBytes;
}

LanePools::LanePools(const config::AggregatorConfig& config, std::uint32_t memory_mib,
                     spdlog::logger& logger) {
  const std::size_t budget = std::size_t{memory_mib - config::dpdk_memory_mib(config)} << 20;
  const std::size_t buffers = budget / packet_buffer_bytes(largest_mtu(config)) / config.lanes;
  const std::size_t ports =
      config.ports.size() + (config.vhost_dir.empty() ? 0 : config.vhost_max_ports);
  for (std::uint16_t lane = 0; lane < config.lanes; ++lane) {
    const std::string number = std::to_string(lane);
    OfLane& pools = pools_.emplace_back();
    pools.headers = std::make_unique<net::BufferPool>(
        "headers-" + number,
        std::max(limits::kMinHeaderBuffers, ports * limits::kHeaderBuffersPerPort), 0);
    pools.payloads =
        std::make_unique<net::BufferPool>("payloads-" + number, buffers, largest_payload(config));
  }
  logger.debug("packet memory: {} MiB, {} payload buffers of {} B for each of {} lanes", memory_mib,
               buffers, largest_payload(config), config.lanes);
}

std::vector<net::BufferPool*> LanePools::payloads() const {
  std::vector<net::BufferPool*> payloads;
  for (const OfLane& each : pools_) payloads.push_back(each.payloads.get());
  return payloads;
}

std::vector<PoolFigures> LanePools::figures() const {
  std::vector<PoolFigures> figures;
  for (const OfLane& each : pools_)
    figures.push_back({each.payloads->size(), each.payloads->available()});
  return figures;
}

}  // namespace sluice::aggregator
