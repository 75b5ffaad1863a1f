#include "worker/api/sparse_sum.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "common/numeric/kernels.hpp"

namespace sluice {

void combine_equal_keys(const SparseTensor& tensor, Reduction reduction, SparseSums& into) {
  const std::size_t row_bytes = tensor.row_elements * element_bytes(tensor.type);
  const auto* const rows = static_cast<const std::byte*>(tensor.values);
  std::vector<std::size_t> order(tensor.keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto by_key = [&](std::size_t a, std::size_t b) { return tensor.keys[a] < tensor.keys[b]; };
  std::stable_sort(order.begin(), order.end(), by_key);

  const Reduction local = reduction == Reduction::kAverage ? Reduction::kSum : reduction;
  const auto& kernels = numeric::block_reduction(tensor.type, local);
  std::vector<std::byte> sums(tensor.row_elements * numeric::accumulator_bytes(tensor.type));
  for (std::size_t first = 0, end; first < order.size(); first = end) {
    const std::uint64_t key = tensor.keys[order[first]];
    for (end = first + 1; end < order.size() && tensor.keys[order[end]] == key;) ++end;
    into.own_keys.push_back(key);
    into.own_rows.resize(into.own_rows.size() + row_bytes);
    std::byte* const row = into.own_rows.data() + into.own_rows.size() - row_bytes;
    if (end == first + 1) {
      std::memcpy(row, rows + order[first] * row_bytes, row_bytes);
      continue;
    }
    kernels.load(sums.data(), rows + order[first] * row_bytes, tensor.row_elements);
    for (std::size_t i = first + 1; i < end; ++i)
      kernels.combine(sums.data(), rows + order[i] * row_bytes, tensor.row_elements);
    kernels.store(row, sums.data(), tensor.row_elements, 1);
  }
}

void cut_rows(std::span<const std::uint64_t> keys, SparseSums& parts) {
  std::vector<std::uint64_t> cut;
  cut.reserve(keys.size() * parts.parts);
  for (const std::uint64_t key : keys)
    for (std::uint64_t part = 0; part < parts.parts; ++part)
      cut.push_back(key * parts.parts + part);
  parts.own_keys = std::move(cut);
}

}  // namespace sluice
