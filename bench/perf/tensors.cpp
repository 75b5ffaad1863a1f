#include "bench/perf/tensors.hpp"

#include <algorithm>
#include <bit>
#include <concepts>

#include "bench/perf/element.hpp"
#include "bench/perf/mix.hpp"

namespace sluice::perf {
namespace {

constexpr std::uint64_t kIncrement = 0x9E37'79B9'7F4A'7C15;

/// Element i's random word: bit 63 is the sign, 56-59 the magnitude, 52-55 and 60-62 whether it is
/// zero, and the lower bits the digits. It needs two multiplications less than mix(), as filling is
/// most of a run's work.
std::uint64_t word(std::uint64_t key, std::uint64_t i) {
  std::uint64_t x = key + i * kIncrement;
  x = (x ^ (x >> 32)) * 0xBF58'476D'1CE4'E5B9;
  return x ^ (x >> 29);
}

constexpr std::uint64_t kZeroMask = 0x70F0'0000'0000'0000;

/// A float of `kWidth` bits from a word: 2^lowest .. 2^(lowest+16) in magnitude, or a signed zero.
template <int kWidth, int kMantissaBits, int kLowestExponent>
std::uint64_t float_bits(std::uint64_t word, bool may_be_zero) {
  const std::uint64_t sign = (word >> 63) << (kWidth - 1);
  if (may_be_zero && (word & kZeroMask) == 0) return sign;
  const std::uint64_t exponent = kLowestExponent + ((word >> 56) & 15);
  const std::uint64_t mantissa = word & ((std::uint64_t{1} << kMantissaBits) - 1);
  return sign | (exponent << kMantissaBits) | mantissa;
}

template <class T>
T element(std::uint64_t word, bool may_be_zero) {
  if constexpr (std::same_as<T, double>)
    return std::bit_cast<double>(float_bits<64, 52, 1023 - 8>(word, may_be_zero));
  else if constexpr (std::same_as<T, float>)
    return std::bit_cast<float>(
        static_cast<std::uint32_t>(float_bits<32, 23, 127 - 8>(word, may_be_zero)));
  else if constexpr (std::same_as<T, Float16>)  // the sum of 256 ranks stays finite
    return {static_cast<std::uint16_t>(float_bits<16, 10, 15 - 10>(word, may_be_zero))};
  else if constexpr (std::same_as<T, BFloat16>)
    return {static_cast<std::uint16_t>(float_bits<16, 7, 127 - 8>(word, may_be_zero))};
  else
    return may_be_zero && (word & kZeroMask) == 0 ? T{0} : static_cast<T>(word | 1);
}

template <class T>
T negative_zero() {
  if constexpr (std::integral<T>)
    return T{0};
  else if constexpr (std::floating_point<T>)
    return -T{0};
  else
    return T{0x8000};
}

template <class T>
void fill_typed(const TensorSet& tensors, std::uint16_t rank, std::uint64_t run,
                std::span<std::byte> bytes) {
  auto* out = reinterpret_cast<T*>(bytes.data());
  for (std::uint64_t block = 0; block < tensors.pattern().blocks(); ++block) {
    const std::span<T> values(out, tensors.elements_of(block));
    if (tensors.pattern().nonzero(rank, block)) {
      tensors.generate(rank, run, block, values);
    } else {
      std::fill(values.begin(), values.end(), T{});
      if (run == 0 && tensors.spec().negative_zeros) values.back() = negative_zero<T>();
    }
    out += values.size();
  }
}

}  // namespace

TensorSet::TensorSet(const TensorSpec& spec)
    : spec_(spec),
      pattern_((spec.elements + spec.block_elements - 1) / spec.block_elements, spec.density,
               spec.overlap, spec.seed) {}

std::size_t TensorSet::elements_of(std::uint64_t block) const {
  return std::min<std::uint64_t>(spec_.block_elements,
                                 spec_.elements - block * spec_.block_elements);
}

template <class T>
void TensorSet::generate(std::uint16_t rank, std::uint64_t run, std::uint64_t block,
                         std::span<T> out) const {
  const std::uint64_t key = mix(mix(mix(spec_.seed, run), rank), block);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = element<T>(word(key, i), i != 0);
}

template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<float>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<double>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<Float16>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<BFloat16>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<std::int32_t>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<std::int64_t>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<std::int8_t>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<std::uint8_t>) const;
template void TensorSet::generate(std::uint16_t, std::uint64_t, std::uint64_t,
                                  std::span<std::int16_t>) const;

void TensorSet::fill(std::uint16_t rank, std::uint64_t run, std::span<std::byte> out) const {
  with_type(spec_.type, [&]<class T>() { fill_typed<T>(*this, rank, run, out); });
}

std::vector<std::uint64_t> TensorSet::bitmap(std::uint16_t rank) const {
  std::vector<std::uint64_t> words((pattern_.blocks() + 63) / 64);
  for (std::uint64_t block = 0; block < pattern_.blocks(); ++block)
    words[block / 64] |= std::uint64_t{pattern_.nonzero(rank, block)} << (block % 64);
  return words;
}

}  // namespace sluice::perf
