// The memory that a daemon shares with workers of its machine, as its lanes' engines see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/shared_memory.hpp"
#include "common/config/limited_log.hpp"
#include "common/memory/exchange.hpp"

namespace sluice::aggregator {

class MappedMemory {
 public:
  /// Serves workers at `socket`. Throws as memory::RegionServer.
  MappedMemory(const std::string& socket, const memory::RegionServerOptions& options,
               const std::shared_ptr<config::LimitedLog>& log);

  /// For the control thread, several times a second, and when the descriptor is readable.
  void poll() { server_.poll(); }
  int descriptor() const { return server_.descriptor(); }

  /// For a lane; it ends with this object.
  SharedMemory& of_lane(std::size_t lane) { return lanes_[lane]; }

 private:
  class OfLane final : public SharedMemory {
   public:
    OfLane(memory::RegionServer& server, std::uint16_t lane) : server_(server), lane_(lane) {}
    SharedBytes<const std::byte> of_worker(std::uint64_t id) override;
    SharedBytes<const std::byte> tensors(std::uint64_t id, std::uint64_t slots) override;
    std::uint64_t changes() const override { return server_.changes(); }
    std::size_t results_bytes(std::uint32_t job, std::uint64_t id) override;
    SharedBytes<std::byte> take_results(std::uint32_t job, std::uint64_t id) override;

   private:
    memory::RegionServer& server_;
    const std::uint16_t lane_;
  };

  memory::RegionServer server_;
  std::vector<OfLane> lanes_;
};

}  // namespace sluice::aggregator
