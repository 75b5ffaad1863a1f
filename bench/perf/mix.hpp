// Counter-based pseudo-random numbers: the same words on every rank without any state to share.
#pragma once

#include <cstdint>

namespace sluice::perf {

/// A bijection of 64-bit words that scatters neighbours (the finaliser of SplitMix64).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E37'79B9'7F4A'7C15;
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

/// One word from two, in which order matters.
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return mix(mix(a) ^ b);
}

}  // namespace sluice::perf
