/// The pairs of the ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {

/// How a rank's keys are drawn without replacement: all with the same weight, or key i with weight
/// 1 / (i + 1), as words of a vocabulary that is sorted by frequency.
enum class Keys { kRandom, kZipf };

/// `count` pairs of a rank, which seed and rank determine; the values are those of step 0.
Pairs pairs_of(int rank, std::uint32_t elements, std::size_t count, Keys keys, std::uint64_t seed);

/// Other values for the same keys, as in the next gradient: whole numbers from -1000 to 1000 except
/// 0, so that sums are exact in any order.
void set_values(Pairs& pairs, int rank, std::uint64_t seed, std::uint64_t step);

}  // namespace sparse
