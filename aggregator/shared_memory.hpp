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
  /// A region with tensors, of the same worker as `slots`. For reading; none: no such.
  virtual SharedBytes<const std::byte> tensors(std::uint64_t id, std::uint64_t slots) = 0;
  /// Rises after some region of a worker is not to be had any more.
  virtual std::uint64_t changes() const = 0;
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
  using Region = SharedBytes<const std::byte>;

  /// `slots`: each rank's, as `memory` knows them. The regions are as long as the session needs.
  SharedBlocks(const Session& session, SharedMemory& memory, std::vector<std::uint64_t> slots,
               SharedBytes<std::byte> results);

  /// Whether all ranks' slots are there, and long enough.
  bool complete() const { return complete_; }

  /// What a rank refers to in its slot.
  std::span<const std::byte> slot(Rank w, StreamId s) const { return ranks_[w.value].slots.at(s); }
  ResultSlot<std::byte> result(StreamId s, Round round) const { return results_.at(s, round); }
  /// A region with tensors of this rank; null: it has no such. Who reads it holds it meanwhile.
  std::shared_ptr<const Region> tensors(Rank w, std::uint64_t id);
  /// Lets go of what workers do not share any more. False if some of that is being read.
  bool let_go();

  /// Whether the job has ended for some rank, so that what was read of its tensors may be wrong. To
  /// be asked as lost_rank().
  bool has_ended_for_some() const;
  /// A rank whose memory cannot be read any more. To be asked after what was read was used, and
  /// before anybody is told of the outcome: it may have been zeros.
  std::optional<Rank> lost_rank() const;

 private:
  struct OfRank {
    std::uint64_t slots_id = 0;
    Region keeps_slots = {};
    ContributionSlots<const std::byte> slots = {};
    std::vector<std::pair<std::uint64_t, std::shared_ptr<const Region>>> tensors = {};  // by id
  };

  SharedMemory& memory_;
  std::vector<OfRank> ranks_;
  bool complete_ = true;
  std::shared_ptr<const void> keeps_results_;
  ResultSlots<std::byte> results_;
};

}  // namespace sluice::aggregator
