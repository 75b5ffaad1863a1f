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

/// How many of the first `count` blocks are not zero: all up to `always`, then block b with the
/// probability always / b.
double zipf_sum(double always, double count) {
  return count <= always ? count : always * (1 + std::log(count / always));
}

/// The `always` with which so many of all blocks are not zero.
double zipf_always(std::uint64_t blocks, std::uint64_t nonzero) {
  double low = 0, high = static_cast<double>(nonzero);
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    const double sum = middle > 0 ? zipf_sum(middle, static_cast<double>(blocks)) : 0;
    (sum < static_cast<double>(nonzero) ? low : high) = middle;
  }
  return high;
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
    case Overlap::kZipf:
      return "zipf";
  }
  return "?";
}

std::optional<Overlap> parse_overlap(std::string_view text) {
  for (const Overlap overlap :
       {Overlap::kRandom, Overlap::kAll, Overlap::kNone, Overlap::kStrided, Overlap::kZipf})
    if (name(overlap) == text) return overlap;
  return std::nullopt;
}

BlockPattern::BlockPattern(std::uint64_t blocks, double density, Overlap overlap,
                           std::uint64_t seed)
    : blocks_(blocks),
      nonzero_blocks_(std::min(
          blocks, static_cast<std::uint64_t>(std::llround(density * static_cast<double>(blocks))))),
      overlap_(overlap),
      seed_(seed) {
  if (overlap == Overlap::kZipf) always_ = zipf_always(blocks_, nonzero_blocks_);
}

/// Of the blocks below each one so many are not zero as the sum of their probabilities says,
/// rounded up or down: each rank has another threshold for that.
bool BlockPattern::nonzero_by_zipf(std::uint16_t rank, std::uint64_t block) const {
  if (nonzero_blocks_ == 0) return false;
  const double threshold = static_cast<double>(mix(seed_, rank) >> 11) * 0x1p-53;
  const auto nonzero_below = [&](std::uint64_t count) {
    if (count == blocks_) return nonzero_blocks_;
    const double sum = zipf_sum(always_, static_cast<double>(count)) + threshold;
    return std::min(static_cast<std::uint64_t>(sum), nonzero_blocks_);
  };
  return nonzero_below(block + 1) != nonzero_below(block);
}

bool BlockPattern::nonzero(std::uint16_t rank, std::uint64_t block) const {
  if (nonzero_blocks_ == blocks_) return true;
  if (overlap_ == Overlap::kStrided) return block * nonzero_blocks_ % blocks_ < nonzero_blocks_;
  if (overlap_ == Overlap::kZipf) return nonzero_by_zipf(rank, block);
  const std::uint64_t key = overlap_ == Overlap::kRandom ? mix(seed_, rank) : seed_;
  const std::uint64_t place = permute(block, blocks_, key);
  const std::uint64_t begin = overlap_ == Overlap::kNone ? rank * nonzero_blocks_ % blocks_ : 0;
  return (place + blocks_ - begin) % blocks_ < nonzero_blocks_;
}

}  // namespace sluice::perf
