// Ok-Topk's loop (sluice/global_top_k.hpp) over one tensor of the CPU, for the hook in Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <sluice/global_top_k.hpp>

#include "bindings/torch/csrc/operation.hpp"

namespace sluice_torch {

/// Steps follow one another; all ranks take the same ones.
class TopKSums : public std::enable_shared_from_this<TopKSums> {
 public:
  /// `residual`: contiguous float32 of the CPU, at most 2^32 elements, zeros at first. `k` and
  /// `exact_every` (1 or more) as GlobalTopK::Options. Throws ValueError for others.
  TopKSums(const at::Tensor& residual, std::uint64_t k, std::uint32_t exact_every);

  /// `gradients`, as the residual, becomes the average over the ranks: +0 but for about k elements.
  /// If the op fails or does not begin, the residual becomes gradients + residual; after a time-out
  /// it does so once the op is over, but for what the other ranks have received. Throws ValueError
  /// for another tensor, and while a step is under way: then the residual stays as it is.
  Operation::Request step(const at::Tensor& gradients);

  /// (all ranks) The next step begins anew, with threshold 0. Throws ValueError during a step.
  void forget();

  std::uint64_t sent() const { return top_k_.sent(); }    ///< elements by this rank, last step
  std::uint64_t delivered() const { return delivered_; }  ///< elements of the last step's result

 private:
  class Step;

  const at::Tensor residual_;
  sluice::GlobalTopK top_k_;
  std::uint64_t delivered_ = 0;
  std::atomic<bool> under_way_{false};  // a step is: nobody else may touch the rest
};

/// TopKSums, as a class of a module in Python.
void define_top_k_sums(pybind11::module_& module);

}  // namespace sluice_torch
