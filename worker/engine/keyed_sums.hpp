// The sums of one keyed call, as they come back: runs of pairs, stream by stream. They are put in
// order when the caller asks for them, in its memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::worker {

/// Memory for sums. It passes from op to op, because the first access to a page costs more than the
/// copy into it.
class ResultMemory {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

  struct Block {
    Block* next;
    std::byte bytes[kBlockBytes];
  };
  struct GiveBack {
    std::shared_ptr<ResultMemory> memory;
    void operator()(Block* block) const { memory->give_back(block); }
  };
  using Taken = std::unique_ptr<Block, GiveBack>;

  ResultMemory() = default;
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;
  ~ResultMemory();

  /// Only one thread may call it at a time; any may give back. The bytes have no defined values.
  static Taken take(const std::shared_ptr<ResultMemory>& memory);

 private:
  void give_back(Block* block);  // keeps limits::kSpareResultBlocks at most

  Block* spare_ = nullptr;  // of the thread that takes
  std::atomic<Block*> returned_{nullptr};
  std::atomic<std::size_t> kept_{0};
};

class KeyedSums {
 public:
  KeyedSums() = default;
  /// `type`: of the rows that the caller gets.
  KeyedSums(const KeyedGeometry& geometry, ElementType type, std::shared_ptr<ResultMemory> memory)
      : geometry_(geometry),
        row_bytes_(geometry.row_elements * element_bytes(type)),
        is_encoded_(geometry.type != type),
        memory_(std::move(memory)) {}

  /// All keys, rising, and their rows, as the caller gets them.
  struct InOrder {
    std::shared_ptr<const std::byte> keys = {}, rows = {};
    std::uint64_t size = 0;  ///< keys
  };
  /// For sums that have been put in order already.
  KeyedSums(const KeyedGeometry& geometry, ElementType type, InOrder pairs)
      : geometry_(geometry),
        row_bytes_(geometry.row_elements * element_bytes(type)),
        in_order_(std::move(pairs)),
        size_(in_order_.size) {}

  /// Keeps the pairs of a run that came on a stream, with local keys from `begin` to before `end`.
  /// Returns its number of keys; nothing, and keeps nothing, if it is malformed or has keys that
  /// are not of this op and stream.
  std::optional<std::size_t> add(StreamId s, std::span<const std::byte> run, std::uint64_t begin,
                                 std::uint64_t end);
  /// Releases all runs.
  void clear();

  std::size_t size() const { return size_; }  ///< keys
  std::size_t row_bytes() const { return row_bytes_; }
  /// Null if they have to be put in order.
  const InOrder* in_order() const { return in_order_.keys ? &in_order_ : nullptr; }

  /// Writes all keys, rising, and their rows, one behind the other. `parts`: so many neighbouring
  /// keys are one key, which is the first one divided by `parts`.
  void merge(std::span<std::uint64_t> keys, std::span<std::byte> rows,
             std::uint64_t parts = 1) const;
  /// Writes each row to its key's place in a tensor of key_bound rows.
  void scatter(std::span<std::byte> tensor) const;

  /// Sums that did not reach the threshold: at least a half, a quarter, an eighth of it, and less.
  std::array<std::uint64_t, wire::kRejectedClasses> rejected = {};

 private:
  /// A key, counted from the first one of its stripe.
  using InStripe = std::uint16_t;
  static_assert(kMostChunkBits + limits::kStripeChunkBits <= 16);

  /// Neighbouring pairs of a run in one stripe: keys, rising, and rows as the caller gets them.
  struct Segment {
    std::uint64_t stripe;  ///< its first key
    const InStripe* keys;
    const std::byte* rows;
    std::size_t size;

    std::uint64_t key(std::size_t i) const { return stripe + keys[i]; }
  };
  static constexpr std::size_t kSegmentsOfBlock = ResultMemory::kBlockBytes / sizeof(Segment);

  std::byte* take_memory(std::size_t bytes);
  void add_segments(std::uint16_t place, std::span<const std::uint64_t> local_keys,
                    const InStripe* keys, const std::byte* rows);
  void decode_rows(const RunView& run, const std::uint64_t* keys, std::byte* out) const;
  template <class F>
  void for_each_segment(const F& f) const;
  template <class F>
  void for_each_in_order(const F& f) const;

  KeyedGeometry geometry_;
  std::size_t row_bytes_ = 0;
  bool is_encoded_ = false;
  std::shared_ptr<ResultMemory> memory_;
  std::vector<ResultMemory::Taken> blocks_;          // pairs of runs, one behind the other, and
  std::size_t last_used_ = 0;                        // bytes of the last block
  std::vector<ResultMemory::Taken> segment_blocks_;  // Segments, as they came
  std::size_t segments_ = 0;
  std::vector<std::uint64_t> local_keys_;  // of the run that is added, and where its
  std::vector<std::uint32_t> begins_;      // segments begin
  InOrder in_order_ = {};                  // then there are none
  std::size_t size_ = 0;
};

}  // namespace sluice::worker
