#include "bench/lib/peers/sparse/sparse_stream.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace sparse {

std::vector<std::uint32_t> even_ranges(std::uint32_t elements, int ranks) {
  std::vector<std::uint32_t> begins;
  for (std::uint64_t r = 0; r <= std::uint64_t(ranks); ++r)
    begins.push_back(std::uint32_t(elements * r / std::uint64_t(ranks)));
  return begins;
}

std::vector<Run> cut(Run pairs, const std::vector<std::uint32_t>& begins) {
  std::vector<Run> parts;
  auto from = pairs.begin();
  for (std::size_t r = 0; r + 1 < begins.size(); ++r) {
    const auto to = std::lower_bound(from, pairs.end(), begins[r + 1],
                                     [](Pair p, std::uint32_t end) { return p.index < end; });
    parts.emplace_back(from, to);
    from = to;
  }
  return parts;
}

// Without branches on the indices, which a processor could not predict. It uses masks, as GCC makes
// branches of conditional expressions on floats. This is twice as fast.
Pairs merge(Run a, Run b) {
  Pairs merged(a.size() + b.size());
  const Pair *from_a = a.data(), *from_b = b.data();
  const Pair *const end_a = from_a + a.size(), *const end_b = from_b + b.size();
  Pair* out = merged.data();
  while (from_a != end_a && from_b != end_b) {
    const Pair x = *from_a, y = *from_b;
    const bool take_a = x.index <= y.index, take_b = y.index <= x.index;
    const std::uint32_t mask_a = 0U - std::uint32_t(take_a), mask_b = 0U - std::uint32_t(take_b);
    const float value_a = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x.value) & mask_a);
    const float value_b = std::bit_cast<float>(std::bit_cast<std::uint32_t>(y.value) & mask_b);
    *out++ = {std::min(x.index, y.index), value_a + value_b};
    from_a += take_a;
    from_b += take_b;
  }
  out = std::copy(from_a, end_a, out);
  out = std::copy(from_b, end_b, out);
  merged.resize(std::size_t(out - merged.data()));
  return merged;
}

Pairs merge_all(std::vector<Run> runs) {
  if (runs.empty()) return {};
  if (runs.size() == 1) return Pairs(runs[0].begin(), runs[0].end());
  std::vector<Pairs> owned;
  while (runs.size() > 1) {
    std::vector<Pairs> next;
    std::vector<Run> views;
    for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {
      next.push_back(merge(runs[i], runs[i + 1]));
      views.emplace_back(next.back());
    }
    if (runs.size() % 2 == 1) {  // kept alive by a move or by the caller
      if (!owned.empty() && owned.back().data() == runs.back().data())
        next.push_back(std::move(owned.back()));
      views.push_back(runs.back());
    }
    owned = std::move(next);
    runs = std::move(views);
  }
  return std::move(owned.front());
}

Dense zeros(std::size_t count) {
  return Dense(count, 0.0F);
}

void add_pairs(Run pairs, std::uint32_t first, std::span<float> values) {
  for (const Pair pair : pairs) values[pair.index - first] += pair.value;
}

Stream sum_of_runs(const std::vector<Run>& runs, std::size_t elements) {
  std::size_t pairs = 0;
  for (const Run run : runs) pairs += run.size();
  if (pairs <= delta(elements)) return {false, merge_all(runs), {}};
  Stream sum{true, {}, zeros(elements)};
  for (const Run run : runs) add_pairs(run, 0, sum.values);
  return sum;
}

}  // namespace sparse
