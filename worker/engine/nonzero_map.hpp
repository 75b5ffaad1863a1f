// Which blocks of an op's tensor are not zero. The tensor is read once and in the order of memory,
// at the speed of memory, only as far as a stream asks: the columns of all streams share the map.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/numeric/kernels.hpp"
#include "common/protocol/geometry.hpp"

namespace sluice::worker {

struct SearchLimits {
  /// How far the search reads beyond the block that a stream asks for: so little that a block is
  /// still in the cache when it is copied into its packet.
  std::uint64_t ahead_bytes = std::uint64_t{128} << 10;
  /// How far a query reads beyond the first block that it looks at, so that a long run of zeros
  /// does not hold up the loop.
  std::uint64_t lookahead_bytes = std::uint64_t{256} << 20;
};

/// Elements begin .. end - 1 of a tensor.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

class NonZeroMap {
 public:
  /// `given`: bit per block, if the caller knows; empty: the tensor is searched. `held`: the part
  /// of the tensor that is in memory, `tensor.data` being its first element; the rest is zero.
  /// `searched`: bit per block of those that are read, as the others are +0; empty: all are.
  NonZeroMap(const numeric::BlockedTensor& tensor, std::span<const std::uint64_t> given,
             const SearchLimits& limits = {}, std::optional<ElementRange> held = {},
             std::span<const std::uint64_t> searched = {});

  /// The first of `from` and the blocks behind it in this column, its own, that is not zero, or
  /// that lies beyond lookahead_bytes and is taken for one; kNoBlock if there is none. `geometry`
  /// has as many blocks as the map.
  BlockIndex next(const Geometry& geometry, std::uint32_t column, BlockIndex from) {
    assert(geometry.blocks == blocks_ && from.value < blocks_);
    const bool is_here = !is_unknown(from.value) && is_marked(from.value);
    return is_here ? from : search(geometry, column, from);
  }

  /// Whether the block is not zero, wherever it lies.
  bool contains(std::uint32_t block) {
    assert(block < blocks_);
    if (is_unknown(block)) read_through(block);
    return is_marked(block);
  }

  std::uint32_t blocks() const { return blocks_; }

  /// Whether a zero block that was read so far holds a -0.0.
  bool saw_negative_zero() const { return saw_negative_zero_; }

 private:
  static constexpr std::size_t kInlineWords = 8;

  bool is_marked(std::uint32_t block) {
    const std::uint64_t* words = given_.empty() ? own_words() : given_.data();
    return ((words[block / 64] >> (block % 64)) & 1) != 0;
  }
  std::uint64_t* own_words() { return large_.empty() ? small_.data() : large_.data(); }
  void mark(std::uint32_t block) { own_words()[block / 64] |= std::uint64_t{1} << (block % 64); }
  bool is_unknown(std::uint32_t block) const { return block >= unknown_ && block < unknown_end_; }
  void confine(ElementRange held);
  BlockIndex search(const Geometry& geometry, std::uint32_t column, BlockIndex from);
  void read_through(std::uint32_t block);
  void read(std::uint32_t begin, std::uint32_t end);

  numeric::BlockedTensor tensor_;
  std::span<const std::uint64_t> given_, searched_;
  std::uint32_t blocks_;
  std::uint32_t begin_ = 0;  // blocks before it, and those from end_ on, are not held: zero
  std::uint32_t end_;
  std::uint64_t lookahead_blocks_;
  std::uint64_t ahead_blocks_;
  // The map is valid for all blocks except these.
  std::uint32_t unknown_ = 0;
  std::uint32_t unknown_end_ = 0;
  bool saw_negative_zero_ = false;
  std::array<std::uint64_t, kInlineWords> small_{};  // small ops allocate nothing
  std::vector<std::uint64_t> large_;
};

}  // namespace sluice::worker
