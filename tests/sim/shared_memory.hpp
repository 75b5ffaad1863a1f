// The memory that processes of a simulation share by reference, as on one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>

#include "aggregator/shared_memory.hpp"
#include "common/protocol/wire.hpp"
#include "tests/sim/random.hpp"

namespace sluice::sim {

/// Memory that is mapped as long as somebody holds it, whoever made it.
class SharedRegion {
 public:
  /// A tensor's, of the worker that has these slots. It outlives the region.
  SharedRegion(std::uint64_t id, std::span<std::byte> tensor, std::uint64_t slots)
      : id_(id), slots_(slots), memory_(tensor.data()), bytes_(tensor.size()) {}
  /// Zero; pages that are not touched cost nothing.
  SharedRegion(std::uint64_t id, std::size_t bytes)
      : id_(id),
        memory_(static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        bytes_(bytes) {}
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion() {
    if (slots_ == 0) munmap(memory_, bytes_);
  }

  std::uint64_t id() const { return id_; }
  std::uint64_t slots() const { return slots_; }
  std::span<std::byte> bytes() const { return {memory_, bytes_}; }

 private:
  const std::uint64_t id_;
  const std::uint64_t slots_ = 0;
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

  /// It maps some tensors, and others not.
  aggregator::SharedBytes<const std::byte> tensors(std::uint64_t id, std::uint64_t slots) override {
    const auto found = workers_.find(id);
    const bool refused = (id ^ refuses_) % 8 == 0;
    if (refused || found == workers_.end() || found->second->slots() != slots) return {};
    return {found->second, found->second->bytes()};
  }
  /// Something may have come or gone with every turn.
  std::uint64_t changes() const override { return ++changes_; }
  void refuse_tensors_like(std::uint64_t id) { refuses_ = id; }

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
    taken_[job].region = region;
    return {region, region->bytes()};
  }

  /// A session has begun with the region that it took.
  void begin(const Session& session) {
    Taken& taken = taken_[session.job];
    taken.slots = ResultSlots<std::byte>(taken.region->bytes(), session);
    taken.session = session;
  }
  /// The process has sent its last packet: a slot that it writes from now on is one in whose middle
  /// it dies.
  void dies() {
    for (auto& [job, taken] : taken_) taken.before = results_in(taken);
  }
  /// Leaves such slots written in part. Returns how many there are.
  std::uint64_t tear(Random& random) {
    std::uint64_t torn = 0;
    for (auto& [job, taken] : taken_) {
      const auto after = results_in(taken);
      for (std::size_t i = 0; i < after.size() && i < taken.before.size(); ++i) {
        if (std::memcmp(&after[i], &taken.before[i], sizeof after[i]) == 0) continue;
        ++torn;
        const auto slot = taken.at(i);
        for (std::byte& b : slot.packet.first(random.below(slot.packet.size()))) b = kTorn;
        for (std::byte& b : slot.sums.first(random.below(4096))) b = kTorn;
      }
    }
    return torn;
  }

  /// For the job's next session; all ranks get the same. `id` is what a new one is called.
  std::shared_ptr<SharedRegion> results_for(std::uint32_t job, std::uint64_t id) {
    auto& region = results_[job];
    if (!region) region = std::make_shared<SharedRegion>(id, results_bytes_);
    return region;
  }

 private:
  static constexpr std::byte kTorn{0xEE};

  struct Taken {
    std::shared_ptr<SharedRegion> region;
    Session session = {};
    ResultSlots<std::byte> slots = {};
    std::vector<wire::Result> before = {};

    std::size_t size() const {
      return std::size_t{session.streams_of(session.shard)} * session.history;
    }
    ResultSlot<std::byte> at(std::size_t i) const {
      const std::size_t stream = session.shard + i / session.history * session.shards;
      return slots.at(StreamId{static_cast<std::uint16_t>(stream)}, Round{i % session.history});
    }
  };

  static std::vector<wire::Result> results_in(const Taken& taken) {
    std::vector<wire::Result> results(taken.size());
    for (std::size_t i = 0; i < results.size(); ++i)
      std::memcpy(&results[i], taken.at(i).packet.data(), sizeof results[i]);
    return results;
  }

  mutable std::uint64_t changes_ = 0;
  std::uint64_t refuses_ = 0;
  const SharedRegions& workers_;
  const std::size_t results_bytes_;
  std::unordered_map<std::uint32_t, std::shared_ptr<SharedRegion>> results_;  // by job
  std::unordered_map<std::uint32_t, Taken> taken_;                            // by job
};

}  // namespace sluice::sim
