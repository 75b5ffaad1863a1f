#include "bench/lib/peers/sparse/input.hpp"

#include <algorithm>
#include <cmath>

namespace sparse {
namespace {

constexpr std::uint64_t kMagnitudes = 1000;

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// The keys with the smallest of these numbers are drawn: they are exponentially distributed with
/// the key's weight as rate (Efraimidis and Spirakis, 2006).
Dense arrival_times(std::uint64_t seed, std::uint32_t elements, Keys keys) {
  Dense times(elements);
  for (std::uint32_t i = 0; i < elements; ++i) {
    const float uniform = float((mixed(seed + i) >> 40) + 1) * 0x1p-24F;
    times[i] = keys == Keys::kRandom ? uniform : -std::log(uniform) * float(i + 1);
  }
  return times;
}

std::uint64_t key_of(int rank, std::uint64_t seed) {
  return mixed(seed * 1'000'003 + std::uint64_t(rank));
}

}  // namespace

Pairs pairs_of(int rank, std::uint32_t elements, std::size_t count, Keys keys, std::uint64_t seed) {
  const Dense times = arrival_times(key_of(rank, seed), elements, keys);
  Dense ordered = times;
  const auto last = ordered.begin() + std::ptrdiff_t(count) - 1;
  std::nth_element(ordered.begin(), last, ordered.end());
  auto equal_left = std::count(ordered.begin(), last + 1, *last);  // others have the same time
  Pairs pairs;
  pairs.reserve(count);
  for (std::uint32_t i = 0; i < elements; ++i)
    if (times[i] < *last || (times[i] == *last && equal_left-- > 0)) pairs.push_back({i, 0});
  set_values(pairs, rank, seed, 0);
  return pairs;
}

void set_values(Pairs& pairs, int rank, std::uint64_t seed, std::uint64_t step) {
  const std::uint64_t key = mixed(key_of(rank, seed) + step);
  for (Pair& pair : pairs) {
    const std::uint64_t drawn = mixed(key + pair.index);
    const auto magnitude = float(1 + (drawn >> 1) % kMagnitudes);
    pair.value = drawn % 2 == 1 ? -magnitude : magnitude;
  }
}

}  // namespace sparse
