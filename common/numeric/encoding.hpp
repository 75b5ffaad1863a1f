// fp32 elements in fewer bits, on SIMD chosen at run time: as fp16 or bf16, or scaled.
//
// A scaled block has integers q of 8 or 4 bits, which stand for q * 2^scale. With Q = 127 or 7, the
// scale is the least with which Q * 2^scale is no less than the block's largest magnitude m, so no
// q lies beyond -Q .. Q. It is bounded, so that all that is decoded is an exact fp32: below by
// -149, where rounding loses nothing any more, and above by where Q * 2^scale would be infinite:
// what is larger becomes that number, and is off by m / Q at most.
//
// An element is off by m / (2 Q) * 2 = m / Q at most if it is rounded to nearest (ties to even),
// and by less than 2 m / Q if stochastically: 2^scale < 2 m / Q. Stochastically x = n + f (f < 1,
// of units of 2^scale) becomes n + 1 with probability f, else n. What was encoded and decoded once
// comes through unchanged, rounded either way.
//
// Every function is deterministic, with the same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/wire_type.hpp"

namespace sluice::numeric {

/// How a block is rounded: to nearest, or stochastically with random bits that follow from a key.
struct Rounding {
  bool is_stochastic = false;
  std::uint32_t key = 0;
};

/// Who rounds an op's blocks: a rank, or the aggregator their sums. Stochastically, unless the seed
/// is 0.
struct Rounder {
  static constexpr std::uint32_t kAggregator = limits::kMaxRanks;

  std::uint64_t seed = 0;
  OpNumber op = 0;
  std::uint32_t by = kAggregator;

  Rounding of(std::uint64_t block) const;
};

/// Writes `count` fp32 elements as a block of fp16, bf16 or a scaled type, WireType::bytes(count)
/// long. Returns its scale, 0 if it has none or all are zero. Halves are rounded to nearest always,
/// and -0 becomes +0. What lies behind the last of an odd number of 4 bits is zero.
std::int16_t encode(WireType type, std::byte* out, const std::byte* in, std::size_t count,
                    Rounding rounding);

/// Elements first .. first + count - 1 of a block of `elements`.
struct BlockPart {
  std::size_t elements = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Writes a part of such a block as fp32.
void decode(WireType type, std::byte* out, const std::byte* block, const BlockPart& part,
            std::int16_t scale);

}  // namespace sluice::numeric
