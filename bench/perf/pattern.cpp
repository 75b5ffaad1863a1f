#include "bench/perf/pattern.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "bench/perf/mix.hpp"

namespace sluice::perf {
namespace {

/// The image of `x` in the permutation `key` of 0..size-1. Each step is a bijection of the words
/// with just enough bits; it is repeated until the word is below the size.
std::uint64_t permute(std::uint64_t x, std::uint64_t size, std::uint64_t key) {
  const int bits = 64 - std::countl_zero(size - 1);
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const int shift = std::max(1, bits / 2);
  do {
    std::uint64_t round_key = key;
    for (int round = 0; round < 4; ++round) {
      round_key = mix(round_key);
      x = (x * (round_key | 1) + (round_key >> 32)) & mask;
      x ^= x >> shift;
    }
  } while (x >= size);
  return x;
}

}  // namespace

std::string_view name(Overlap overlap) {
  switch (overlap) {
    case Overlap::kRandom:
      return "random";
    case Overlap::kAll:
      return "all";
    case Overlap::kNone:
      return "none";
    case Overlap::kStrided:
      return "strided";
  }
  return "?";
}

std::optional<Overlap> parse_overlap(std::string_view text) {
  for (const Overlap overlap : {Overlap::kRandom, Overlap::kAll, Overlap::kNone, Overlap::kStrided})
    if (name(overlap) == text) return overlap;
  return std::nullopt;
}

BlockPattern::BlockPattern(std::uint64_t blocks, double density, Overlap overlap,
                           std::uint64_t seed)
    : blocks_(blocks),
      nonzero_blocks_(std::min(
          blocks, static_cast<std::uint64_t>(std::llround(density * static_cast<double>(blocks))))),
      overlap_(overlap),
      seed_(seed) {}

bool BlockPattern::nonzero(std::uint16_t rank, std::uint64_t block) const {
  if (nonzero_blocks_ == blocks_) return true;
  if (overlap_ == Overlap::kStrided) return block * nonzero_blocks_ % blocks_ < nonzero_blocks_;
  const std::uint64_t key = overlap_ == Overlap::kRandom ? mix(seed_, rank) : seed_;
  const std::uint64_t place = permute(block, blocks_, key);
  const std::uint64_t begin = overlap_ == Overlap::kNone ? rank * nonzero_blocks_ % blocks_ : 0;
  return (place + blocks_ - begin) % blocks_ < nonzero_blocks_;
}

}  // namespace sluice::perf
