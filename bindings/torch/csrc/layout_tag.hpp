// What ranks must agree in, and the library cannot see: the kind of a call, the dtype, and the
// order of the elements in memory. A collective's tag says it: equal on ranks that agree, and
// readable in the error that those get who do not.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>

namespace sluice_torch {

/// `call` is a collective's name.
std::uint64_t tag_of(const std::string& call, const at::Tensor& tensor);

/// An error of the library about a collective, with layouts in place of tags: "rank 1 has
/// all_reduce of float32, dimensions by stride 1, 0".
std::string with_layouts(const std::string& error);

}  // namespace sluice_torch
