#include "bindings/torch/csrc/checks.hpp"

#include <algorithm>
#include <cstddef>

#include "bindings/torch/csrc/devices.hpp"
#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {

void check_dense(const std::string& call, const at::Tensor& tensor) {
  refuse_capture(call, tensor.device());
  if (tensor.layout() != at::kStrided)
    refuse(call,
           "a tensor is " + described(tensor) +
               "; a dense one expected, all_reduce alone takes sparse ones, of layout Sparse");
  if (tensor.is_quantized())
    refuse(call, "a tensor is " + described(tensor) +
                     ", whose scale does not travel; its int_repr() or dequantize() expected");
}

std::span<float> cpu_floats(const std::string& call, const at::Tensor& tensor) {
  const bool fits = tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
                    tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
                    !tensor.is_neg();
  if (!fits)
    refuse(call, "a tensor is " + described(tensor) + " on " + tensor.device().str() +
                     "; a dense, contiguous float32 tensor on cpu expected");
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

const at::Tensor& only(const std::string& call, const Tensors& tensors) {
  if (tensors.size() != 1) refuse(call, std::to_string(tensors.size()) + " tensors; 1 expected");
  return tensors.front();
}

const at::Tensor& only_dense(const std::string& call, const Tensors& tensors) {
  check_dense(call, only(call, tensors));
  return tensors.front();
}

void check_same_kind(const std::string& call, const Tensors& tensors, const at::Tensor& model) {
  for (const at::Tensor& tensor : tensors) {
    check_dense(call, tensor);
    if (tensor.scalar_type() != model.scalar_type() || tensor.device() != model.device())
      refuse(call, "tensors are " + described(tensor) + " on " + tensor.device().str() + " and " +
                       described(model) + " on " + model.device().str() +
                       "; equal dtypes and devices expected");
  }
}

void check_same_shape(const std::string& call, const Tensors& tensors, const at::Tensor& model) {
  check_same_kind(call, tensors, model);
  for (const at::Tensor& tensor : tensors)
    if (tensor.sizes() != model.sizes())
      refuse(call, "tensors are " + described(tensor) + " and " + described(model) +
                       "; equal shapes expected");
}

void check_elements(const std::string& call, const std::string& name, const at::Tensor& tensor,
                    std::int64_t expected) {
  if (tensor.numel() != expected)
    refuse(call, name + " is " + described(tensor) + " with " + std::to_string(tensor.numel()) +
                     " elements; " + std::to_string(expected) + " expected");
}

std::vector<std::int64_t> checked_split(const std::string& call, const at::Tensor& tensor,
                                        const std::vector<std::int64_t>& sizes,
                                        std::int64_t ranks) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::int64_t sum = 0;
  std::vector<std::int64_t> parts;
  for (const std::int64_t size : sizes) {
    sum += size;
    parts.push_back(size * row);
  }
  if (sizes.empty() && rows % ranks == 0) return std::vector(ranks, rows / ranks * row);
  if (sizes.empty())
    refuse(call, "the first dimension of " + described(tensor) + " is not a multiple of " +
                     std::to_string(ranks) + " ranks; split sizes expected");
  if (std::int64_t(sizes.size()) != ranks || sum != rows ||
      *std::min_element(sizes.begin(), sizes.end()) < 0)
    refuse(call, std::to_string(sizes.size()) + " split sizes with the sum " + std::to_string(sum) +
                     " for " + described(tensor) + "; " + std::to_string(ranks) + " with the sum " +
                     std::to_string(rows) + ", none below 0, expected");
  return parts;
}

}  // namespace sluice_torch
