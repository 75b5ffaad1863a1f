#include "bindings/torch/csrc/compressors.hpp"

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include <sluice/compress.hpp>

#include "bindings/torch/csrc/checks.hpp"
#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

namespace py = pybind11;
using LeftOut = c10::optional<at::Tensor>;

/// Runs it without Python's lock: other threads compute gradients meanwhile.
template <class Compress>
std::uint64_t compressed(const char* call, const at::Tensor& gradients, const LeftOut& left_out,
                         std::uint32_t block_elements, std::uint32_t ranks, Compress&& compress) {
  const std::span<float> all = cpu_floats(call, gradients);
  const std::span<float> residual = left_out ? cpu_floats(call, *left_out) : std::span<float>();
  if (block_elements == 0) refuse(call, "block_elements is 0; 1 or more expected");
  std::vector<std::uint64_t> sent(
      sluice::block_count(sluice::block_count(all.size(), block_elements), 64));
  try {
    const py::gil_scoped_release unlocked;
    return compress(sluice::BlockCompression{.gradients = all,
                                             .residual = residual,
                                             .out = all,
                                             .sent_blocks = sent,
                                             .block_elements = block_elements,
                                             .divisor = static_cast<float>(ranks)});
  } catch (const sluice::Error& error) {
    std::rethrow_exception(translated(error));
  }
}

std::uint64_t top_k(const at::Tensor& gradients, const LeftOut& left_out,
                    std::uint32_t block_elements, std::uint32_t ranks, std::uint64_t k) {
  return compressed(
      "compress_top_k", gradients, left_out, block_elements, ranks,
      [&](const sluice::BlockCompression& blocks) { return sluice::compress_top_k(blocks, k); });
}

std::uint64_t top_k_ratio(const at::Tensor& gradients, const LeftOut& left_out,
                          std::uint32_t block_elements, std::uint32_t ranks, std::uint64_t k,
                          const at::Tensor& parameters) {
  const std::span<float> weights = cpu_floats("compress_top_k_ratio", parameters);
  return compressed("compress_top_k_ratio", gradients, left_out, block_elements, ranks,
                    [&](const sluice::BlockCompression& blocks) {
                      return sluice::compress_top_k_ratio(blocks, weights, k);
                    });
}

std::uint64_t threshold(const at::Tensor& gradients, const LeftOut& left_out,
                        std::uint32_t block_elements, std::uint32_t ranks, double norm) {
  return compressed("compress_threshold", gradients, left_out, block_elements, ranks,
                    [&](const sluice::BlockCompression& blocks) {
                      return sluice::compress_threshold(blocks, norm);
                    });
}

std::uint64_t random_k(const at::Tensor& gradients, const LeftOut& left_out,
                       std::uint32_t block_elements, std::uint32_t ranks, std::uint64_t k,
                       std::uint64_t seed, std::uint64_t step) {
  return compressed("compress_random_k", gradients, left_out, block_elements, ranks,
                    [&](const sluice::BlockCompression& blocks) {
                      return sluice::compress_random_k(blocks, k, seed, step);
                    });
}

}  // namespace

void define_compressors(py::module_& module) {
  module.def("compress_top_k", &top_k);
  module.def("compress_top_k_ratio", &top_k_ratio);
  module.def("compress_threshold", &threshold);
  module.def("compress_random_k", &random_k);
}

}  // namespace sluice_torch
