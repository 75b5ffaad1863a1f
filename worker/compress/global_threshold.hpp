// Computes the threshold that lets k sums of the next step pass, from the sums that passed in the
// last step.
//
// Thresholds and counts are compared by their logarithms. The bits of a float serve as its
// logarithm: they grow by 2^23 from a power of two to the next, and nearly evenly in between. So
// all is computed in integers, and every rank gets the same threshold, whatever its machine and C
// library.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sluice {

/// `results` are the sums that have reached `threshold` (finite, 0 or more); those that are not
/// finite need not be among them and are not counted. `rejected` is SparseWork::rejected().
/// - At most k sums in all: 0. No sum: the threshold stays.
/// - k or more results: the magnitude of the k-th largest.
/// - Fewer results, and the k-th sum is not far below: the results' own distribution is continued
///   below the threshold, if there are results; but at most half of the distance that the number of
///   rejected sums suggests. Residuals keep many rejected sums close together just below the
///   threshold: too large a step would deliver them all at once.
/// - Otherwise the place of the k-th sum among the classes of rejected sums, or 1/16 if it is below
///   them.
float next_threshold(float threshold, std::uint64_t k, std::span<const float> results,
                     const std::array<std::uint64_t, 4>& rejected);

}  // namespace sluice
