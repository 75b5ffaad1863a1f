// Converts between 16-bit floats and vectors of fp32, with the same bits on every target.
// Conversion to fp32 is exact; conversion from fp32 rounds to nearest with ties to even. Subnormals
// are kept; NaN stays NaN with the upper part of its payload and becomes quiet. Highway 1.0.3
// itself truncates towards bf16; and without F16C its infinities, NaN and roundings of fp16 are
// wrong.
//
// Compiled once per target: the guard is toggled by Highway's foreach_target.h.
#if defined(SLUICE_NUMERIC_HALF_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_NUMERIC_HALF_INL_HPP
#undef SLUICE_NUMERIC_HALF_INL_HPP
#else
#define SLUICE_NUMERIC_HALF_INL_HPP
#endif

#include <bit>
#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Tags of the vectors that belong to a vector D of fp32.
template <class D>
using Bits32 = hn::Rebind<std::uint32_t, D>;
template <class D>
using Bits16 = hn::Rebind<std::uint16_t, D>;

/// AVX2 and better targets convert fp16 in hardware (F16C); a lower number is a better target.
inline constexpr bool kHardwareHalf = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;

/// The lower halves of 32-bit elements whose upper halves are zero.
template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow(D /*floats*/, hn::Vec<Bits32<D>> bits) {
  const hn::Rebind<std::int32_t, D> signed32;
  return hn::DemoteTo(Bits16<D>(), hn::BitCast(signed32, bits));
}

template <class D>
HWY_INLINE hn::Vec<D> bfloat16_to_float(D floats, hn::Vec<Bits16<D>> in) {
  return hn::BitCast(floats, hn::ShiftLeft<16>(hn::PromoteTo(Bits32<D>(), in)));
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> float_to_bfloat16(D floats, hn::Vec<D> in) {
  const Bits32<D> d;
  const auto bits = hn::BitCast(d, in);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(d, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7FFF))));
  const auto quiet_nan = hn::Or(upper, hn::Set(d, 0x0040));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(in));
  return narrow(floats, hn::IfThenElse(is_nan, quiet_nan, rounded));
}

// The integer versions below are those of Fabian Giesen, "half_to_float_fast4" and
// "float_to_half_fast3_rtne" (https://gist.github.com/rygorous/2156668), but they keep NaN
// payloads.

template <class D>
HWY_INLINE hn::Vec<D> half_to_float_by_integers(D floats, hn::Vec<Bits16<D>> in) {
  const Bits32<D> d;
  const auto bits = hn::PromoteTo(d, in);
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const auto shifted = hn::ShiftLeft<13>(magnitude);

  const auto normal = hn::Add(shifted, hn::Set(d, (127 - 15) << 23));
  // 2^-14 + the subnormal is a normal fp32; subtracting 2^-14 is exact.
  const auto offset = hn::Set(d, (127 - 14) << 23);
  const auto subnormal = hn::BitCast(
      d, hn::Sub(hn::BitCast(floats, hn::Add(shifted, offset)), hn::BitCast(floats, offset)));
  const auto infinity = hn::Or(shifted, hn::Set(d, 0x7F80'0000));
  const auto quiet_nan = hn::Or(infinity, hn::Set(d, 0x0040'0000));

  const auto is_subnormal = hn::Lt(magnitude, hn::Set(d, 0x0400));
  const auto is_nan = hn::Gt(magnitude, hn::Set(d, 0x7C00));
  const auto is_infinity = hn::Eq(magnitude, hn::Set(d, 0x7C00));
  auto out = hn::IfThenElse(is_subnormal, subnormal, normal);
  out = hn::IfThenElse(is_infinity, infinity, out);
  out = hn::IfThenElse(is_nan, quiet_nan, out);
  return hn::BitCast(floats, hn::Or(out, sign));
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> float_to_half_by_integers(D floats, hn::Vec<D> in) {
  const Bits32<D> d;
  const auto bits = hn::BitCast(d, in);
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7FFF'FFFF));
  const auto sign = hn::ShiftRight<16>(hn::Sub(bits, magnitude));

  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const auto rebiased = hn::Sub(magnitude, hn::Set(d, (127 - 15) << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(odd, hn::Set(d, 0x0FFF))));
  // 1/2 has fp16's smallest subnormal as its last place, so a sum with it is rounded where fp16
  // rounds.
  const auto half = hn::Set(d, std::bit_cast<std::uint32_t>(0.5F));
  const auto subnormal = hn::Sub(
      hn::BitCast(d, hn::Add(hn::BitCast(floats, magnitude), hn::BitCast(floats, half))), half);
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x03FF));
  const auto quiet_nan = hn::Or(payload, hn::Set(d, 0x7E00));

  const auto is_subnormal = hn::Lt(magnitude, hn::Set(d, (127 - 14) << 23));
  const auto is_too_big = hn::Gt(magnitude, hn::Set(d, ((127 + 16) << 23) - 1));
  const auto is_nan = hn::Gt(magnitude, hn::Set(d, 0x7F80'0000));
  auto out = hn::IfThenElse(is_subnormal, subnormal, normal);
  out = hn::IfThenElse(is_too_big, hn::Set(d, 0x7C00), out);
  out = hn::IfThenElse(is_nan, quiet_nan, out);
  return narrow(floats, hn::Or(out, sign));
}

template <class D>
HWY_INLINE hn::Vec<D> half_to_float(D floats, hn::Vec<Bits16<D>> in) {
  if constexpr (kHardwareHalf)
    return hn::PromoteTo(floats, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), in));
  else
    return half_to_float_by_integers(floats, in);
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> float_to_half(D floats, hn::Vec<D> in) {
  if constexpr (kHardwareHalf)
    return hn::BitCast(Bits16<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), in));
  else
    return float_to_half_by_integers(floats, in);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SLUICE_NUMERIC_HALF_INL_HPP
