/// The command line.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/lib/peers/sparse/input.hpp"

namespace sparse {

/// Names the flag, its value, and what was expected.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Checks { kNone, kLast, kEvery };  // iterations whose sum is checked

struct Flags {
  std::vector<std::string> algorithms;  // empty: all
  std::uint32_t elements = 1 << 20;
  double density = 0.01;
  Keys keys = Keys::kRandom;
  Checks checks = Checks::kLast;
  std::uint64_t seed = 1;
  std::uint32_t iterations = 3, warmup = 1;
  std::uint32_t tau = 64, tau_prime = 32;
  std::uint32_t first = 0;  // the algorithm that begins
  bool self_test = false;
};

Flags parse_flags(int count, char** words);

/// `density` of the elements, but at least one.
std::size_t pairs_of_density(const Flags& flags);

}  // namespace sparse
