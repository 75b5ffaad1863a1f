#include "aggregator/mapped_memory.hpp"

#include <utility>

#include "common/config/log.hpp"
#include "common/net/clock.hpp"

namespace sluice::aggregator {

MappedMemory::MappedMemory(const std::string& socket, const memory::RegionServerOptions& options,
                           std::uint32_t log_rate_limit, std::shared_ptr<spdlog::logger> logger)
    : refusals_logged_(log_rate_limit),
      server_(socket, options,
              {.refused =
                   [this, logger](const std::string& why) {
                     config::log_limited(*logger, refusals_logged_, net::now(), spdlog::level::info,
                                         "a local worker's shared memory was refused: {}", why);
                   },
               .lost =
                   [this, logger](pid_t process) {
                     config::log_limited(*logger, refusals_logged_, net::now(), spdlog::level::warn,
                                         "the memory that process {} shared cannot be read any "
                                         "more: jobs that need it end",
                                         process);
                   }}) {}

SharedBytes<const std::byte> MappedMemory::of_worker(std::uint64_t id) {
  return tensors(id, 0);
}

SharedBytes<const std::byte> MappedMemory::tensors(std::uint64_t id, std::uint64_t slots) {
  auto arena = server_.arena(id, slots);
  if (!arena) return {};
  const auto bytes = arena->bytes();
  const auto& lost = arena->lost();
  return {std::move(arena), bytes, &lost};
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
