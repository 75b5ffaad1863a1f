#include "aggregator/mapped_memory.hpp"

#include <utility>

namespace sluice::aggregator {

MappedMemory::MappedMemory(const std::string& socket, const memory::RegionServerOptions& options,
                           const std::shared_ptr<config::LimitedLog>& log)
    : server_(socket, options,
              {.refused =
                   [log](const std::string& why) {
                     log->log("refused shared memory", spdlog::level::info,
                              "a local worker's shared memory was refused: {}", why);
                   },
               .lost =
                   [log](pid_t process) {
                     log->log("lost shared memory", spdlog::level::warn,
                              "the memory that process {} shared cannot be read any more: jobs "
                              "that need it end",
                              process);
                   }}) {
  for (std::uint16_t lane = 0; lane < options.lanes; ++lane) lanes_.emplace_back(server_, lane);
}

SharedBytes<const std::byte> MappedMemory::OfLane::of_worker(std::uint64_t id) {
  return tensors(id, 0);
}

SharedBytes<const std::byte> MappedMemory::OfLane::tensors(std::uint64_t id, std::uint64_t slots) {
  auto arena = server_.arena(id, slots);
  if (!arena) return {};
  const auto bytes = arena->bytes();
  const auto& lost = arena->lost();
  return {std::move(arena), bytes, &lost};
}

std::size_t MappedMemory::OfLane::results_bytes(std::uint32_t job, std::uint64_t id) {
  return server_.results_bytes({job, lane_}, id);
}

SharedBytes<std::byte> MappedMemory::OfLane::take_results(std::uint32_t job, std::uint64_t id) {
  auto region = server_.take_results({job, lane_}, id);
  if (!region) return {};
  const auto bytes = region->bytes();
  return {std::move(region), bytes};
}

}  // namespace sluice::aggregator
