// The sums of dense blocks, one per column: what the running round of a stream sums, and how. This
// class does not know which ranks contribute, nor when the round ends.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "aggregator/engine/job_figures.hpp"
#include "aggregator/engine/stream_memory.hpp"
#include "common/base/ids.hpp"
#include "common/numeric/encoding.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

class BlockCombiner {
 public:
  /// Allocates all the memory that it will need.
  explicit BlockCombiner(const Session& session);

  /// Begins the op that the packet's descriptor names, at the packet's blocks. These are the op's
  /// first blocks, unless the stream is `resumed` in the middle of the op. Returns false and
  /// changes nothing if this session cannot have such an op, or such blocks, on this stream.
  bool begin(const Packet& packet, StreamId stream, const Session& session, bool resumed);

  const wire::Shape& shape() const { return shape_; }
  const Geometry& geometry() const { return geometry_; }
  /// The blocks that the round sums, by column.
  std::span<const BlockIndex> current() const { return {current_.data(), geometry_.columns}; }

  /// Whether a contribution is about the round's blocks. `next` is what its rank has announced
  /// last; it is empty where any block may be present.
  bool fits(const Packet& packet, std::span<const BlockIndex> next) const;
  /// Whether a packet of the same shape is about other blocks.
  bool contradicts(const Packet& packet) const;

  /// Adds the blocks in a packet. Packets must come in ascending order of ranks.
  void add(Rank w, const Packet& packet);
  bool is_empty(std::uint8_t column) const { return owners_[column] == 0; }
  bool is_empty() const;
  bool is_of_one(std::uint8_t column, Rank w) const {
    return owners_[column] == 1 && last_owner_[column] == w;
  }

  /// The unfinished sum of a column: it is not rounded to the element type, not divided, and does
  /// not include the zero blocks of the other ranks. An inner node of a tree sends it on.
  struct PartialSum {
    std::span<const std::byte> accumulators;  ///< numeric::accumulator_bytes() for each element
    std::uint16_t ranks = 0;                  ///< whose blocks are in it; 0: there is no sum
  };
  PartialSum partial_sum(std::uint8_t column) const;

  /// Bytes of the sums as they travel.
  std::size_t sums_bytes() const;
  /// Counts the blocks that the round has summed, and the zero blocks between them and those of the
  /// next round.
  void count(std::span<const BlockIndex> next, JobCounters& counters) const;
  /// Writes the columns, except the wanted blocks, and the sums, one after the other. Is called
  /// once a round.
  void write(std::span<wire::Column> columns, std::byte* in_packet);

  /// The next round sums these blocks.
  void start_round(std::span<const BlockIndex> current);

 private:
  struct FreeAligned {
    void operator()(std::byte* p) const {
      ::operator delete (p, std::align_val_t{numeric::kAccumulatorAlignment});
    }
  };

  std::byte* accumulator(std::uint8_t column) const {
    return accumulators_.get() + column * accumulator_stride_;
  }
  /// Makes a block the first part of a sum, or adds it.
  void accumulate(std::byte* sum, const std::byte* block, std::int16_t scale,
                  std::uint32_t elements, bool is_first) const {
    if (geometry_.type.is_scaled()) return accumulate_scaled(sum, block, scale, elements, is_first);
    (is_first ? reduction_->load : reduction_->combine)(sum, block, elements);
  }
  void accumulate_scaled(std::byte* sum, const std::byte* block, std::int16_t scale,
                         std::uint32_t elements, bool is_first) const;
  std::int16_t write_sum(std::uint8_t column, std::byte* sum, std::uint32_t elements,
                         std::byte* out) const;

  wire::Shape shape_{};
  Geometry geometry_{};
  std::uint32_t first_column_ = 0;  // of the stream, as the geometry counts them
  numeric::Rounder rounder_;
  const numeric::BlockReduction* reduction_ = nullptr;
  std::size_t accumulator_bytes_ = 0;  // of an element
  std::size_t accumulator_stride_ = 0;
  std::unique_ptr<std::byte, FreeAligned> accumulators_;
  std::vector<BlockIndex> current_;    // by column
  std::vector<std::uint16_t> owners_;  // by column: contributions added so far
  std::vector<Rank> last_owner_;       // by column: the rank that was added last, if any was
  std::uint16_t ranks_;
};

// These run for every packet or round. They are inline, so that the compiler merges them into the
// code of the stream.
inline bool BlockCombiner::fits(const Packet& packet, std::span<const BlockIndex> next) const {
  if (!wire::same(packet.shape(), shape_)) return false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const BlockIndex index{column.index};
    const bool has_block = column.flags != 0;
    if (index != current_[c]) return false;
    if (!next.empty() && has_block && next[c] != index) return false;  // an owner's may prove zero
    const BlockIndex after{column.next};
    if (after != kNoBlock && geometry_.column_of(after) != first_column_ + c) return false;
    ++c;
  }
  return true;
}

inline void BlockCombiner::add(Rank w, const Packet& packet) {
  const auto add = [&](std::uint8_t c, std::span<const std::byte> block) {
    assert(owners_[c] == 0 || last_owner_[c] < w);  // the same bits, whatever the order of arrival
    last_owner_[c] = w;
    accumulate(accumulator(c), block.data(), packet.columns()[c].scale,
               geometry_.elements_of(current_[c]), owners_[c]++ == 0);
  };
  packet.for_each_block(add);
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

inline void BlockCombiner::count(std::span<const BlockIndex> next, JobCounters& counters) const {
  struct Blocks {
    std::uint64_t all = 0;
    std::uint64_t last = 0;  // how often the tensor's last block, the only one that may be short
  } contributed, summed, dense;
  const std::uint32_t last = geometry_.blocks - 1;
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    if (current_[c] == kNoBlock) continue;
    const std::uint32_t current = current_[c].value;
    const std::uint32_t owners = owners_[c];
    contributed.all += owners;
    summed.all += owners != 0;
    dense.all += geometry_.blocks_between(current_[c], next[c]);
    dense.last += next[c] == kNoBlock && geometry_.column_of(BlockIndex{last}) == first_column_ + c;
    if (current != last) continue;
    contributed.last += owners;
    summed.last += owners != 0;
  }
  const std::size_t full = geometry_.full_block_bytes();
  const std::size_t lacks = dense.last == 0 ? 0 : full - geometry_.bytes_of(BlockIndex{last});
  const auto bytes = [&](const Blocks& of) { return of.all * full - of.last * lacks; };
  counters.blocks_contributed += contributed.all;
  counters.bytes_contributed += bytes(contributed);
  counters.blocks_summed += summed.all;
  counters.bytes_summed += bytes(summed);
  counters.blocks_dense += dense.all;
  counters.bytes_dense += bytes(dense);
}

/// Returns the sum's scale.
inline std::int16_t BlockCombiner::write_sum(std::uint8_t column, std::byte* sum,
                                             std::uint32_t elements, std::byte* out) const {
  assert(owners_[column] <= ranks_);
  if (owners_[column] < ranks_ && reduction_->combine_zero != nullptr)
    reduction_->combine_zero(sum, elements);
  if (!geometry_.type.is_scaled()) {
    reduction_->store(out, sum, elements, ranks_);
    return 0;
  }
  reduction_->store(sum, sum, elements, ranks_);
  return numeric::encode(geometry_.type, out, sum, elements, rounder_.of(current_[column].value));
}

inline void BlockCombiner::write(std::span<wire::Column> columns, std::byte* in_packet) {
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    columns[c].index = current_[c].value;
    if (owners_[c] == 0) continue;
    columns[c].flags = wire::kColumnPresent;
    columns[c].scale = write_sum(c, accumulator(c), geometry_.elements_of(current_[c]), in_packet);
    in_packet += geometry_.bytes_of(current_[c]);
  }
}

inline void BlockCombiner::start_round(std::span<const BlockIndex> current) {
  std::fill(owners_.begin(), owners_.end(), std::uint16_t{0});
  std::copy(current.begin(), current.end(), current_.begin());
}

}  // namespace sluice::aggregator
