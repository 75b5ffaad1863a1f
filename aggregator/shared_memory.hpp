// Memory of this machine in which blocks lie that go by reference, as an engine sees it. Mapping
// it, and passing it on, is others' business (common/memory).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/protocol/slots.hpp"

namespace sluice::aggregator {

/// Bytes that stay mapped as long as `keeps` is held.
template <class Byte>
struct SharedBytes {
  std::shared_ptr<const void> keeps = {};
  std::span<Byte> bytes = {};
  const std::atomic<bool>* lost = nullptr;  ///< whether an access has failed; null: none can
  explicit operator bool() const { return keeps != nullptr; }
};

class SharedMemory {
 public:
  /// The region that a worker of this machine has shared, for reading; none: no such.
  virtual SharedBytes<const std::byte> of_worker(std::uint64_t id) = 0;
  /// Whether this is the region that was given out for the job's next session, and how long it is;
  /// 0: it is not.
  virtual std::size_t results_bytes(std::uint32_t job, std::uint64_t id) = 0;
  /// Takes it for a session: the next one gets another.
  virtual SharedBytes<std::byte> take_results(std::uint32_t job, std::uint64_t id) = 0;

 protected:
  ~SharedMemory() = default;
};

/// Where a session's blocks and results lie.
class SharedBlocks {
 public:
  /// The regions are as long as the session needs.
  SharedBlocks(const Session& session, std::vector<SharedBytes<const std::byte>> of_ranks,
               SharedBytes<std::byte> results)
      : of_ranks_(std::move(of_ranks)),
        keeps_results_(std::move(results.keeps)),
        results_(results.bytes, session) {
    for (const auto& region : of_ranks_) slots_.emplace_back(region.bytes, session);
  }

  /// What a rank refers to in its slot.
  std::span<const std::byte> slot(Rank w, StreamId s) const { return slots_[w.value].at(s); }
  ResultSlot<std::byte> result(StreamId s, Round round) const { return results_.at(s, round); }
  /// A rank whose memory cannot be read any more. To be asked after what was read was used, and
  /// before anybody is told of the outcome: it may have been zeros.
  std::optional<Rank> lost_rank() const {
    std::atomic_signal_fence(std::memory_order_seq_cst);  // a handler says so, on this thread
    for (std::size_t r = 0; r < of_ranks_.size(); ++r)
      if (of_ranks_[r].lost != nullptr && of_ranks_[r].lost->load(std::memory_order_relaxed))
        return Rank{static_cast<std::uint16_t>(r)};
    return std::nullopt;
  }

 private:
  std::vector<SharedBytes<const std::byte>> of_ranks_;
  std::vector<ContributionSlots<const std::byte>> slots_;
  std::shared_ptr<const void> keeps_results_;
  ResultSlots<std::byte> results_;
};

}  // namespace sluice::aggregator
