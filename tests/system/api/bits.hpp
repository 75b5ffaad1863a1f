// Tensors of arbitrary bits, which are moved and compared bit by bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace sluice::api_test {

/// Element `i` of rank `r`: arbitrary bits, with NaNs, -0 and long runs of zeros.
template <class T>
T element(std::uint64_t i, unsigned r) {
  const std::uint64_t bits =
      (i / 700 + r) % 3 == 0 ? 0 : (i + 1) * (r + 3) * 0x9E37'79B9'7F4A'7C15u;
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

template <class T>
std::vector<T> elements(std::uint64_t count, unsigned rank) {
  std::vector<T> all(count);
  for (std::uint64_t i = 0; i < count; ++i) all[i] = element<T>(i, rank);
  return all;
}

/// Compares the bits: a NaN equals itself, and -0 is not 0.
template <class T>
bool same(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace sluice::api_test
