// The memory that a daemon shares with workers of its machine, as its engine sees it.
#pragma once

#include <string>

#include "aggregator/shared_memory.hpp"
#include "common/config/rate_limit.hpp"
#include "common/log/logger.hpp"
#include "common/memory/exchange.hpp"

namespace sluice::aggregator {

class MappedMemory final : public SharedMemory {
 public:
  /// Serves workers at `socket`. Throws as memory::RegionServer.
  MappedMemory(const std::string& socket, const memory::RegionServerOptions& options,
               std::uint32_t log_rate_limit, std::shared_ptr<spdlog::logger> logger);

  /// For the control thread, several times a second, and when the descriptor is readable.
  void poll() { server_.poll(); }
  int descriptor() const { return server_.descriptor(); }

  // For the lane.
  SharedBytes<const std::byte> of_worker(std::uint64_t id) override;
  SharedBytes<const std::byte> tensors(std::uint64_t id, std::uint64_t slots) override;
  std::uint64_t changes() const override { return server_.changes(); }
  std::size_t results_bytes(std::uint32_t job, std::uint64_t id) override;
  SharedBytes<std::byte> take_results(std::uint32_t job, std::uint64_t id) override;

 private:
  config::RateLimit refusals_logged_;
  memory::RegionServer server_;
};

}  // namespace sluice::aggregator
