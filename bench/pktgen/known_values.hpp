// The contents of the ranks' blocks: small whole numbers that repeat every eight elements, with a
// different beginning for each block and rank. So writing a block is one copy from memory that
// stays in the cache, and every sum is known and exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"

namespace sluice::pktgen {

class KnownValues {
 public:
  KnownValues(ElementType type, std::uint32_t block_elements);

  std::size_t block_bytes() const { return block_bytes_; }

  /// Writes rank `r`'s block `b` to `out`.
  void write(std::byte* out, Rank r, BlockIndex b) const {
    std::memcpy(out, sequence_.data() + phase(r, b) * element_bytes_, block_bytes_);
  }

  /// Whether `sums` is the sum of block `b` over these ranks, at least one of them.
  bool is_sum(std::span<const std::byte> sums, const RankSet& ranks, BlockIndex b) const;

 private:
  static constexpr std::uint32_t kPeriod = 8;

  static std::uint32_t phase(Rank r, BlockIndex b) { return (b.value + 3u * r.value) % kPeriod; }

  ElementType type_;
  std::size_t element_bytes_;
  std::size_t block_bytes_;
  std::vector<std::byte> sequence_;  // 1, 2, .. 8, 1, ..: a block and one more period
};

}  // namespace sluice::pktgen
