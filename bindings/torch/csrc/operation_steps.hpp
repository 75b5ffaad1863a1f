// The steps of which operations consist: what each asks of the library.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include <sluice/sluice.hpp>

#include "bindings/torch/csrc/checks.hpp"
#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/operation.hpp"

namespace sluice_torch {

using Counts = std::vector<std::uint64_t>;  // of the library's elements

sluice::ReduceOptions reducing(const Reducing& kind, std::uint64_t tag,
                               sluice::DeviceTensors* device);
Counts counts_of(const Elements& elements, const Tensors& parts);

/// The sum of all ranks' `host`, in place.
Step all_reduce_step(const at::Tensor& host, const Reducing& kind, std::uint64_t tag);
Step all_gather_step(const at::Tensor& from, const at::Tensor& to, Counts counts,
                     const Elements& elements, std::uint64_t tag);
Step reduce_scatter_step(const at::Tensor& from, const at::Tensor& to, Counts counts,
                         const Reducing& kind, std::uint64_t tag);

/// The ranks tell each other first what they send and expect: all see it when they do not agree.
std::vector<Step> all_to_all_steps(const at::Tensor& from, const at::Tensor& to,
                                   std::vector<std::int64_t> sent,
                                   const std::vector<std::int64_t>& received,
                                   const Elements& elements, std::uint64_t tag);

}  // namespace sluice_torch
