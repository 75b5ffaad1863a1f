// Included once per target, as block_reduction.cpp is.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/encoding.cpp"
#include "common/numeric/encoding.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "common/numeric/kernels.hpp"
#include "common/numeric/vectors-inl.hpp"

#ifndef SLUICE_NUMERIC_ENCODING_ONCE
#define SLUICE_NUMERIC_ENCODING_ONCE
namespace sluice::numeric {

/// A magnitude is multiplied by both factors, as 2^149 is not a float, and then capped.
struct Scaling {
  float factor = 1;
  float rest = 1;
  float most = 0;
  Rounding rounding;
};

}  // namespace sluice::numeric
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

template <class D>
using Ints = hn::Rebind<std::int32_t, D>;
template <class D>
using Words = hn::Rebind<std::uint32_t, D>;

/// The bits of the largest magnitude. NaN and infinities are larger than all others.
std::uint32_t largest_magnitude(const std::byte* in, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> d;
  const hn::ScalableTag<std::int32_t> ordered;
  const auto mask = hn::Set(d, 0x7FFF'FFFF);
  auto most = hn::Zero(ordered);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    most = hn::Max(most, hn::BitCast(ordered, hn::And(read(d, in + 4 * i), mask)));
  auto largest = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(ordered, most)));
  for (; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, in + 4 * i, sizeof bits);
    largest = std::max(largest, bits & 0x7FFF'FFFF);
  }
  return largest;
}

/// Random odd multiples of 2^-24 between 0 and 1, from a hash of key and element: Chris Wellons'
/// lowbias32 (https://nullprogram.com/blog/2018/07/31/).
template <class D>
HWY_INLINE hn::Vec<D> uniform(D d, std::uint32_t key, std::size_t i) {
  const Words<D> words;
  const auto element = hn::Iota(words, static_cast<std::uint32_t>(i));
  auto x = hn::Add(hn::Mul(element, hn::Set(words, 0x9E37'79B9)), hn::Set(words, key));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(words, 0x7FEB'352D));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(words, 0x846C'A68B));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  const auto odd = hn::Or(hn::ShiftRight<8>(x), hn::Set(words, 1));
  return hn::Mul(hn::ConvertTo(d, hn::BitCast(Ints<D>(), odd)), hn::Set(d, 0x1p-24F));
}

/// Element i of the block, as it is written. The fraction of the magnitude is exact; what a product
/// loses is so far below 1 that it does not change the rounding.
template <bool is_stochastic, class D>
HWY_INLINE hn::Vec<Ints<D>> quantized(D d, std::size_t i, const std::byte* in,
                                      const Scaling& scaling) {
  const auto value = read(d, in + 4 * i);
  const auto magnitude =
      hn::Mul(hn::Mul(hn::Abs(value), hn::Set(d, scaling.factor)), hn::Set(d, scaling.rest));
  auto rounded = hn::Round(magnitude);
  if constexpr (is_stochastic) {
    const auto floor = hn::Floor(magnitude);
    const auto goes_up = hn::Lt(uniform(d, scaling.rounding.key, i), hn::Sub(magnitude, floor));
    rounded = hn::Add(floor, hn::IfThenElseZero(goes_up, hn::Set(d, 1)));
  }
  const auto capped = hn::Min(rounded, hn::Set(d, scaling.most));
  return hn::ConvertTo(Ints<D>(), hn::CopySign(capped, value));
}

template <bool is_stochastic>
struct EncodeBytes {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, std::byte* out, const std::byte* in,
                             const Scaling* scaling) {
    const hn::Rebind<std::int8_t, D> bytes;
    write(bytes, hn::DemoteTo(bytes, quantized<is_stochastic>(d, i, in, *scaling)), out + i);
  }
};

/// Elements of the block's first half use the lower 4 bits, those of the second half the upper 4.
template <bool is_stochastic>
struct EncodeNibbles {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, std::byte* out, const std::byte* in,
                             std::size_t half, const Scaling* scaling) {
    const auto lower = quantized<is_stochastic>(d, i, in, *scaling);
    const auto upper = quantized<is_stochastic>(d, half + i, in, *scaling);
    const auto both = hn::Or(hn::And(lower, hn::Set(Ints<D>(), 15)),
                             hn::ShiftLeft<4>(hn::And(upper, hn::Set(Ints<D>(), 15))));
    const hn::Rebind<std::uint8_t, D> bytes;
    write(bytes, hn::DemoteTo(bytes, both), out + i);
  }
};

template <bool is_stochastic>
void quantize(bool is_nibbles, std::byte* out, const std::byte* in, std::size_t count,
              const Scaling& scaling) {
  if (!is_nibbles)
    return for_each_vector<float, EncodeBytes<is_stochastic>>(count, out, in, &scaling);
  const std::size_t half = count - count / 2;
  for_each_vector<float, EncodeNibbles<is_stochastic>>(count / 2, out, in, half, &scaling);
  if (count % 2 == 0) return;
  const hn::CappedTag<float, 1> single;
  const auto last = hn::GetLane(quantized<is_stochastic>(single, half - 1, in, scaling));
  out[half - 1] = static_cast<std::byte>(last & 15);
}

void quantize_block(bool is_nibbles, std::byte* out, const std::byte* in, std::size_t count,
                    const Scaling& scaling) {
  (scaling.rounding.is_stochastic ? quantize<true> : quantize<false>)(is_nibbles, out, in, count,
                                                                      scaling);
}

/// A number in bits first .. first + bits - 1 of each byte.
template <int first, int bits>
struct DecodeStep {
  template <class D>
  static HWY_INLINE void run(D d, std::size_t i, std::byte* out, const std::byte* in, float unit) {
    const hn::Rebind<std::int8_t, D> bytes;
    const auto wide = hn::PromoteTo(Ints<D>(), read(bytes, in + i));
    const auto number = hn::ShiftRight<32 - bits>(hn::ShiftLeft<32 - bits - first>(wide));
    write(d, hn::Mul(hn::ConvertTo(d, number), hn::Set(d, unit)), out + 4 * i);
  }
};

void scale_bytes(std::byte* out, const std::byte* in, std::size_t count, float unit) {
  for_each_vector<float, DecodeStep<0, 8>>(count, out, in, unit);
}
void scale_lower(std::byte* out, const std::byte* in, std::size_t count, float unit) {
  for_each_vector<float, DecodeStep<0, 4>>(count, out, in, unit);
}
void scale_upper(std::byte* out, const std::byte* in, std::size_t count, float unit) {
  for_each_vector<float, DecodeStep<4, 4>>(count, out, in, unit);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(largest_magnitude);
HWY_EXPORT(quantize_block);
HWY_EXPORT(scale_bytes);
HWY_EXPORT(scale_lower);
HWY_EXPORT(scale_upper);

namespace {

constexpr std::uint32_t kInfinity = 0x7F80'0000;
std::int16_t scale_of(float largest, WireType type) {
  // The greatest scale for which Q * 2^scale has the exponent of `largest`, or the next one.
  int scale = std::ilogb(largest) - std::ilogb(static_cast<float>(type.most()));
  if (std::ldexp(static_cast<double>(type.most()), scale) < static_cast<double>(largest)) ++scale;
  return std::clamp(static_cast<std::int16_t>(scale), WireType::kLeastScale, type.largest_scale());
}

/// The last steps of MurmurHash3.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51'AFD7'ED55'8CCD;
  x = (x ^ (x >> 33)) * 0xC4CE'B9FE'1A85'EC53;
  return x ^ (x >> 33);
}

}  // namespace

Rounding Rounder::of(std::uint64_t block) const {
  if (seed == 0) return {};
  const std::uint64_t key = mixed(mixed(seed) + op) + (std::uint64_t{by} << 32) + block;
  return {true, static_cast<std::uint32_t>(mixed(key))};
}

std::int16_t encode(WireType type, std::byte* out, const std::byte* in, std::size_t count,
                    Rounding rounding) {
  if (!type.is_scaled()) {
    block_reduction(type.element(), Reduction::kSum).store(out, in, count, 1);
    return 0;
  }
  const std::uint32_t largest = HWY_DYNAMIC_DISPATCH(largest_magnitude)(in, count);
  if (largest == 0 || largest >= kInfinity) {
    std::fill_n(out, type.bytes(count), std::byte{0});
    return largest == 0 ? std::int16_t{0} : WireType::kNotFinite;
  }
  const std::int16_t scale = scale_of(std::bit_cast<float>(largest), type);
  const int half = -scale / 2;
  HWY_DYNAMIC_DISPATCH(quantize_block)
  (type == WireType(Encoding::kInt4), out, in, count,
   {std::ldexp(1.0F, half), std::ldexp(1.0F, -scale - half), static_cast<float>(type.most()),
    rounding});
  return scale;
}

void decode(WireType type, std::byte* out, const std::byte* block, const BlockPart& part,
            std::int16_t scale) {
  assert(part.first + part.count <= part.elements);
  if (!type.is_scaled()) {
    const std::byte* const in = block + type.bytes(part.first);
    return block_reduction(type.element(), Reduction::kSum).load(out, in, part.count);
  }
  assert(type.is_scale(scale));
  const float unit = scale == WireType::kNotFinite ? std::numeric_limits<float>::quiet_NaN()
                                                   : std::ldexp(1.0F, scale);
  if (type == WireType(Encoding::kInt8))
    return HWY_DYNAMIC_DISPATCH(scale_bytes)(out, block + part.first, part.count, unit);
  const std::size_t half = part.elements - part.elements / 2;
  const std::size_t end = part.first + part.count;
  const std::size_t middle = std::clamp(half, part.first, end);
  HWY_DYNAMIC_DISPATCH(scale_lower)(out, block + part.first, middle - part.first, unit);
  if (middle != end) HWY_DYNAMIC_DISPATCH(scale_upper)
  (out + 4 * (middle - part.first), block + (middle - half), end - middle, unit);
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
