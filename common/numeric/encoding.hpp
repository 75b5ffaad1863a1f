// fp32 elements in fewer bits, with SIMD that is chosen at run time: as fp16 or bf16, or scaled.
//
// A scaled block has integers q of 8 or 4 bits, which stand for q * 2^scale. With Q = 127 or 7, the
// scale is the least one for which Q * 2^scale is not less than m, the largest magnitude of the
// block; so every q is in -Q .. Q. The scale is bounded, so that all decoded numbers are exact
// fp32. The lower bound is -149, at which rounding loses nothing any more. Above the upper bound Q
// * 2^scale would be infinite: larger elements become that number, and differ by at most m / Q.
//
// An element that is rounded to nearest (ties to even) differs by at most m / Q, and one that is
// rounded stochastically by less than 2 m / Q, as 2^scale < 2 m / Q. Stochastic rounding changes x
// = n + f (f < 1, in units of 2^scale) to n + 1 with probability f, otherwise to n. What was
// encoded and decoded once does not change in a further encoding, with either rounding.
//
// Every function is deterministic and gives the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/wire_type.hpp"

namespace sluice::numeric {

/// How a block is rounded: to nearest, or stochastically with random bits that a key determines.
struct Rounding {
  bool is_stochastic = false;
  std::uint32_t key = 0;
};

/// Rounds the blocks of an op for a rank, or their sums for the aggregator. Stochastically, unless
/// the seed is 0.
struct Rounder {
  static constexpr std::uint32_t kAggregator = limits::kMaxRanks;

  std::uint64_t seed = 0;
  OpNumber op = 0;
  std::uint32_t by = kAggregator;

  Rounding of(std::uint64_t block) const;
};

/// Writes `count` fp32 elements as a block of fp16, bf16 or a scaled type; it has
/// WireType::bytes(count) bytes. Returns its scale: 0 if it has none, or if all elements are zero.
/// Halves are always rounded to nearest, and -0 becomes +0. With an odd number of 4-bit elements,
/// the last 4 bits are zero.
std::int16_t encode(WireType type, std::byte* out, const std::byte* in, std::size_t count,
                    Rounding rounding);

/// Elements first .. first + count - 1 of a block of `elements`.
struct BlockPart {
  std::size_t elements = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Decodes a part of such a block to fp32.
void decode(WireType type, std::byte* out, const std::byte* block, const BlockPart& part,
            std::int16_t scale);

}  // namespace sluice::numeric
