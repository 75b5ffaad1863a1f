// Which threshold lets k sums of the next step through, from what the last step let through.
//
// Thresholds and counts are compared by their logarithms, and the bits of a float serve as one:
// they rise by 2^23 from a power of two to the next, and nearly evenly between. So all is in
// integers, and every rank gets the same threshold, whatever its machine and C library.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sluice {

/// `results`: the sums that have reached `threshold` (finite, 0 or more), at least those that are
/// finite; the others are not counted. `rejected`: SparseWork::rejected().
///
/// - No more than k sums in all: 0. Without any sum: as it was.
/// - k or more results: the magnitude of the k-th largest.
/// - Fewer, and the k-th is not far below: as far down as the results' own distribution says, where
///   there are some: it goes on below the threshold as it is above. But at most half of the way
///   that the number of rejected sums says. Residuals keep rejected sums just below the threshold,
///   many of them close together: a step too far would deliver them all at once.
/// - Else the place of the k-th among the classes of rejected sums, or 1/16 if it is below them.
float next_threshold(float threshold, std::uint64_t k, std::span<const float> results,
                     const std::array<std::uint64_t, 4>& rejected);

}  // namespace sluice
