#include "bench/perf/reference.hpp"

#include <concepts>
#include <cstring>
#include <type_traits>

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
    return A{};  // nobody asks for it
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
      break;  // nobody asks for it
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

template <class T>
std::uint64_t count_wrong_in_block(const TensorSet& tensors, std::uint64_t run, Reduction reduction,
                                   std::uint64_t block, const std::byte* actual) {
  const std::uint16_t ranks = tensors.spec().ranks;
  std::vector<T> values(tensors.elements_of(block));
  ReferenceBlock<T> reference(reduction, ranks, values.size());
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    if (!tensors.pattern().nonzero(rank, block)) continue;
    tensors.generate<T>(rank, run, block, values);
    reference.add(values);
  }
  reference.result(values);
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

}  // namespace sluice::perf
