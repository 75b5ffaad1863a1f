// How the dtypes and reductions of PyTorch map to those of Sluice.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <sluice/sluice.hpp>

namespace sluice_torch {

/// Elements of a tensor as the library sees them.
struct Elements {
  sluice::ElementType type = sluice::ElementType::kUInt8;
  std::int64_t each = 1;  ///< of them in one element of the tensor: 2 in a complex number

  std::uint64_t of(std::int64_t tensor_elements) const {
    return static_cast<std::uint64_t>(tensor_elements * each);
  }
};

struct Reducing {
  Elements elements;
  sluice::Reduction reduction = sluice::Reduction::kSum;
  bool whole_bools = false;  ///< bytes of bools must be 0 or 1: see Staging
  at::Tensor factor = {};    ///< PREMUL_SUM: by which each rank's tensor is multiplied first
};

/// Of a collective that only moves elements: any dtype, by its size.
Elements moved(at::ScalarType dtype);

/// Of a message, of which both sides must have the same type: the dtype's, where Sluice has it.
Elements sent(at::ScalarType dtype);

/// Of a collective that reduces. A bool's sum and maximum are its logical or, its product and
/// minimum the logical and, as PyTorch defines them; complex numbers have a sum and an average.
Reducing reduced(const std::string& call, at::ScalarType dtype, const c10d::ReduceOp& op);

/// "float16", "bfloat16", "int8" or "int4".
sluice::Encoding encoding_named(const std::string& call, const std::string& name);

std::string dtype_name(at::ScalarType dtype);  ///< "float32"

/// "float32 [1024, 64]", "float32 [1024, 64] strides [1, 1024]" where it is not contiguous.
std::string described(const at::Tensor& tensor);

}  // namespace sluice_torch
