// Prepares a caller's sparse tensor for sending.
#pragma once

#include <sluice/sluice.hpp>

#include "worker/loop/work.hpp"

namespace sluice {

/// Sorts the pairs by key and reduces the rows of equal keys; the result is in `own_keys` and
/// `own_rows`.
void combine_equal_keys(const SparseTensor& tensor, Reduction reduction, SparseSums& into);

/// Cuts each row of `keys` into parts.parts parts: `own_keys` becomes the keys of the parts.
void cut_rows(std::span<const std::uint64_t> keys, SparseSums& parts);

}  // namespace sluice
