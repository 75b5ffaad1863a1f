// What compressors of gradients do to memory, on SIMD chosen at run time: which part of
// gradients + residual is sent, and which stays in the residual (error feedback).
//
// Every function is deterministic, with the same bits on every instruction set; the floats need no
// alignment beyond their own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::numeric {

/// `count` elements in blocks of `block_elements`, the last one possibly short. An element's sum is
/// gradients[i] + residual[i], rounded once. `residual` may be null: then it counts as zeros, and
/// nothing is kept. `out` may be `gradients` itself; else the three do not overlap.
struct FeedbackBlocks {
  const float* gradients = nullptr;
  float* residual = nullptr;
  float* out = nullptr;
  std::uint64_t count = 0;
  std::uint32_t block_elements = 1;
  float divisor = 1;  ///< of what is sent; the residual is not divided

  std::uint64_t block_count() const { return (count + block_elements - 1) / block_elements; }
};

/// energies[b] = the sum of squares of block b's sums, in double: element i of a block is added to
/// part i % 32, then part i + 16 to part i, i + 8 to i, and so on. It is 0 only where all are
/// zero, and not finite only where one is NaN or infinite. Reads `gradients` and `residual`.
void block_energies(const FeedbackBlocks& blocks, double* energies);

/// Sends the blocks whose bit is set in `chosen` and whose energy is above `energy` (0 or more),
/// and those that are not finite whatever their bit. Of a block that is sent, out = sum / divisor
/// and residual = 0; of another, out = 0 and residual = sum. All zeros written are +0. Then
/// `chosen` tells what was sent. Returns how many.
std::uint64_t keep_blocks(const FeedbackBlocks& blocks, double energy, std::uint64_t* chosen);

/// Bits of a float's magnitude: they are ordered as the magnitudes are; infinity and NaN come last.
inline constexpr std::uint32_t kMagnitudeMask = 0x7FFF'FFFF;
inline constexpr std::uint32_t kInfinityBits = 0x7F80'0000;

/// out[i] = the bits of the magnitude of gradients[i] + residual[i]; `residual` may be null.
void sum_magnitudes(const float* gradients, const float* residual, std::size_t count,
                    std::uint32_t* out);

/// Which elements are taken: those whose magnitude's bits are above `bits` (1 or more), and of
/// those that are equal the first `ties`.
struct ElementLimit {
  std::uint32_t bits = 1;
  std::uint64_t ties = ~std::uint64_t{0};
};

/// Moves the elements to be taken out of gradients + residual, in the order of memory: keys gets
/// first_key + i, values the sum; residual = 0 there, and the sum elsewhere; `residual` may be
/// null. `keys` and `values` have room for `count`. Takes what it took off `limit.ties`. Returns
/// how many were taken.
std::size_t take_elements(const float* gradients, float* residual, std::size_t count,
                          std::uint32_t first_key, ElementLimit& limit, std::uint32_t* keys,
                          float* values);

}  // namespace sluice::numeric
