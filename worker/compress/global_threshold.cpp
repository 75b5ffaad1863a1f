#include "worker/compress/global_threshold.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "common/numeric/compression.hpp"

namespace sluice {
namespace {

constexpr std::int64_t kOctave = std::int64_t{1} << 23;  ///< a factor of two
constexpr std::int64_t kLeastStep = kOctave / 64;        ///< where all results are equal
constexpr std::size_t kFewResults = 16;                  ///< fewer do not show a distribution

/// One half is added, so that zero sums have a logarithm, too.
std::int64_t logarithm(std::uint64_t count) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(count) + 0.5F);
}

/// The bits of the finite results' magnitudes.
std::vector<std::uint32_t> magnitudes_of(std::span<const float> results) {
  std::vector<std::uint32_t> magnitudes;
  magnitudes.reserve(results.size());
  for (const float result : results) {
    const auto bits = std::bit_cast<std::uint32_t>(result) & numeric::kMagnitudeMask;
    if (bits < numeric::kInfinityBits) magnitudes.push_back(bits);
  }
  return magnitudes;
}

/// The n-th largest, n at least 1. Changes the order.
std::uint32_t largest(std::vector<std::uint32_t>& magnitudes, std::uint64_t n) {
  const auto place = magnitudes.begin() + static_cast<std::ptrdiff_t>(n - 1);
  std::nth_element(magnitudes.begin(), place, magnitudes.end(), std::greater<>());
  return *place;
}

/// How far below `threshold` the k-th largest sum is, if it is in the next lower octave.
std::int64_t down_to(std::int64_t threshold, std::uint64_t k, std::uint64_t rejected,
                     std::vector<std::uint32_t>& results) {
  const std::int64_t missing = logarithm(k) - logarithm(results.size());
  const std::int64_t there = logarithm(results.size() + rejected) - logarithm(results.size());
  const std::int64_t half = kOctave * missing / there / 2;
  if (results.size() < kFewResults) return half;
  const std::int64_t median = largest(results, results.size() / 2);
  const std::int64_t as_above = (median - threshold) * missing / kOctave;
  return std::min(half, std::max(as_above, kLeastStep));
}

std::int64_t down(std::int64_t threshold, std::uint64_t k,
                  const std::array<std::uint64_t, 4>& rejected,
                  std::vector<std::uint32_t>& results) {
  if (results.size() + rejected[0] >= k) return down_to(threshold, k, rejected[0], results);
  std::uint64_t above = results.size() + rejected[0];
  for (std::int64_t octave = 1; octave < 3; ++octave) {
    const std::uint64_t next = above + rejected[static_cast<std::size_t>(octave)];
    if (next >= k)
      return kOctave * octave +
             kOctave * (logarithm(k) - logarithm(above)) / (logarithm(next) - logarithm(above));
    above = next;
  }
  return 4 * kOctave;
}

}  // namespace

float next_threshold(float threshold, std::uint64_t k, std::span<const float> results,
                     const std::array<std::uint64_t, 4>& rejected) {
  auto magnitudes = magnitudes_of(results);
  std::uint64_t sums = magnitudes.size();
  for (const std::uint64_t count : rejected) sums += count;
  if (k == 0 || sums == 0) return threshold;
  if (sums <= k) return 0;
  if (magnitudes.size() >= k) return std::bit_cast<float>(largest(magnitudes, k));
  const std::int64_t bits = std::bit_cast<std::uint32_t>(threshold);
  const std::int64_t next = bits - down(bits, k, rejected, magnitudes);
  return std::bit_cast<float>(static_cast<std::uint32_t>(std::max<std::int64_t>(next, 0)));
}

}  // namespace sluice
