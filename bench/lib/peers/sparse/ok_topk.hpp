/// The parts of Ok-Topk that need no network.
#pragma once

#include <cstddef>

#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {

/// The k-th largest magnitude; 0, which all reach, if there are fewer. Changes the order.
float kth_largest(Dense& magnitudes, std::size_t k);

struct Parted {
  Pairs chosen, rest;
};
/// Chooses magnitudes of at least the threshold.
Parted part_by_threshold(Run pairs, float threshold);
/// Chooses those whose index `others` have, too.
Parted part_by_indices(Run pairs, Run others);

}  // namespace sparse
