#include "bench/lib/peers/sparse/qsgd.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sparse::qsgd {
namespace {

constexpr float kRoundingErrors = 1 + 1e-3F;  // of fp32, over all ranks

std::size_t buckets(std::size_t elements) {
  return (elements + kBucketElements - 1) / kBucketElements;
}

int levels(int bits) {
  return (1 << (bits - 1)) - 1;
}

float scale_of(std::span<const float> bucket) {
  float most = 0;
  for (const float value : bucket) most = std::max(most, std::fabs(value));
  return most;
}

std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x = (x ^ (x >> 15)) * 0x846CA68BU;
  return x ^ (x >> 16);
}

/// Offset by s, so that codes are not negative.
void round_bucket(std::span<const float> bucket, float scale, int s, std::uint32_t seed,
                  std::uint8_t* codes) {
  const float per_level = scale > 0 ? float(s) / scale : 0;
  for (std::size_t i = 0; i < bucket.size(); ++i) {
    const float chance = float(mixed(seed + std::uint32_t(i)) >> 8) * 0x1p-24F;
    const int level = std::min(s, int(std::fabs(bucket[i]) * per_level + chance));
    codes[i] = std::uint8_t(bucket[i] < 0 ? s - level : s + level);
  }
}

/// 8 / bits codes a byte, the first in the lowest bits; the rest of the last byte is zero.
void pack(std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* to) {
  const std::size_t per_byte = 8 / std::size_t(bits), packed = (count + per_byte - 1) / per_byte;
  std::fill(codes + count, codes + packed * per_byte, std::uint8_t(0));
  if (bits == 8) {
    std::memcpy(to, codes, count);
  } else if (bits == 4) {
    for (std::size_t i = 0; i < packed; ++i)
      to[i] = std::uint8_t(codes[2 * i] | codes[2 * i + 1] << 4);
  } else {
    for (std::size_t i = 0; i < packed; ++i)
      to[i] = std::uint8_t(codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 |
                           codes[4 * i + 3] << 6);
  }
}

/// Writes whole bytes' worth of codes.
void unpack(const std::uint8_t* from, std::size_t count, int bits, std::uint8_t* codes) {
  const std::size_t per_byte = 8 / std::size_t(bits), packed = (count + per_byte - 1) / per_byte;
  if (bits == 8) {
    std::memcpy(codes, from, count);
  } else if (bits == 4) {
    for (std::size_t i = 0; i < packed; ++i) {
      codes[2 * i] = from[i] & 15;
      codes[2 * i + 1] = from[i] >> 4;
    }
  } else {
    for (std::size_t i = 0; i < packed; ++i) {
      codes[4 * i] = from[i] & 3;
      codes[4 * i + 1] = from[i] >> 2 & 3;
      codes[4 * i + 2] = from[i] >> 4 & 3;
      codes[4 * i + 3] = from[i] >> 6;
    }
  }
}

template <bool kAdd>
void decode_bucket(const std::uint8_t* codes, float scale, int s, std::span<float> values) {
  const float level = scale / float(s);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = float(int(codes[i]) - s) * level;
    values[i] = kAdd ? values[i] + value : value;
  }
}

template <bool kAdd>
void decode_all(std::span<const std::uint8_t> encoded, int bits, std::span<float> values) {
  const std::uint8_t* packed = encoded.data() + buckets(values.size()) * sizeof(float);
  std::uint8_t codes[kBucketElements];
  for (std::size_t b = 0; b < buckets(values.size()); ++b) {
    const std::size_t first = b * kBucketElements;
    const auto bucket = values.subspan(first, std::min(kBucketElements, values.size() - first));
    float scale = 0;
    std::memcpy(&scale, encoded.data() + b * sizeof scale, sizeof scale);
    unpack(packed + first * std::size_t(bits) / 8, bucket.size(), bits, codes);
    decode_bucket<kAdd>(codes, scale, levels(bits), bucket);
  }
}

}  // namespace

std::size_t bytes(std::size_t elements, int bits) {
  return buckets(elements) * sizeof(float) + (elements * std::size_t(bits) + 7) / 8;
}

Buffer<std::uint8_t> encode(std::span<const float> values, int bits, std::uint64_t seed) {
  Buffer<std::uint8_t> encoded(bytes(values.size(), bits));
  std::uint8_t* packed = encoded.data() + buckets(values.size()) * sizeof(float);
  std::uint8_t codes[kBucketElements];
  for (std::size_t b = 0; b < buckets(values.size()); ++b) {
    const std::size_t first = b * kBucketElements;
    const auto bucket = values.subspan(first, std::min(kBucketElements, values.size() - first));
    const float scale = scale_of(bucket);
    std::memcpy(encoded.data() + b * sizeof scale, &scale, sizeof scale);
    const auto of_bucket = mixed(std::uint32_t(seed) * 0x9E3779B9U + std::uint32_t(b));
    round_bucket(bucket, scale, levels(bits), of_bucket, codes);
    pack(codes, bucket.size(), bits, packed + first * std::size_t(bits) / 8);
  }
  return encoded;
}

void decode(std::span<const std::uint8_t> encoded, int bits, std::span<float> values) {
  decode_all<false>(encoded, bits, values);
}

void decode_and_add(std::span<const std::uint8_t> encoded, int bits, std::span<float> values) {
  decode_all<true>(encoded, bits, values);
}

Dense error_bounds(std::span<const float> values, int bits) {
  Dense errors(values.size());
  for (std::size_t first = 0; first < values.size(); first += kBucketElements) {
    const std::size_t count = std::min(kBucketElements, values.size() - first);
    const float scale = scale_of(values.subspan(first, count));
    std::fill_n(errors.begin() + std::ptrdiff_t(first), count,
                scale / float(levels(bits)) * kRoundingErrors);
  }
  return errors;
}

}  // namespace sparse::qsgd
