// The sum of sparse COO tensors: one sparse sum of the library, whose keys are the numbers of rows.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/torch/csrc/operation.hpp"

namespace sluice_torch {

/// `tensor` becomes the coalesced sum of the ranks' tensors, or their average.
Operation::Request sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace sluice_torch
