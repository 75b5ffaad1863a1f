// The sums of dense blocks, one per column: what the running round of a stream sums, and how. Who
// contributes, and when the round ends, it does not know.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "aggregator/shared_memory.hpp"
#include "aggregator/stream_memory.hpp"
#include "common/base/ids.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

class BlockCombiner {
 public:
  /// Takes all the memory that it will need.
  explicit BlockCombiner(const Session& session);

  /// Runs the op that a packet with a descriptor tells of, beginning with the packet's blocks: an
  /// op's first ones, unless a stream is `resumed` amidst it. False, and nothing changes, if this
  /// session cannot have such an op, or such blocks, on this stream.
  bool begin(const Packet& packet, StreamId stream, const Session& session, bool resumed);

  const wire::Shape& shape() const { return shape_; }
  const Geometry& geometry() const { return geometry_; }
  /// The blocks that the round sums, by column.
  std::span<const BlockIndex> current() const { return {current_.data(), geometry_.columns}; }

  /// Whether a contribution is about the round's blocks. `next`: what its rank told last; empty
  /// where any block may be present.
  bool fits(const Packet& packet, std::span<const BlockIndex> next) const;
  /// Whether a packet of the same shape is about other blocks.
  bool contradicts(const Packet& packet) const;

  /// Adds the blocks in a packet. Lowest rank first.
  void add(Rank w, const Packet& packet);
  /// Notes where a rank's blocks lie: in its slot, or in `tensors`. They are
  /// added when the sums are written, in one pass: so no sum is kept elsewhere meanwhile. In any
  /// order of ranks. The packet's references are within both.
  void refer(Rank w, const Packet& packet, std::span<const std::byte> slot,
             std::shared_ptr<const SharedBlocks::Region> tensors);

  bool is_empty(std::uint8_t column) const { return owners_[column] == 0; }
  bool is_empty() const;
  bool is_of_one(std::uint8_t column, Rank w) const {
    return owners_[column] == 1 && last_owner_[column] == w;
  }

  /// Bytes of the sums as they travel.
  std::size_t sums_bytes() const;
  /// Writes the columns, but for what is wanted next, and the sums, once a round: one after the
  /// other in the packet, or where the slot has room for each column's.
  void write(std::span<wire::Column> columns, std::byte* in_packet);
  void write_to_slot(std::span<wire::Column> columns, std::byte* slot);

  /// The next round sums these blocks.
  void start_round(std::span<const BlockIndex> current);

 private:
  struct FreeAligned {
    void operator()(std::byte* p) const {
      ::operator delete (p, std::align_val_t{numeric::kAccumulatorAlignment});
    }
  };

  std::byte* accumulator(std::uint8_t column) {
    return accumulators_.get() + column * accumulator_stride_;
  }
  const std::byte*& reference(std::uint8_t column, std::uint16_t rank) {
    return references_[column * std::size_t{ranks_} + rank];
  }
  std::byte* add_references(std::uint8_t column, std::uint32_t elements);
  void write_sum(std::uint8_t column, std::byte* sum, std::byte* out) const;

  wire::Shape shape_{};
  Geometry geometry_{};
  const numeric::BlockReduction* reduction_ = nullptr;
  std::size_t accumulator_stride_ = 0;
  std::unique_ptr<std::byte, FreeAligned> accumulators_;
  std::vector<BlockIndex> current_;    // by column
  std::vector<std::uint16_t> owners_;  // by column: contributions added so far
  std::vector<Rank> last_owner_;       // by column: whose was added last, if any was
  std::uint16_t ranks_;
  std::vector<const std::byte*> references_;  // by column and rank; null: has none to add
  std::vector<std::shared_ptr<const SharedBlocks::Region>> referenced_;  // by rank
};

// Of every packet: inline, for the stream to have them in one piece.
inline bool BlockCombiner::fits(const Packet& packet, std::span<const BlockIndex> next) const {
  if (!wire::same(packet.shape(), shape_)) return false;
  const std::uint32_t stride = geometry_.stride();
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const BlockIndex index{column.index};
    const bool present = (column.flags & wire::kColumnPresent) != 0;
    if (index != current_[c]) return false;
    if (!next.empty() && present && next[c] != index) return false;  // an owner's may prove zero
    if (column.next != kNoBlock.value && (column.next - index.value) % stride != 0) return false;
    ++c;
  }
  return true;
}

inline void BlockCombiner::add(Rank w, const Packet& packet) {
  const auto add = [&](std::uint8_t c, std::span<const std::byte> block) {
    assert(owners_[c] == 0 || last_owner_[c] < w);  // the same bits, whatever the order of arrival
    last_owner_[c] = w;
    const std::size_t elements = block.size() / element_bytes(geometry_.type);
    const auto accumulate = owners_[c]++ == 0 ? reduction_->load : reduction_->combine;
    accumulate(accumulator(c), block.data(), elements);
  };
  packet.for_each_block(add);
}

inline void BlockCombiner::refer(Rank w, const Packet& packet, std::span<const std::byte> slot,
                                 std::shared_ptr<const SharedBlocks::Region> tensors) {
  const auto note = [&](std::uint8_t c, const std::byte* block) {
    ++owners_[c];
    last_owner_[c] = w;
    reference(c, w.value) = block;
  };
  assert(packet.referenced_bytes() <= slot.size());
  packet.for_each_in_slot(
      slot, [&](std::uint8_t c, std::span<const std::byte> block) { note(c, block.data()); });
  if (tensors == nullptr) return;
  packet.for_each_in_tensor(tensors->bytes.size(), [&](std::uint8_t c, std::uint64_t offset) {
    note(c, tensors->bytes.data() + offset);
  });
  referenced_[w.value] = std::move(tensors);
}

/// The sum of a column's references, lowest rank first, in an accumulator that stays in the first
/// cache.
inline std::byte* BlockCombiner::add_references(std::uint8_t column, std::uint32_t elements) {
  std::byte* const sum = accumulators_.get();
  bool is_first = true;
  for (std::uint16_t r = 0; r < ranks_; ++r) {
    const std::byte* const block = std::exchange(reference(column, r), nullptr);
    if (block == nullptr) continue;
    (std::exchange(is_first, false) ? reduction_->load : reduction_->combine)(sum, block, elements);
  }
  return sum;
}

inline bool BlockCombiner::is_empty() const {
  return std::all_of(owners_.begin(), owners_.end(), [](auto n) { return n == 0; });
}

inline std::size_t BlockCombiner::sums_bytes() const {
  std::size_t bytes = 0;
  for (std::uint8_t c = 0; c < geometry_.columns; ++c)
    if (owners_[c] != 0) bytes += geometry_.bytes_of(current_[c]);
  return bytes;
}

inline void BlockCombiner::write_sum(std::uint8_t column, std::byte* sum, std::byte* out) const {
  const std::uint32_t elements = geometry_.elements_of(current_[column]);
  assert(owners_[column] <= ranks_);
  if (owners_[column] < ranks_ && reduction_->combine_zero != nullptr)
    reduction_->combine_zero(sum, elements);
  reduction_->store(out, sum, elements, ranks_);
}

inline void BlockCombiner::write(std::span<wire::Column> columns, std::byte* in_packet) {
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    columns[c].index = current_[c].value;
    if (owners_[c] == 0) continue;
    columns[c].flags = wire::kColumnPresent;
    write_sum(c, accumulator(c), in_packet);
    in_packet += geometry_.bytes_of(current_[c]);
  }
}

inline void BlockCombiner::write_to_slot(std::span<wire::Column> columns, std::byte* slot) {
  const std::size_t stride = geometry_.full_block_bytes();
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    columns[c].index = current_[c].value;
    if (owners_[c] == 0) continue;
    columns[c].flags = wire::kColumnReferenced;
    write_sum(c, add_references(c, geometry_.elements_of(current_[c])), slot + c * stride);
  }
}

inline void BlockCombiner::start_round(std::span<const BlockIndex> current) {
  for (auto& region : referenced_) region.reset();
  std::fill(owners_.begin(), owners_.end(), std::uint16_t{0});
  std::copy(current.begin(), current.end(), current_.begin());
}

}  // namespace sluice::aggregator
