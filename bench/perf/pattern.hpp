// Which blocks of each rank's tensor are not zero.
//
// Every rank can compute this for every other rank: it follows from a block's place in a keyed
// permutation of the blocks. So there are no lists to keep or to exchange, and the count per rank
// is exact.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::perf {

/// How the non-zero blocks of different ranks overlap.
enum class Overlap {
  kRandom,   ///< each rank's own choice
  kAll,      ///< the same blocks on all ranks
  kNone,     ///< disjoint as long as there are enough blocks, then as even as possible
  kStrided,  ///< the same blocks on all ranks, at equal distances: as of a matrix of whose columns
             ///< one group is not zero
};

/// "random", "all", "none", "strided".
std::string_view name(Overlap overlap);
std::optional<Overlap> parse_overlap(std::string_view name);

class BlockPattern {
 public:
  /// `density` 0..1: each rank has round(density * blocks) non-zero blocks.
  BlockPattern(std::uint64_t blocks, double density, Overlap overlap, std::uint64_t seed);

  bool nonzero(std::uint16_t rank, std::uint64_t block) const;  ///< block < blocks()
  std::uint64_t blocks() const { return blocks_; }
  std::uint64_t nonzero_blocks() const { return nonzero_blocks_; }  ///< of each rank

 private:
  std::uint64_t blocks_;
  std::uint64_t nonzero_blocks_;
  Overlap overlap_;
  std::uint64_t seed_;
};

}  // namespace sluice::perf
