#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/lib/peers/sparse/ok_topk.hpp"

namespace sparse {
namespace {

/// Writes to both sides and advances one of them: there is no branch that depends on the values.
template <class IsChosen>
Parted part(Run pairs, IsChosen is_chosen) {
  Parted parted{Pairs(pairs.size() + 1), Pairs(pairs.size() + 1)};
  std::size_t chosen = 0, rest = 0;
  for (const Pair pair : pairs) {
    const bool is = is_chosen(pair);
    parted.chosen[chosen] = pair;
    parted.rest[rest] = pair;
    chosen += is;
    rest += !is;
  }
  parted.chosen.resize(chosen);
  parted.rest.resize(rest);
  return parted;
}

}  // namespace

float kth_largest(Dense& magnitudes, std::size_t k) {
  if (magnitudes.size() < k) return 0;
  const auto kth = magnitudes.begin() + std::ptrdiff_t(k) - 1;
  std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
  return *kth;
}

Parted part_by_threshold(Run pairs, float threshold) {
  return part(pairs, [=](Pair pair) { return std::fabs(pair.value) >= threshold; });
}

Parted part_by_indices(Run pairs, Run others) {
  auto other = others.begin();
  return part(pairs, [&](Pair pair) {
    while (other != others.end() && other->index < pair.index) ++other;
    return other != others.end() && other->index == pair.index;
  });
}

}  // namespace sparse
