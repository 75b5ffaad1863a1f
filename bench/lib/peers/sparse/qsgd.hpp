/// QSGD (Alistarh et al., NIPS'17): per bucket a scale, its largest magnitude, in full precision;
/// each value becomes one of 2 s + 1 levels, s = 2^(bits-1) - 1, stochastically rounded, so that
/// its expectation is the value. The paper's scale is the 2-norm; the maximum has less variance,
/// and SparCML takes it, too. An encoding has the scales first, then the levels, packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse::qsgd {

constexpr std::size_t kBucketElements = 1024;

std::size_t bytes(std::size_t elements, int bits);

/// `bits` is 2, 4 or 8. The same seed gives the same rounding.
Buffer<std::uint8_t> encode(std::span<const float> values, int bits, std::uint64_t seed);

void decode(std::span<const std::uint8_t> encoded, int bits, std::span<float> values);
void decode_and_add(std::span<const std::uint8_t> encoded, int bits, std::span<float> values);

/// How far each value may differ from its decoded form: one level, scale / s.
Dense error_bounds(std::span<const float> values, int bits);

}  // namespace sparse::qsgd
