// The memory that processes of a simulation share by reference, as on one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include <sys/mman.h>

#include "aggregator/shared_memory.hpp"

namespace sluice::sim {

/// Memory that is mapped as long as somebody holds it, whoever made it.
class SharedRegion {
 public:
  /// Zero; pages that are not touched cost nothing.
  SharedRegion(std::uint64_t id, std::size_t bytes)
      : id_(id),
        memory_(static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        bytes_(bytes) {}
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion() { munmap(memory_, bytes_); }

  std::uint64_t id() const { return id_; }
  std::span<std::byte> bytes() const { return {memory_, bytes_}; }

 private:
  const std::uint64_t id_;
  std::byte* const memory_;
  const std::size_t bytes_;
};

using SharedRegions = std::unordered_map<std::uint64_t, std::shared_ptr<SharedRegion>>;

/// What one incarnation of an aggregator has mapped of its workers', and made for results.
class AggregatorMemory final : public aggregator::SharedMemory {
 public:
  /// `workers`: what living workers share now.
  AggregatorMemory(const SharedRegions& workers, std::size_t results_bytes)
      : workers_(workers), results_bytes_(results_bytes) {}

  aggregator::SharedBytes<const std::byte> of_worker(std::uint64_t id) override {
    const auto found = workers_.find(id);
    if (found == workers_.end()) return {};
    return {found->second, found->second->bytes()};
  }
  std::size_t results_bytes(std::uint32_t job, std::uint64_t id) override {
    const auto found = results_.find(job);
    return found == results_.end() || found->second->id() != id ? 0 : found->second->bytes().size();
  }
  aggregator::SharedBytes<std::byte> take_results(std::uint32_t job, std::uint64_t id) override {
    const auto found = results_.find(job);
    if (found == results_.end() || found->second->id() != id) return {};
    const auto region = std::move(found->second);
    results_.erase(found);
    return {region, region->bytes()};
  }

  /// For the job's next session; all ranks get the same. `id` is what a new one is called.
  std::shared_ptr<SharedRegion> results_for(std::uint32_t job, std::uint64_t id) {
    auto& region = results_[job];
    if (!region) region = std::make_shared<SharedRegion>(id, results_bytes_);
    return region;
  }

 private:
  const SharedRegions& workers_;
  const std::size_t results_bytes_;
  std::unordered_map<std::uint32_t, std::shared_ptr<SharedRegion>> results_;  // by job
};

}  // namespace sluice::sim
