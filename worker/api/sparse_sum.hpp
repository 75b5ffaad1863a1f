// What a caller's sparse tensor becomes before it is sent.
#pragma once

#include <sluice/sluice.hpp>

#include "worker/loop/work.hpp"

namespace sluice {

/// Puts the pairs in the order of their keys, and reduces the rows of equal keys, into `own_keys`
/// and `own_rows`.
void combine_equal_keys(const SparseTensor& tensor, Reduction reduction, SparseSums& into);

/// Cuts the rows of `keys` into parts.parts each: `own_keys` becomes the parts' keys.
void cut_rows(std::span<const std::uint64_t> keys, SparseSums& parts);

}  // namespace sluice
