#include "worker/engine/nonzero_map.hpp"

#include <algorithm>
#include <cassert>

namespace sluice::worker {

NonZeroMap::NonZeroMap(const numeric::BlockedTensor& tensor, std::span<const std::uint64_t> given,
                       const SearchLimits& limits, std::optional<ElementRange> held,
                       std::span<const std::uint64_t> searched)
    : tensor_(tensor),
      given_(given),
      searched_(searched),
      blocks_(tensor.block_count()),
      end_(blocks_) {
  assert(given.empty() || given.size() >= (std::size_t{blocks_} + 63) / 64);
  assert(searched.empty() || searched.size() >= (std::size_t{blocks_} + 63) / 64);
  const std::uint64_t block_bytes = tensor.block_elements * element_bytes(tensor.type);
  lookahead_blocks_ = std::max<std::uint64_t>(1, limits.lookahead_bytes / block_bytes);
  ahead_blocks_ = std::max<std::uint64_t>(1, limits.ahead_bytes / block_bytes);
  if (!given.empty()) return;
  const std::size_t words = (std::size_t{blocks_} + 63) / 64;
  if (words > kInlineWords) large_.resize(words);
  unknown_end_ = blocks_;
  if (held) confine(*held);
}

/// Blocks that are held only in part count as non-zero.
void NonZeroMap::confine(ElementRange held) {
  const std::uint64_t block = tensor_.block_elements;
  const bool to_the_end = held.end == tensor_.element_count;
  unknown_ = static_cast<std::uint32_t>((held.begin + block - 1) / block);
  unknown_end_ = to_the_end ? blocks_ : static_cast<std::uint32_t>(held.end / block);
  if (held.begin >= held.end) {
    unknown_end_ = unknown_;
    end_ = 0;
    return;
  }
  begin_ = static_cast<std::uint32_t>(held.begin / block);
  end_ = static_cast<std::uint32_t>((held.end + block - 1) / block);
  if (held.begin % block != 0) mark(static_cast<std::uint32_t>(held.begin / block));
  if (held.end % block != 0 && !to_the_end) mark(static_cast<std::uint32_t>(held.end / block));
  // The address where the tensor would begin. It is never read, so it is computed as a number.
  const std::uint64_t skipped = held.begin * element_bytes(tensor_.type);
  tensor_.data =
      reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(tensor_.data) - skipped);
}

BlockIndex NonZeroMap::search(const Geometry& geometry, std::uint32_t column, BlockIndex from) {
  ColumnBlocks of_column(geometry, column, from);
  of_column.skip_to(BlockIndex{begin_});
  const std::uint64_t look_end = of_column.block() + lookahead_blocks_;
  for (; of_column.block() < end_; of_column.advance()) {
    const auto block = static_cast<std::uint32_t>(of_column.block());
    if (is_unknown(block)) {
      if (block >= look_end) return {block};
      read_through(block);
    }
    if (is_marked(block)) return {block};
  }
  return kNoBlock;
}

void NonZeroMap::read_through(std::uint32_t block) {
  const auto end =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(unknown_end_, block + ahead_blocks_));
  read(unknown_, end);
  unknown_ = end;
}

void NonZeroMap::read(std::uint32_t begin, std::uint32_t end) {
  const auto is_read = [this](std::uint32_t block) {
    return (searched_[block / 64] >> (block % 64) & 1) != 0;
  };
  if (searched_.empty()) {
    saw_negative_zero_ |= numeric::mark_nonzero_blocks(tensor_, begin, end, own_words());
    return;
  }
  for (std::uint32_t block = begin; block < end;) {
    const std::uint32_t first = block;
    while (block < end && is_read(block)) ++block;
    if (first != block)
      saw_negative_zero_ |= numeric::mark_nonzero_blocks(tensor_, first, block, own_words());
    while (block < end && !is_read(block)) ++block;
  }
}

}  // namespace sluice::worker
