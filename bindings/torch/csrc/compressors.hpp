// The library's compressors on CPU tensors, for the hooks in Python.
#pragma once

#include <c10/util/Optional.h>
#include <torch/csrc/utils/pybind.h>

namespace sluice_torch {

/// compress_top_k, compress_top_k_ratio (last, `parameters`: as `gradients`), compress_threshold,
/// compress_random_k of a module in Python. Each compresses
/// `gradients` in place, contiguous float32 of the CPU, divides what is sent by `ranks`, leaves the
/// rest in `left_out`, likewise or None, and returns the number of blocks sent. Other tensors raise
/// ValueError.
void define_compressors(pybind11::module_& module);

}  // namespace sluice_torch
