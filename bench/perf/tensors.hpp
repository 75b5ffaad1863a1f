// The tensors of all ranks, as functions of a seed: each rank fills its own, and the reference
// computes those of the others again, block by block.
//
// The values make mistakes visible. Floats have both signs and sixteen binary orders of magnitude,
// so another order of summing gives other bits. Integers wrap. One element in 128 of a non-zero
// block is +0 or -0. In run 0, zero blocks of floats contain a -0, which must become +0. Every run
// has different values, so that the result of an earlier op is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sluice/types.hpp>

#include "bench/perf/pattern.hpp"

namespace sluice::perf {

struct TensorSpec {
  ElementType type = ElementType::kFloat32;
  std::uint64_t elements = 0;
  std::uint32_t block_elements = 256;
  std::uint16_t ranks = 1;
  double density = 1.0;
  Overlap overlap = Overlap::kRandom;
  std::uint64_t seed = 0;
  std::vector<std::uint16_t> hosts = {};  ///< by rank, if hosts sum; empty: one rank each
  bool negative_zeros = true;             ///< not with a bitmap, whose clear bits promise +0
};

class TensorSet {
 public:
  explicit TensorSet(const TensorSpec& spec);

  const TensorSpec& spec() const { return spec_; }
  const BlockPattern& pattern() const { return pattern_; }
  std::size_t bytes() const { return spec_.elements * element_bytes(spec_.type); }
  std::size_t elements_of(std::uint64_t block) const;  ///< the last block may be short

  /// Writes the values of a non-zero block; `T` is the spec's type; `out` has elements_of(block)
  /// elements, of which the first is never zero.
  template <class T>
  void generate(std::uint16_t rank, std::uint64_t run, std::uint64_t block, std::span<T> out) const;

  /// Writes the whole tensor of one rank; `out` has bytes() bytes.
  void fill(std::uint16_t rank, std::uint64_t run, std::span<std::byte> out) const;

  /// One bit per block, in the form of ReduceOptions::nonzero_blocks.
  std::vector<std::uint64_t> bitmap(std::uint16_t rank) const;

 private:
  TensorSpec spec_;
  BlockPattern pattern_;
};

}  // namespace sluice::perf
