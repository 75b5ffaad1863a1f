#include "aggregator/mapped_memory.hpp"

#include <utility>

namespace sluice::aggregator {

MappedMemory::MappedMemory(const std::string& socket, const memory::RegionServerOptions& options,
                           std::shared_ptr<spdlog::logger> logger)
    : server_(socket, options, [logger](const std::string& why) {
        logger->info("a local worker's shared memory was refused: {}", why);
      }) {}

SharedBytes<const std::byte> MappedMemory::of_worker(std::uint64_t id) {
  auto arena = server_.arena(id);
  if (!arena) return {};
  const auto bytes = arena->bytes();
  return {std::move(arena), bytes};
}

std::size_t MappedMemory::results_bytes(std::uint32_t job, std::uint64_t id) {
  return server_.results_bytes(job, id);
}

SharedBytes<std::byte> MappedMemory::take_results(std::uint32_t job, std::uint64_t id) {
  auto region = server_.take_results(job, id);
  if (!region) return {};
  const auto bytes = region->bytes();
  return {std::move(region), bytes};
}

}  // namespace sluice::aggregator
