// Loads and stores of SIMD vectors, and loops over arrays of them.
//
// Compiled once per target: the guard is toggled by Highway's foreach_target.h.
#if defined(SLUICE_NUMERIC_VECTORS_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_NUMERIC_VECTORS_INL_HPP
#undef SLUICE_NUMERIC_VECTORS_INL_HPP
#else
#define SLUICE_NUMERIC_VECTORS_INL_HPP
#endif

#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Data in packets has no alignment, so it is read and written as bytes.
template <class D>
HWY_INLINE hn::Vec<D> read(D d, const std::byte* in) {
  const hn::Repartition<std::uint8_t, D> bytes;
  return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(in)));
}

template <class D>
HWY_INLINE void write(D /*d*/, hn::Vec<D> v, std::byte* out) {
  const hn::Repartition<std::uint8_t, D> bytes;
  hn::StoreU(hn::BitCast(bytes, v), bytes, reinterpret_cast<std::uint8_t*>(out));
}

/// Calls Step::run(d, index, arguments...) for whole vectors of accumulators, and for the rest with
/// vectors of one element, which read and write only that element.
template <class A, class Step, class... Arguments>
HWY_INLINE void for_each_vector(std::size_t count, Arguments... arguments) {
  const hn::ScalableTag<A> whole;
  const hn::CappedTag<A, 1> single;
  std::size_t i = 0;
  for (; i + hn::Lanes(whole) <= count; i += hn::Lanes(whole)) Step::run(whole, i, arguments...);
  for (; i < count; ++i) Step::run(single, i, arguments...);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SLUICE_NUMERIC_VECTORS_INL_HPP
