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
  kZipf,     ///< the first blocks on all ranks, of later ones ever fewer: as of a table whose rows
             ///< are used as Zipf's law has it
};
inline constexpr const char* kOverlapNames = "random, all, none, strided, zipf";
inline constexpr const char* kOverlapHelp =
    "of the ranks' non-zero blocks: random (independent), all (the same), none (disjoint while "
    "there are enough), strided (the same, at equal distances) or zipf (the first ones on all "
    "ranks, of later ones ever fewer)";

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
  bool nonzero_by_zipf(std::uint16_t rank, std::uint64_t block) const;

  std::uint64_t blocks_;
  std::uint64_t nonzero_blocks_;
  double always_ = 0;  ///< by Zipf's law: so many blocks are not zero on any rank
  Overlap overlap_;
  std::uint64_t seed_;
};

}  // namespace sluice::perf
