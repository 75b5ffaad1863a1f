#include "bench/perf/reference_block.hpp"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstring>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <type_traits>
#include <vector>

#include "bench/perf/element.hpp"

namespace sluice::perf {
namespace {

template <class T>
auto widen(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return value;
  else
    return to_float(value);
}

template <class T, class A>
T narrow(A value) {
  if constexpr (std::same_as<T, Float16>)
    return to_float16(value);
  else if constexpr (std::same_as<T, BFloat16>)
    return to_bfloat16(value);
  else
    return value;
}

template <class T>
T without_negative_zero(T value) {
  return widen(value) == 0 ? T{} : value;
}

template <class A>
A add(A a, A b) {
  if constexpr (std::integral<A>) {
    using Wrapping = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  } else {
    return a + b;
  }
}

template <class A>
A multiply(A a, A b) {
  if constexpr (std::integral<A>)
    return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  else
    return a * b;
}

template <class A>
A combine_bits(Reduction reduction, A a, A b) {
  if constexpr (std::integral<A>)
    return static_cast<A>(reduction == Reduction::kBitAnd  ? a & b
                          : reduction == Reduction::kBitOr ? a | b
                                                           : a ^ b);
  else
    return A{};  // never used
}

template <class A>
A combine(Reduction reduction, A a, A b) {
  switch (reduction) {
    case Reduction::kProduct:
      return multiply(a, b);
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor:
      return combine_bits(reduction, a, b);
    case Reduction::kMin:
      return b < a ? b : a;
    case Reduction::kMax:
      return b > a ? b : a;
    case Reduction::kSum:
      break;
    case Reduction::kAverage:
      break;  // never used
  }
  return add(a, b);
}

bool is_sum(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kAverage;
}

template <class T>
std::uint64_t count_different(std::span<const T> expected, const std::byte* actual) {
  if (std::memcmp(expected.data(), actual, expected.size_bytes()) == 0) return 0;
  std::uint64_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (std::memcmp(&expected[i], actual + i * sizeof(T), sizeof(T)) != 0) ++different;
  return different;
}

/// Whether hosts sum first, and there are several: averages of integers use all ranks directly.
template <class T>
bool sums_by_hosts(const TensorSpec& spec, Reduction reduction) {
  const std::set<std::uint16_t> hosts(spec.hosts.begin(), spec.hosts.end());
  return hosts.size() > 1 && hosts.size() < spec.ranks &&
         (reduction != Reduction::kAverage || !std::is_integral_v<T>);
}

struct BlockSum {
  std::uint64_t block = 0;
  Reduction reduction = Reduction::kSum;
  std::uint16_t of_ranks = 1;  ///< how many it takes to be complete; an average divides by it
};

template <class T>
void sum_of(const TensorSet& tensors, std::uint64_t run, const BlockSum& sum,
            std::span<const std::uint16_t> ranks, std::vector<T>& values) {
  ReferenceBlock<T> reference(sum.reduction, sum.of_ranks, values.size());
  for (const std::uint16_t rank : ranks) {
    if (!tensors.pattern().nonzero(rank, sum.block)) continue;
    tensors.generate<T>(rank, run, sum.block, values);
    reference.add(values);
  }
  reference.result(values);
}

template <class T>
std::uint64_t count_wrong_in_block(const TensorSet& tensors, std::uint64_t run, Reduction reduction,
                                   std::uint64_t block, const std::byte* actual) {
  std::vector<std::uint16_t> all(tensors.spec().ranks);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<T> values(tensors.elements_of(block));
  if (!sums_by_hosts<T>(tensors.spec(), reduction)) {
    sum_of<T>(tensors, run, {block, reduction, tensors.spec().ranks}, all, values);
    return count_different<T>(values, actual);
  }
  const std::vector<std::uint16_t>& host_of = tensors.spec().hosts;
  const bool is_average = reduction == Reduction::kAverage;
  const auto hosts = static_cast<std::uint16_t>(1 + std::ranges::max(host_of));
  ReferenceBlock<T> total(is_average ? Reduction::kSum : reduction, hosts, values.size());
  for (std::uint16_t host = 0; host < hosts; ++host) {
    std::vector<std::uint16_t> ranks;
    std::ranges::copy_if(all, std::back_inserter(ranks),
                         [&](std::uint16_t rank) { return host_of[rank] == host; });
    const auto divisor = is_average ? tensors.spec().ranks : ranks.size();
    sum_of<T>(tensors, run, {block, reduction, static_cast<std::uint16_t>(divisor)}, ranks, values);
    if (std::ranges::any_of(values, [](T value) { return widen(value) != widen(T{}); }))
      total.add(values);
  }
  total.result(values);
  return count_different<T>(values, actual);
}

}  // namespace

template <class T>
ReferenceBlock<T>::ReferenceBlock(Reduction reduction, std::uint16_t ranks, std::size_t elements)
    : reduction_(reduction), ranks_(ranks), accumulators_(elements) {}

template <class T>
void ReferenceBlock<T>::add(std::span<const T> owners_block) {
  const bool first = owners_++ == 0;
  for (std::size_t i = 0; i < owners_block.size(); ++i) {
    const auto value = widen(owners_block[i]);
    auto& sum = accumulators_[i];
    if (first)
      sum = value;
    else if (reduction_ == Reduction::kAverage)
      sum += value;
    else
      sum = combine(reduction_, static_cast<decltype(value)>(sum), value);
  }
}

template <class T>
void ReferenceBlock<T>::result(std::span<T> out) const {
  using A = typename AccumulatorOf<T>::Type;
  using Value = decltype(widen(T{}));
  for (std::size_t i = 0; i < out.size(); ++i) {
    A total = accumulators_[i];
    if (reduction_ == Reduction::kAverage) total /= static_cast<A>(ranks_);
    auto value = static_cast<Value>(total);
    if (!is_sum(reduction_) && owners_ < ranks_) value = combine(reduction_, value, Value{});
    out[i] = without_negative_zero(narrow<T>(value));
  }
}

template class ReferenceBlock<float>;
template class ReferenceBlock<double>;
template class ReferenceBlock<Float16>;
template class ReferenceBlock<BFloat16>;
template class ReferenceBlock<std::int32_t>;
template class ReferenceBlock<std::int64_t>;
template class ReferenceBlock<std::int8_t>;
template class ReferenceBlock<std::uint8_t>;
template class ReferenceBlock<std::int16_t>;

std::uint64_t count_wrong(const TensorSet& tensors, std::uint64_t run, Reduction reduction,
                          std::span<const std::byte> result) {
  return with_type(tensors.spec().type, [&]<class T>() {
    std::uint64_t wrong = 0;
    const std::byte* actual = result.data();
    for (std::uint64_t block = 0; block < tensors.pattern().blocks(); ++block) {
      wrong += count_wrong_in_block<T>(tensors, run, reduction, block, actual);
      actual += tensors.elements_of(block) * sizeof(T);
    }
    return wrong;
  });
}

namespace {

/// How much an encoding may change an element of a block with this largest magnitude, at most.
double step_of(const EncodedOp& op, double largest) {
  switch (op.encoding) {
    case Encoding::kInt8:
      return largest / 127 * (op.is_stochastic ? 2 : 1);
    case Encoding::kInt4:
      return largest / 7 * (op.is_stochastic ? 2 : 1);
    case Encoding::kFloat16:
      return largest * 0x1p-11 + 0x1p-25;
    case Encoding::kBFloat16:
      return largest * 0x1p-8;
    case Encoding::kNone:
      break;
  }
  return 0;
}

}  // namespace

std::uint64_t count_beyond_bound(const TensorSet& tensors, std::uint64_t run, const EncodedOp& op,
                                 std::span<const std::byte> result) {
  const std::uint16_t ranks = tensors.spec().ranks;
  const double divisor = op.reduction == Reduction::kAverage ? ranks : 1;
  std::uint64_t wrong = 0;
  const std::byte* actual = result.data();
  for (std::uint64_t block = 0; block < tensors.pattern().blocks(); ++block) {
    std::vector<float> values(tensors.elements_of(block));
    std::vector<double> exact(values.size());
    double before = 0;  // what the ranks may lose
    double sizes = 0;
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      if (!tensors.pattern().nonzero(rank, block)) continue;
      tensors.generate<float>(rank, run, block, values);
      double largest = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        exact[i] += static_cast<double>(values[i]) / divisor;
        largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
      }
      before += step_of(op, largest) / divisor;
      sizes += largest / divisor;
    }
    double sum = 0;
    for (const double value : exact) sum = std::max(sum, std::fabs(value));
    const double in_fp32 = sizes * ranks * 0x1p-22;
    const double bound = before + in_fp32 + step_of(op, sum + before + in_fp32);
    std::memcpy(values.data(), actual, values.size() * sizeof(float));
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += std::fabs(static_cast<double>(values[i]) - exact[i]) <= bound ? 0 : 1;
    actual += values.size() * sizeof(float);
  }
  return wrong;
}

}  // namespace sluice::perf
