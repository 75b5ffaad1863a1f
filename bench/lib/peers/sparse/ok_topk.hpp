/// The parts of Ok-Topk that need no network.
#pragma once

#include <cstddef>

#include "bench/lib/peers/sparse/stream.hpp"

namespace sparse {

/// The k-th largest of magnitudes; 0, which all reach, if there are fewer. It reorders them.
float kth_largest(Dense& magnitudes, std::size_t k);

struct Parted {
  Pairs chosen, rest;
};
/// Chosen are magnitudes of at least the threshold.
Parted part_by_threshold(Run pairs, float threshold);
/// Chosen are those whose index `others` have, too.
Parted part_by_indices(Run pairs, Run others);

}  // namespace sparse
