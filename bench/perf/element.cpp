#include "bench/perf/element.hpp"

#include <bit>
#include <cmath>

namespace sluice::perf {
namespace {

constexpr std::uint32_t kSign = 0x8000'0000;
constexpr std::uint32_t kInfinity = 0x7F80'0000;
constexpr std::uint32_t kHalfOverflow = 0x4780'0000;        // 2^16
constexpr std::uint32_t kHalfSmallestNormal = 0x3880'0000;  // 2^-14
constexpr std::uint32_t kHalfRebias = (127 - 15) << 23;

/// Drops the low bits of a magnitude, rounding to nearest, ties to even; a carry out of the
/// mantissa rightly raises the exponent.
constexpr std::uint32_t round_off(std::uint32_t magnitude, int bits) {
  const std::uint32_t kept_is_odd = (magnitude >> bits) & 1;
  return (magnitude + (1U << (bits - 1)) - 1 + kept_is_odd) >> bits;
}

std::uint32_t half_magnitude(std::uint32_t magnitude) {
  if (magnitude > kInfinity) return 0x7E00;
  if (magnitude >= kHalfOverflow) return 0x7C00;
  if (magnitude >= kHalfSmallestNormal) return round_off(magnitude - kHalfRebias, 13);
  // Subnormal: a count of 2^-24. The product is exact, and the mode is round to nearest even.
  return static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24F));
}

}  // namespace

float to_float(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign == 0 ? magnitude : -magnitude;
  }
  const std::uint32_t magnitude = exponent == 0x1F
                                      ? kInfinity | (mantissa << 13)
                                      : ((exponent << 23) | (mantissa << 13)) + kHalfRebias;
  return std::bit_cast<float>(sign | magnitude);
}

float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

Float16 to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>(((bits & kSign) >> 16) | half_magnitude(bits & ~kSign))};
}

BFloat16 to_bfloat16(float value) {
  if (std::isnan(value)) return {0x7FC0};
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>(((bits & kSign) >> 16) | round_off(bits & ~kSign, 16))};
}

}  // namespace sluice::perf
