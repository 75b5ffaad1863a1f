#include "worker/nonzero_map.hpp"

#include <algorithm>

namespace sluice::worker {

NonZeroMap::NonZeroMap(const numeric::BlockedTensor& tensor, std::span<const std::uint64_t> given,
                       const SearchLimits& limits)
    : tensor_(tensor), given_(given), blocks_(tensor.block_count()) {
  const std::uint64_t block_bytes = tensor.block_elements * element_bytes(tensor.type);
  horizon_blocks_ = std::max<std::uint64_t>(1, limits.horizon_bytes / block_bytes);
  ahead_blocks_ = std::max<std::uint64_t>(1, limits.ahead_bytes / block_bytes);
  if (!given.empty()) {
    known_ = blocks_;
    return;
  }
  const std::size_t words = (std::size_t{blocks_} + 63) / 64;
  if (words > kInlineWords) large_.resize(words);
}

std::uint32_t NonZeroMap::next(std::uint32_t from, std::uint32_t stride) {
  const std::uint64_t horizon = from + horizon_blocks_;
  for (std::uint64_t b = from; b < blocks_; b += stride) {
    const auto block = static_cast<std::uint32_t>(b);
    if (block >= known_) {
      if (block >= horizon) return block;
      read_through(block);
    }
    if (is_marked(block)) return block;
  }
  return blocks_;
}

bool NonZeroMap::contains(std::uint32_t block) {
  if (block >= known_) read_through(block);
  return is_marked(block);
}

void NonZeroMap::read_through(std::uint32_t block) {
  const auto end =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(blocks_, block + ahead_blocks_));
  saw_negative_zero_ |= numeric::mark_nonzero_blocks(tensor_, known_, end, own_words());
  known_ = end;
}

}  // namespace sluice::worker
