// The sum of sparse COO tensors.
//
// No rank knows which rows the others have, so first the ranks form the union of their rows: they
// gather the first numbers of each in slots of one size, and where that was not all, in a second
// step all numbers, or a bitmap over all rows, reduced by a bitwise or. The union numbers the rows
// of a compact dense tensor. Each rank writes its values into that, and its sum, in blocks of a
// row, so that each rank sends but its own, has the values of the result.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/torch/csrc/operation.hpp"

namespace sluice_torch {

/// `tensor` becomes the coalesced sum of the ranks' tensors, or their average.
Operation::Request sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace sluice_torch
