// The sum of sparse COO tensors.
//
// No rank knows which rows the others have, so first the ranks form the union of their rows: by
// gathering the rows' numbers where these are few, else as a bitmap over all rows, reduced by a
// bitwise or. The union numbers the rows of a compact dense tensor. Each rank writes its values
// into that, and its sum, of which blocks without any row of a rank do not travel, has the values
// of the result.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/torch/csrc/operation.hpp"

namespace sluice_torch {

/// `tensor` becomes the coalesced sum of the ranks' tensors, or their average.
Operation::Request sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace sluice_torch
