// What compressors of gradients do in memory, with SIMD that is chosen at run time: which part of
// gradients + residual is sent, and which part stays in the residual (error feedback).
//
// Every function is deterministic and gives the same bits on every instruction set. The floats need
// only their own alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::numeric {

/// `count` elements in blocks of `block_elements`; the last block may be short. The sum of element
/// i is gradients[i] + residual[i], rounded once. If `residual` is null, it counts as zeros, and
/// nothing is kept. `out` may be `gradients`; otherwise the three do not overlap.
struct FeedbackBlocks {
  const float* gradients = nullptr;
  float* residual = nullptr;
  float* out = nullptr;
  std::uint64_t count = 0;
  std::uint32_t block_elements = 1;
  float divisor = 1;  ///< for what is sent; the residual is not divided

  std::uint64_t block_count() const { return (count + block_elements - 1) / block_elements; }
};

/// Sets energies[b] to the sum of the squares of block b's sums, in double: element i of a block is
/// added to part i % 32, then part i + 16 to part i, then i + 8 to i, and so on. The energy is 0
/// only if all sums are zero, and not finite only if one is NaN or infinite. Reads `gradients` and
/// `residual`.
void block_energies(const FeedbackBlocks& blocks, double* energies);

/// Sends the blocks whose bit is set in `chosen` and whose energy is above `energy` (0 or more),
/// and all blocks that are not finite. In a block that is sent, out = sum / divisor and residual =
/// 0; in the others, out = 0 and residual = sum. All zeros that it writes are +0. Afterwards
/// `chosen` has the blocks that were sent. Returns their number.
std::uint64_t keep_blocks(const FeedbackBlocks& blocks, double energy, std::uint64_t* chosen);

/// The bits of a float's magnitude. They have the same order as the magnitudes; infinity and NaN
/// are the largest.
inline constexpr std::uint32_t kMagnitudeMask = 0x7FFF'FFFF;
inline constexpr std::uint32_t kInfinityBits = 0x7F80'0000;

/// Sets out[i] to the bits of the magnitude of gradients[i] + residual[i]; `residual` may be null.
void sum_magnitudes(const float* gradients, const float* residual, std::size_t count,
                    std::uint32_t* out);

/// Which elements are taken: those whose magnitude has bits above `bits` (1 or more), and the first
/// `ties` of those with equal bits.
struct ElementLimit {
  std::uint32_t bits = 1;
  std::uint64_t ties = ~std::uint64_t{0};
};

/// Moves the selected elements out of gradients + residual, in the order of memory: their key is
/// first_key + i, their value is the sum. The residual becomes 0 there, and the sum elsewhere;
/// `residual` may be null. `keys` and `values` have room for `count`. Reduces `limit.ties` by the
/// ties that it took. Returns how many were taken.
std::size_t take_elements(const float* gradients, float* residual, std::size_t count,
                          std::uint32_t first_key, ElementLimit& limit, std::uint32_t* keys,
                          float* values);

}  // namespace sluice::numeric
