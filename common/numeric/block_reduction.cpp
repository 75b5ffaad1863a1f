// The block kernels. Highway includes this file once per target. So everything between
// HWY_BEFORE_NAMESPACE and HWY_AFTER_NAMESPACE exists once per instruction set, and these copies
// must not share anything.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/block_reduction.cpp"
#include <array>
#include <cassert>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "common/numeric/half-inl.hpp"
#include "common/numeric/kernels.hpp"
#include "common/numeric/vectors-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

template <class T>
inline constexpr bool kIsHalf = std::same_as<T, Float16> || std::same_as<T, BFloat16>;

template <class T>
using Accumulator = std::conditional_t<kIsHalf<T>, float, T>;

__extension__ using Int128 = __int128;

/// An integer of twice the width, which holds the sum of 256.
template <class T>
struct Total {
  using Type = Accumulator<T>;
};
template <>
struct Total<std::int8_t> {
  using Type = std::int16_t;
};
template <>
struct Total<std::uint8_t> {
  using Type = std::uint16_t;
};
template <>
struct Total<std::int16_t> {
  using Type = std::int32_t;
};
template <>
struct Total<std::int32_t> {
  using Type = std::int64_t;
};
template <>
struct Total<std::int64_t> {
  using Type = Int128;
};

/// The type in which a reduction accumulates elements.
template <class T, Reduction reduction>
using AccumulatorOf =
    std::conditional_t<reduction == Reduction::kAverage, typename Total<T>::Type, Accumulator<T>>;

template <class T, class D>
HWY_INLINE hn::Vec<D> read_elements(D d, const std::byte* in) {
  if constexpr (std::same_as<T, Float16>)
    return half_to_float(d, read(Bits16<D>(), in));
  else if constexpr (std::same_as<T, BFloat16>)
    return bfloat16_to_float(d, read(Bits16<D>(), in));
  else if constexpr (sizeof(T) < sizeof(hn::TFromD<D>))
    return hn::PromoteTo(d, read(hn::Rebind<T, D>(), in));
  else
    return read(d, in);
}

/// Halves may become -0 only when they are rounded.
template <class D>
HWY_INLINE void write_halves(D d, hn::Vec<D> bits, std::byte* out) {
  write(d, hn::IfThenZeroElse(hn::Eq(bits, hn::Set(d, 0x8000)), bits), out);
}

/// Replaces -0 of floats by +0: -0 + 0 is +0. Nothing else changes, except that NaN becomes quiet.
template <class T, class D>
HWY_INLINE void write_elements(D d, hn::Vec<D> v, std::byte* out) {
  if constexpr (std::same_as<T, Float16>)
    write_halves(Bits16<D>(), float_to_half(d, v), out);
  else if constexpr (std::same_as<T, BFloat16>)
    write_halves(Bits16<D>(), float_to_bfloat16(d, v), out);
  else if constexpr (std::floating_point<T>)
    write(d, hn::Add(v, hn::Zero(d)), out);
  else
    write(d, v, out);
}

/// Integers are added as unsigned, so they wrap.
template <class D>
HWY_INLINE hn::Vec<D> add(D d, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (std::integral<hn::TFromD<D>>) {
    const hn::RebindToUnsigned<D> wrapping;
    return hn::BitCast(d, hn::Add(hn::BitCast(wrapping, a), hn::BitCast(wrapping, b)));
  } else {
    return hn::Add(a, b);
  }
}

/// Returns `in` where it is better than `acc` or is NaN. A comparison with NaN is false, so a NaN
/// in `acc` stays. (Highway 1.0.3's Ne(in, in) is false for NaN from AVX2 on, so IsNaN is used.)
template <Reduction reduction, class D>
HWY_INLINE hn::Vec<D> select(D /*d*/, hn::Vec<D> acc, hn::Vec<D> in) {
  auto take = reduction == Reduction::kMin ? hn::Lt(in, acc) : hn::Lt(acc, in);
  if constexpr (std::floating_point<hn::TFromD<D>>) take = hn::Or(take, hn::IsNaN(in));
  return hn::IfThenElse(take, in, acc);
}

/// SIMD lacks the product for some widths of integers. They are rare, so elements are multiplied
/// one by one.
template <class D, class Function>
HWY_INLINE hn::Vec<D> one_by_one(D d, hn::Vec<D> a, hn::Vec<D> b, Function function) {
  using Element = hn::TFromD<D>;
  HWY_ALIGN std::array<Element, hn::MaxLanes(D())> elements;
  HWY_ALIGN std::array<Element, hn::MaxLanes(D())> others;
  hn::Store(a, d, elements.data());
  hn::Store(b, d, others.data());
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = function(elements[i], others[i]);
  return hn::Load(d, elements.data());
}

/// Integers are multiplied as unsigned, so they wrap.
template <class D>
HWY_INLINE hn::Vec<D> multiply(D d, hn::Vec<D> a, hn::Vec<D> b) {
  using Element = hn::TFromD<D>;
  if constexpr (std::integral<Element>) {
    return one_by_one(d, a, b, [](Element x, Element y) {
      return static_cast<Element>(static_cast<std::uint64_t>(x) * static_cast<std::uint64_t>(y));
    });
  } else {
    return hn::Mul(a, b);
  }
}

template <Reduction reduction, class D>
HWY_INLINE hn::Vec<D> combined(D d, hn::Vec<D> acc, hn::Vec<D> in) {
  if constexpr (reduction == Reduction::kSum || reduction == Reduction::kAverage)
    return add(d, acc, in);
  else if constexpr (reduction == Reduction::kProduct)
    return multiply(d, acc, in);
  else if constexpr (reduction == Reduction::kBitAnd)
    return hn::And(acc, in);
  else if constexpr (reduction == Reduction::kBitOr)
    return hn::Or(acc, in);
  else if constexpr (reduction == Reduction::kBitXor)
    return hn::Xor(acc, in);
  else
    return select<reduction>(d, acc, in);
}

template <class T, class A>
struct LoadStep {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, A* acc, const std::byte* in) {
    hn::StoreU(read_elements<T>(d, in + i * sizeof(T)), d, acc + i);
  }
};

template <class T, class A, Reduction reduction>
struct CombineStep {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, A* acc, const std::byte* in) {
    const auto value = read_elements<T>(d, in + i * sizeof(T));
    hn::StoreU(combined<reduction>(d, hn::LoadU(d, acc + i), value), d, acc + i);
  }
};

template <class A, Reduction reduction>
struct CombineZeroStep {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, A* acc) {
    hn::StoreU(combined<reduction>(d, hn::LoadU(d, acc + i), hn::Zero(d)), d, acc + i);
  }
};

/// `ranks` is used only for the average of floats.
template <class T, class A, Reduction reduction>
struct StoreStep {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, const A* acc, std::byte* out,
                             std::uint32_t ranks) {
    auto value = hn::LoadU(d, acc + i);
    if constexpr (reduction == Reduction::kAverage)
      value = hn::Div(value, hn::Set(d, static_cast<A>(ranks)));
    write_elements<T>(d, value, out + i * sizeof(T));
  }
};

template <class T, Reduction reduction>
void load(void* acc, const std::byte* in, std::size_t count) {
  using A = AccumulatorOf<T, reduction>;
  for_each_vector<A, LoadStep<T, A>>(count, static_cast<A*>(acc), in);
}

template <class T, Reduction reduction>
void combine(void* acc, const std::byte* in, std::size_t count) {
  using A = AccumulatorOf<T, reduction>;
  for_each_vector<A, CombineStep<T, A, reduction>>(count, static_cast<A*>(acc), in);
}

template <class T, Reduction reduction>
void combine_zero(void* acc, std::size_t count) {
  using A = AccumulatorOf<T, reduction>;
  for_each_vector<A, CombineZeroStep<A, reduction>>(count, static_cast<A*>(acc));
}

template <class T, Reduction reduction>
void store(std::byte* out, const void* acc, std::size_t count, std::uint32_t ranks) {
  using A = AccumulatorOf<T, reduction>;
  for_each_vector<A, StoreStep<T, A, reduction>>(count, static_cast<const A*>(acc), out, ranks);
}

template <class T, Reduction reduction>
void combine_at(void* acc, const std::byte* in, const std::uint32_t* at, std::size_t count) {
  using A = AccumulatorOf<T, reduction>;
  const hn::CappedTag<A, 1> single;
  for (std::size_t i = 0; i < count; ++i)
    CombineStep<T, A, reduction>::run(single, 0, static_cast<A*>(acc) + at[i], in + i * sizeof(T));
}

// The average of integers: SIMD has no integer division, and no 128-bit integers.

/// out[i] = total[i] / ranks, truncated towards zero.
template <class T>
void store_quotients(std::byte* out, const void* acc, std::size_t count, std::uint32_t ranks) {
  using A = typename Total<T>::Type;
  const auto* totals = static_cast<const A*>(acc);
  for (std::size_t i = 0; i < count; ++i) {
    const auto quotient = static_cast<T>(totals[i] / static_cast<A>(ranks));
    std::memcpy(out + i * sizeof quotient, &quotient, sizeof quotient);
  }
}

template <bool is_first>
void add_to_128_bits(void* acc, const std::byte* in, std::size_t count) {
  auto* totals = static_cast<Int128*>(acc);
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t value;
    std::memcpy(&value, in + i * sizeof value, sizeof value);
    totals[i] = is_first ? Int128{value} : totals[i] + value;
  }
}

using Reductions = std::array<BlockReduction, 8>;

template <class T, Reduction reduction>
constexpr BlockReduction any(void (*with_zero)(void*, std::size_t)) {
  return {load<T, reduction>, combine<T, reduction>, with_zero, store<T, reduction>,
          combine_at<T, reduction>};
}

/// There are no bitwise reductions of floats.
template <class T, Reduction reduction>
constexpr BlockReduction bitwise() {
  if constexpr (std::integral<T>)
    return any<T, reduction>(reduction == Reduction::kBitAnd ? combine_zero<T, reduction>
                                                             : nullptr);
  else
    return {};
}

template <class T>
constexpr BlockReduction average() {
  constexpr Reduction kAverage = Reduction::kAverage;
  if constexpr (std::same_as<T, std::int64_t>)
    return {add_to_128_bits<true>, add_to_128_bits<false>, nullptr, store_quotients<T>, nullptr};
  else if constexpr (std::integral<T>)
    return {load<T, kAverage>, combine<T, kAverage>, nullptr, store_quotients<T>, nullptr};
  else
    return any<T, kAverage>(nullptr);
}

/// T's kernels, in the order of the enumeration Reduction.
template <class T>
constexpr Reductions reductions_of() {
  using enum Reduction;
  static_assert(sizeof(AccumulatorOf<T, kSum>) ==
                accumulator_bytes(ElementTypeOf<T>::kValue, kSum));
  static_assert(sizeof(AccumulatorOf<T, kAverage>) ==
                accumulator_bytes(ElementTypeOf<T>::kValue, kAverage));
  static_assert(sizeof(typename Total<T>::Type) <= accumulator_bytes(ElementTypeOf<T>::kValue));
  return {{any<T, kSum>(nullptr), any<T, kMin>(combine_zero<T, kMin>),
           any<T, kMax>(combine_zero<T, kMax>), average<T>(),
           any<T, kProduct>(combine_zero<T, kProduct>), bitwise<T, kBitAnd>(), bitwise<T, kBitOr>(),
           bitwise<T, kBitXor>()}};
}

/// In the order of the enumeration ElementType.
constexpr std::array<Reductions, 9> kReductions{
    reductions_of<float>(),       reductions_of<double>(),       reductions_of<Float16>(),
    reductions_of<BFloat16>(),    reductions_of<std::int32_t>(), reductions_of<std::int64_t>(),
    reductions_of<std::int8_t>(), reductions_of<std::uint8_t>(), reductions_of<std::int16_t>()};

const Reductions* target_reductions() {
  return kReductions.data();
}

const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(target_reductions);
HWY_EXPORT(target_name);

const BlockReduction& block_reduction(ElementType type, Reduction reduction) {
  assert(is_valid(type, reduction));
  const auto row = static_cast<std::size_t>(type) - 1;
  const auto column = static_cast<std::size_t>(reduction) - 1;
  return HWY_DYNAMIC_DISPATCH(target_reductions)()[row][column];
}

const char* simd_target() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
