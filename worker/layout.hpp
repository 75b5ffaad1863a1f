// What a collective means for this rank: which elements of the tensor it holds, and which it wants.
#pragma once

#include <cstdint>
#include <span>

#include "worker/operation.hpp"

namespace sluice::worker {

/// This rank among those of its job.
struct Place {
  std::uint16_t rank = 0;
  std::uint16_t ranks = 1;
};

/// Fills in element_count, held, wanted and layout, by the request's collective and root.
///
/// `counts`: the elements of each part of the tensor. all_gather, gather, scatter and
/// reduce_scatter have one part per rank, all_to_all one from each rank to each,
/// [from * ranks + to]; the other collectives have one part. Throws kInvalidArgument if there are
/// not as many, or more than 2^64 elements in all.
void lay_out(OpRequest& request, Place me, std::span<const std::uint64_t> counts);

}  // namespace sluice::worker
