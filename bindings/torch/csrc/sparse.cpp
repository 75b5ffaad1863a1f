#include "bindings/torch/csrc/sparse.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#if __has_include(<ATen/native/SparseTensorUtils.h>)
#include <ATen/native/SparseTensorUtils.h>  // since PyTorch 2
#else
#include <ATen/SparseTensorUtils.h>
#endif

#include "bindings/torch/csrc/devices.hpp"
#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/layout_tag.hpp"
#include "bindings/torch/csrc/shared_tensors.hpp"

namespace sluice_torch {
namespace {

constexpr const char* kCall = "sparse all_reduce";

using Keys = std::vector<std::uint64_t>;  // numbers of rows

/// Rows of all sparse dimensions together.
std::int64_t row_count(const at::Tensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.sizes().slice(0, std::size_t(tensor.sparse_dim())))
    if (__builtin_mul_overflow(count, size, &count))
      refuse(kCall, described(tensor) + " has more than 2^63 rows");
  return count;
}

Keys keys_of(const at::Tensor& indices, at::IntArrayRef sizes) {
  Keys keys(static_cast<std::size_t>(indices.size(1)));
  for (std::int64_t dimension = 0; dimension < indices.size(0); ++dimension) {
    const auto* const index = indices[dimension].data_ptr<std::int64_t>();
    const auto size = static_cast<std::uint64_t>(sizes[std::size_t(dimension)]);
    for (std::size_t i = 0; i < keys.size(); ++i)
      keys[i] = keys[i] * size + static_cast<std::uint64_t>(index[i]);
  }
  return keys;
}

/// Turns the numbers of rows, which the first dimension's indices are, into indices.
void split(at::Tensor& indices, at::IntArrayRef sizes) {
  auto* const rest = indices[0].data_ptr<std::int64_t>();
  for (std::int64_t dimension = indices.size(0) - 1; dimension > 0; --dimension) {
    auto* const index = indices[dimension].data_ptr<std::int64_t>();
    const std::int64_t size = sizes[std::size_t(dimension)];
    for (std::int64_t i = 0; i < indices.size(1); ++i) {
      index[i] = rest[i] % size;
      rest[i] /= size;
    }
  }
}

class SparseSum {
 public:
  SparseSum(const at::Tensor& target, const Reducing& kind)
      : target_(target),
        kind_(kind),
        tag_(tag_of(kCall, target)),
        key_bound_(std::max<std::int64_t>(1, row_count(target))),
        keys_(keys_of(target._indices().cpu().contiguous(), target.sizes())),
        values_(target._values().cpu().resolve_conj().resolve_neg().contiguous()) {}

  sluice::Work start(sluice::Communicator& job) {
    // A row without elements has nothing to add, but is there: a byte stands for it.
    const bool is_empty = row_elements() == 0;
    if (is_empty) stand_ins_.resize(keys_.size());
    const sluice::SparseTensor tensor{
        .keys = keys_,
        .values = is_empty ? stand_ins_.data() : values_.data_ptr(),
        .type = is_empty ? sluice::ElementType::kUInt8 : kind_.elements.type,
        .row_elements = is_empty ? 1 : row_elements()};
    sluice::SparseOptions options;
    options.reduction = is_empty ? sluice::Reduction::kMax : kind_.reduction;
    options.result_bytes = std::numeric_limits<std::size_t>::max();
    const bool are_rising =
        std::ranges::adjacent_find(keys_, std::ranges::greater_equal()) == keys_.end();
    options.combine = !are_rising;
    options.tag = tag_;
    return work_ = job.all_reduce(tensor, static_cast<std::uint64_t>(key_bound_), options);
  }

  void write_result() {
    const auto count = static_cast<std::int64_t>(work_.size());
    auto shape = values_.sizes().vec();
    shape.front() = count;
    at::Tensor values;
    {
      const SharedTensors shared;
      values = at::empty(shape, values_.options());
    }
    at::Tensor indices = at::empty({target_.sparse_dim(), count}, at::kLong);
    if (count != 0) {
      auto* const keys = reinterpret_cast<std::uint64_t*>(indices.data_ptr<std::int64_t>());
      if (row_elements() == 0) {
        std::vector<std::uint8_t> stand_ins(work_.size());
        work_.copy_to(keys, stand_ins.data(), sluice::ElementType::kUInt8);
      } else {
        work_.copy_to(keys, values.data_ptr(), kind_.elements.type);
      }
      split(indices, target_.sizes());
    }
    at::sparse::alias_into_sparse(target_, indices.to(target_.device()),
                                  values.to(target_.device()));
    target_._coalesced_(true);
    work_ = {};
  }

 private:
  std::uint64_t row_elements() const {
    std::int64_t count = 1;
    for (const std::int64_t size : values_.sizes().slice(1)) count *= size;
    return kind_.elements.of(count);
  }

  const at::Tensor target_;
  const Reducing kind_;
  const std::uint64_t tag_;
  const std::int64_t key_bound_;
  const Keys keys_;          // this rank's, in any order
  const at::Tensor values_;  // of them
  std::vector<std::uint8_t> stand_ins_;
  sluice::SparseWork work_;
};

}  // namespace

Operation::Request sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::NoGradGuard no_grad;
  refuse_capture(kCall, tensor.device());
  const Reducing kind = reduced(kCall, tensor.scalar_type(), op);
  if (op.op_ != c10d::ReduceOp::SUM && op.op_ != c10d::ReduceOp::AVG)
    refuse(kCall, "SUM or AVG expected");
  if (tensor.sparse_dim() == 0)
    refuse(kCall, described(tensor) + " has no sparse dimension; 1 or more expected");
  const auto sum = std::make_shared<SparseSum>(tensor, kind);
  return {.call = kCall,
          .tensor = tensor,
          .staging = Staging(tensor.device()),
          .steps = {[sum](sluice::Communicator& job, sluice::DeviceTensors*) {
            return sum->start(job);
          }},
          .outputs = {tensor},
          .finish = [sum] { sum->write_result(); }};
}

}  // namespace sluice_torch
