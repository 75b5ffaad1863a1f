// What a call can take: all of these refuse with a text that names the call, and what was expected.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace sluice_torch {

using Tensors = std::vector<at::Tensor>;

void check_dense(const std::string& call, const at::Tensor& tensor);

/// The elements of a contiguous float32 tensor of the CPU; others are refused.
std::span<float> cpu_floats(const std::string& call, const at::Tensor& tensor);

/// The one tensor of the list.
const at::Tensor& only(const std::string& call, const Tensors& tensors);
const at::Tensor& only_dense(const std::string& call, const Tensors& tensors);

/// All dense, and of the model's dtype and device.
void check_same_kind(const std::string& call, const Tensors& tensors, const at::Tensor& model);
void check_same_shape(const std::string& call, const Tensors& tensors, const at::Tensor& model);

void check_elements(const std::string& call, const std::string& name, const at::Tensor& tensor,
                    std::int64_t expected);

/// Elements of each rank's part of a tensor that is split along its first dimension, into parts of
/// `sizes`, or equal ones where that is empty.
std::vector<std::int64_t> checked_split(const std::string& call, const at::Tensor& tensor,
                                        const std::vector<std::int64_t>& sizes, std::int64_t ranks);

}  // namespace sluice_torch
