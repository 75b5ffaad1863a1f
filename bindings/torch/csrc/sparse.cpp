#include "bindings/torch/csrc/sparse.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/SparseTensorUtils.h>

#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

constexpr const char* kCall = "sparse all_reduce";

/// Of more rows the bitmap, of 32 MiB then, costs more than the numbers of those there are.
constexpr std::int64_t kBitmapRowsMax = std::int64_t{1} << 28;

/// So many bits of a bitmap, or fewer, are better spent on the number of a row.
constexpr std::uint64_t kRowsPerNumberGathered = 8;

using Rows = std::vector<std::int64_t>;  // numbers of rows
using Bitmap = std::vector<std::uint64_t>;

/// Rows of all sparse dimensions together.
std::int64_t row_count(const at::Tensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.sizes().slice(0, std::size_t(tensor.sparse_dim())))
    if (__builtin_mul_overflow(count, size, &count))
      refuse(kCall, described(tensor) + " has more than 2^63 rows");
  return count;
}

Rows numbers_of(const at::Tensor& indices, at::IntArrayRef sizes) {
  Rows rows(static_cast<std::size_t>(indices.size(1)));
  for (std::int64_t dimension = 0; dimension < indices.size(0); ++dimension) {
    const auto* const index = indices[dimension].data_ptr<std::int64_t>();
    const std::int64_t size = sizes[std::size_t(dimension)];
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = rows[i] * size + index[i];
  }
  return rows;
}

at::Tensor indices_of(Rows rows, at::IntArrayRef sizes, std::int64_t dimensions) {
  const auto count = static_cast<std::int64_t>(rows.size());
  at::Tensor indices = at::empty({dimensions, count}, at::kLong);
  for (std::int64_t dimension = dimensions - 1; dimension >= 0; --dimension) {
    auto* const index = indices[dimension].data_ptr<std::int64_t>();
    const std::int64_t size = sizes[std::size_t(dimension)];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      index[i] = rows[i] % size;
      rows[i] /= size;
    }
  }
  return indices;
}

class SparseSum {
 public:
  SparseSum(const at::Tensor& target, const Reducing& kind)
      : target_(target), kind_(kind), tag_(tag_of(kCall, target)), row_count_(row_count(target)) {
    rows_ = numbers_of(target._indices().cpu().contiguous(), target.sizes());
    values_ = target._values().cpu().contiguous();
  }

  static std::vector<Step> steps(const std::shared_ptr<SparseSum>& sum) {
    return {[=](sluice::Communicator& job) { return sum->gather_counts(job); },
            [=](sluice::Communicator& job) { return sum->unite(job); },
            [=](sluice::Communicator& job) { return sum->add_values(job); }};
  }

  void write_result() const {
    const at::Tensor indices = indices_of(union_, target_.sizes(), target_.sparse_dim());
    const at::Tensor values =
        places_.empty() ? sum_ : sum_.index_select(0, at::tensor(places_, at::kLong));
    at::sparse::alias_into_sparse(target_, indices.to(target_.device()),
                                  values.to(target_.device()));
    target_._coalesced_(true);
  }

 private:
  sluice::Work gather_counts(sluice::Communicator& job) {
    own_count_ = rows_.size();
    counts_.resize(job.world_size());
    const std::vector<std::uint64_t> ones(counts_.size(), 1);
    return job.all_gather(&own_count_, counts_.data(), ones, sluice::ElementType::kInt64,
                          {.tag = tag_});
  }

  /// From here on every rank knows all counts, so all take the same way.
  sluice::Work unite(sluice::Communicator& job) {
    const std::uint64_t total = std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
    const auto row_count = static_cast<std::uint64_t>(row_count_);
    if (row_count_ <= kBitmapRowsMax && total > row_count / kRowsPerNumberGathered)
      return unite_bitmaps(job);
    gathered_.resize(total);
    return job.all_gather(rows_.data(), gathered_.data(), counts_, sluice::ElementType::kInt64,
                          {.tag = tag_});
  }

  sluice::Work unite_bitmaps(sluice::Communicator& job) {
    mark(rows_);
    return job.all_reduce(bitmap_.data(), bitmap_.data(), bitmap_.size(),
                          sluice::ElementType::kInt64,
                          {.reduction = sluice::Reduction::kBitOr, .tag = tag_});
  }

  sluice::Work add_values(sluice::Communicator& job) {
    form_union();
    auto shape = values_.sizes().vec();
    shape.front() = static_cast<std::int64_t>(union_.size());
    sum_ = at::zeros(shape, values_.options());
    if (sum_.numel() == 0) return {};
    add_own_values();
    mark_blocks(job.block_elements(kind_.elements.type));
    return job.all_reduce(
        sum_.data_ptr(), sum_.data_ptr(), kind_.elements.of(sum_.numel()), kind_.elements.type,
        {.reduction = kind_.reduction, .nonzero_blocks = nonzero_blocks_, .tag = tag_});
  }

  void form_union() {
    Bitmap shared;
    if (row_count_ > kBitmapRowsMax) {
      union_ = gathered_;
      std::sort(union_.begin(), union_.end());
      union_.erase(std::unique(union_.begin(), union_.end()), union_.end());
    } else {
      if (bitmap_.empty()) shared = mark(gathered_);
      for (std::size_t word = 0; word < bitmap_.size(); ++word) {
        words_before_.push_back(static_cast<std::int64_t>(union_.size()));
        for (std::uint64_t bits = bitmap_[word]; bits != 0; bits &= bits - 1)
          union_.push_back(static_cast<std::int64_t>(word * 64) + std::countr_zero(bits));
      }
    }
    if (!shared.empty()) order_by_rank(shared);
    for (std::int64_t& row : rows_) row = place_of(row);
  }

  /// Sets the rows' bits. Those of rows that come more than once are returned.
  Bitmap mark(const Rows& rows) {
    bitmap_.resize(static_cast<std::size_t>(row_count_ + 63) / 64);
    Bitmap again(bitmap_.size());
    for (const std::int64_t row : rows) {
      const std::uint64_t bit = std::uint64_t{1} << (row % 64);
      again[row / 64] |= bitmap_[row / 64] & bit;
      bitmap_[row / 64] |= bit;
    }
    return again;
  }

  /// The rows that one rank alone has come first, those of each rank together: so most blocks are
  /// of one rank. In the union's order, with few rows in common, most would be of several.
  void order_by_rank(const Bitmap& shared) {
    const auto is_shared = [&](std::int64_t row) { return (shared[row / 64] >> (row % 64)) & 1; };
    std::int64_t next = 0;
    places_.resize(union_.size());
    for (const std::int64_t row : gathered_)
      if (!is_shared(row)) places_[index_of(row)] = next++;
    for (std::size_t i = 0; i < union_.size(); ++i)
      if (is_shared(union_[i])) places_[i] = next++;
  }

  /// In the union, of one of its rows.
  std::int64_t index_of(std::int64_t row) const {
    if (bitmap_.empty())
      return std::lower_bound(union_.begin(), union_.end(), row) - union_.begin();
    const std::uint64_t lower = (std::uint64_t{1} << (row % 64)) - 1;
    return words_before_[row / 64] + std::popcount(bitmap_[row / 64] & lower);
  }

  /// In the compact tensor.
  std::int64_t place_of(std::int64_t row) const {
    const std::int64_t index = index_of(row);
    return places_.empty() ? index : places_[index];
  }

  void add_own_values() {
    const std::int64_t row_elements = sum_.stride(0);
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(
        at::kBool, at::kHalf, at::kBFloat16, sum_.scalar_type(), kCall, [&] {
          const scalar_t* from = values_.data_ptr<scalar_t>();
          for (const std::int64_t row : rows_) {
            scalar_t* const to = sum_.data_ptr<scalar_t>() + row * row_elements;
            for (std::int64_t i = 0; i < row_elements; ++i)
              to[i] = static_cast<scalar_t>(to[i] + from[i]);
            from += row_elements;
          }
        });
  }

  void mark_blocks(std::uint64_t block_elements) {
    const std::uint64_t row_elements = kind_.elements.of(sum_.stride(0));
    const std::uint64_t blocks =
        (kind_.elements.of(sum_.numel()) + block_elements - 1) / block_elements;
    nonzero_blocks_.resize((blocks + 63) / 64);
    for (const std::int64_t row : rows_) {
      const auto begin = static_cast<std::uint64_t>(row) * row_elements;
      const std::uint64_t last = (begin + row_elements - 1) / block_elements;
      for (std::uint64_t block = begin / block_elements; block <= last; ++block)
        nonzero_blocks_[block / 64] |= std::uint64_t{1} << (block % 64);
    }
  }

  const at::Tensor target_;
  const Reducing kind_;
  const std::uint64_t tag_;
  const std::int64_t row_count_;
  Rows rows_;          // this rank's, in any order; in the end their places in the union
  at::Tensor values_;  // of them

  std::uint64_t own_count_ = 0;
  std::vector<std::uint64_t> counts_;
  Rows gathered_;  // of all ranks, one rank's after the other's; empty: the bitmap was reduced
  Bitmap bitmap_;  // of the union; empty: there are too many rows for that

  Rows union_;         // of all ranks' rows, rising
  Rows words_before_;  // rows before each word of the bitmap
  Rows places_;        // of each row of the union in the compact tensor; empty: the same order
  std::vector<std::uint64_t> nonzero_blocks_;
  at::Tensor sum_;
};

}  // namespace

Operation::Request sparse_all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const at::NoGradGuard no_grad;
  const Reducing kind = reduced(kCall, tensor.scalar_type(), op);
  if (op.op_ != c10d::ReduceOp::SUM && op.op_ != c10d::ReduceOp::AVG)
    refuse(kCall, "SUM or AVG expected");
  const auto sum = std::make_shared<SparseSum>(tensor, kind);
  return {.call = kCall,
          .tensor = tensor,
          .staging = Staging(tensor.device()),
          .steps = SparseSum::steps(sum),
          .outputs = {tensor},
          .finish = [sum] { sum->write_result(); }};
}

}  // namespace sluice_torch
