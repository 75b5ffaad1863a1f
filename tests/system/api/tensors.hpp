// Tensors whose reductions are exact in every element type, so that a plain loop is the reference.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <sluice/types.hpp>

namespace sluice::api_test {

/// Small integers as elements.
template <class T>
T encode(int value) {
  return static_cast<T>(value);
}
/// Values of both signs in unsigned types: modulo, as their arithmetic is.
template <>
inline BFloat16 encode<BFloat16>(int value) {  // exact below 2^8
  return {
      static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16)};
}
template <>
inline Float16 encode<Float16>(int value) {  // exact below 2^11
  if (value == 0) return {0};
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);  // 0.5 <= fraction < 1
  const auto mantissa = static_cast<unsigned>((2 * fraction - 1) * 1024);
  const auto sign = value < 0 ? 0x8000u : 0u;
  return {static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 14) << 10 | mantissa)};
}

/// Element `i` of a rank's tensor: a multiple of `ranks` (averages are exact) of at most 60 in
/// size; about two thirds of all blocks are zero on a rank. At most 4 ranks keep sums exact in
/// bfloat16.
inline int value_of(std::uint64_t i, std::uint16_t rank, std::uint16_t ranks, std::uint32_t block) {
  const std::uint64_t hash = (i / block * 31 + rank * 17 + 5) * 0x9E37'79B9'7F4A'7C15u >> 33;
  if (hash % 3 != 0) return 0;
  return ranks * (static_cast<int>((i * 7 + rank) % 31) - 15);
}

template <class T>
std::vector<T> input_of(std::uint64_t count, std::uint16_t rank, std::uint16_t ranks,
                        std::uint32_t block) {
  std::vector<T> tensor(count);
  for (std::uint64_t i = 0; i < count; ++i) tensor[i] = encode<T>(value_of(i, rank, ranks, block));
  return tensor;
}

inline int reduced(std::uint64_t i, std::uint16_t ranks, std::uint32_t block, Reduction reduction) {
  int sum = 0;
  int product = 1;
  int bits_and = -1;
  int bits_or = 0;
  int bits_xor = 0;
  int least = 1000;
  int most = -1000;
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    const int value = value_of(i, rank, ranks, block);
    sum += value;
    product *= value;
    bits_and &= value;
    bits_or |= value;
    bits_xor ^= value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  switch (reduction) {
    case Reduction::kSum:
      return sum;
    case Reduction::kMin:
      return least;
    case Reduction::kMax:
      return most;
    case Reduction::kAverage:
      return sum / ranks;
    case Reduction::kProduct:
      return product;
    case Reduction::kBitAnd:
      return bits_and;
    case Reduction::kBitOr:
      return bits_or;
    case Reduction::kBitXor:
      return bits_xor;
  }
  return 0;
}

/// The number of elements that are not, bit by bit, the reduction over all ranks.
template <class T>
std::uint64_t wrong_elements(const std::vector<T>& result, std::uint16_t ranks, std::uint32_t block,
                             Reduction reduction = Reduction::kSum) {
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < result.size(); ++i) {
    const T expected = encode<T>(reduced(i, ranks, block, reduction));
    wrong += std::memcmp(&result[i], &expected, sizeof expected) != 0;
  }
  return wrong;
}

}  // namespace sluice::api_test
