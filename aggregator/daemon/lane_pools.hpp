// The packet memory of a daemon: each lane has its own buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aggregator/monitoring/figures.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/log/logger.hpp"
#include "common/net/pool.hpp"

namespace sluice::aggregator {

/// Bytes of the largest UDP payload that a port of the daemon carries.
std::size_t largest_payload(const config::AggregatorConfig& config);

class LanePools {
 public:
  /// `memory_mib`: of the whole daemon, with what DPDK takes. Throws sluice::Error kUnavailable.
  LanePools(const config::AggregatorConfig& config, std::uint32_t memory_mib,
            spdlog::logger& logger);

  net::BufferPool& payloads(std::uint16_t lane) const { return *pools_[lane].payloads; }
  net::BufferPool& headers(std::uint16_t lane) const { return *pools_[lane].headers; }

  /// By lane, as a port with a queue for each wants them.
  std::vector<net::BufferPool*> payloads() const;
  std::vector<PoolFigures> figures() const;

 private:
  struct OfLane {
    std::unique_ptr<net::BufferPool> payloads;
    std::unique_ptr<net::BufferPool> headers;
  };
  std::vector<OfLane> pools_;
};

}  // namespace sluice::aggregator
