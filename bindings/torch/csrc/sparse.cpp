#include "bindings/torch/csrc/sparse.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/SparseTensorUtils.h>

#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/shared_tensors.hpp"

namespace sluice_torch {
namespace {

constexpr const char* kCall = "sparse all_reduce";

/// A rank's slot in the first gathering: how many rows it has, and the first of them.
constexpr std::size_t kSlotNumbers = 1024;

/// Rows of fewer bytes share blocks: each block takes a packet 12 bytes beside what it holds.
constexpr std::uint64_t kBlockBytesMin = 64;

/// Up to so many words of a bitmap are scanned in the time in which a row's number is sorted.
constexpr std::uint64_t kWordsPerNumberSorted = 8;

/// A row lies anywhere in the sum: its memory is asked for while so many others are written.
constexpr std::size_t kRowsAhead = 8;

using Rows = std::vector<std::int64_t>;  // numbers of rows

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
  for (std::int64_t dimension = dimensions - 1; dimension > 0; --dimension) {
    auto* const index = indices[dimension].data_ptr<std::int64_t>();
    const std::int64_t size = sizes[std::size_t(dimension)];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      index[i] = rows[i] % size;
      rows[i] /= size;
    }
  }
  std::copy(rows.begin(), rows.end(), indices[0].data_ptr<std::int64_t>());
  return indices;
}

template <class T>
void prefetch(const T* row, std::int64_t elements) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < elements; i += kLine) __builtin_prefetch(row + i, 1);
}

class SparseSum {
 public:
  SparseSum(const at::Tensor& target, const Reducing& kind)
      : target_(target), kind_(kind), tag_(tag_of(kCall, target)), row_count_(row_count(target)) {
    rows_ = numbers_of(target._indices().cpu().contiguous(), target.sizes());
    values_ = target._values().cpu().contiguous();
  }

  static std::vector<Step> steps(const std::shared_ptr<SparseSum>& sum) {
    return {[=](sluice::Communicator& job) { return sum->gather_slots(job); },
            [=](sluice::Communicator& job) { return sum->unite_many(job); },
            [=](sluice::Communicator& job) { return sum->add_values(job); }};
  }

  void write_result() {
    const at::Tensor indices = indices_of(std::move(union_), target_.sizes(), target_.sparse_dim());
    at::sparse::alias_into_sparse(target_, indices.to(target_.device()), sum_.to(target_.device()));
    target_._coalesced_(true);
  }

 private:
  sluice::Work gather_slots(sluice::Communicator& job) {
    gathered_.resize(job.world_size() * kSlotNumbers);
    std::int64_t* const own = gathered_.data() + job.rank() * kSlotNumbers;
    own[0] = static_cast<std::int64_t>(rows_.size());
    std::copy_n(rows_.begin(), std::min(rows_.size(), kSlotNumbers - 1), own + 1);
    const std::vector<std::uint64_t> counts(job.world_size(), kSlotNumbers);
    return job.all_gather(own, gathered_.data(), counts, sluice::ElementType::kInt64,
                          {.tag = tag_});
  }

  /// From here on every rank knows all counts, so all take the same way.
  sluice::Work unite_many(sluice::Communicator& job) {
    std::vector<std::uint64_t> counts;
    for (std::size_t slot = 0; slot < gathered_.size(); slot += kSlotNumbers)
      counts.push_back(static_cast<std::uint64_t>(gathered_[slot]));
    if (*std::max_element(counts.begin(), counts.end()) < kSlotNumbers) {
      join_slots(counts);
      return {};
    }
    const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    if (words_of_bitmap() <= total) return unite_bitmaps(job);
    gathered_.resize(total);
    return job.all_gather(rows_.data(), gathered_.data(), counts, sluice::ElementType::kInt64,
                          {.tag = tag_});
  }

  /// The slots hold all there is.
  void join_slots(const std::vector<std::uint64_t>& counts) {
    auto end = gathered_.begin();
    for (std::size_t rank = 0; rank < counts.size(); ++rank)
      end = std::copy_n(gathered_.begin() + static_cast<std::ptrdiff_t>(rank * kSlotNumbers + 1),
                        counts[rank], end);
    gathered_.erase(end, gathered_.end());
  }

  sluice::Work unite_bitmaps(sluice::Communicator& job) {
    gathered_.clear();
    mark(rows_);
    return job.all_reduce(bitmap_.data(), bitmap_.data(), bitmap_.size(),
                          sluice::ElementType::kInt64,
                          {.reduction = sluice::Reduction::kBitOr, .tag = tag_});
  }

  sluice::Work add_values(sluice::Communicator& job) {
    form_union();
    for (std::int64_t& row : rows_) row = place_of(row);
    auto shape = values_.sizes().vec();
    shape.front() = static_cast<std::int64_t>(union_.size());
    {
      const SharedTensors shared;
      sum_ = at::empty(shape, values_.options());
    }
    if (sum_.numel() == 0) return {};
    const std::uint16_t wanted = block_elements(job);
    write_own_rows(job.block_elements(kind_.elements.type, wanted));
    return job.all_reduce(sum_.data_ptr(), sum_.data_ptr(), kind_.elements.of(sum_.numel()),
                          kind_.elements.type,
                          {.reduction = kind_.reduction,
                           .block_elements = wanted,
                           .nonzero_blocks = nonzero_blocks_,
                           .tag = tag_});
  }

  std::uint64_t words_of_bitmap() const {
    return (static_cast<std::uint64_t>(row_count_) + 63) / 64;
  }

  void form_union() {
    if (bitmap_.empty() && words_of_bitmap() <= kWordsPerNumberSorted * gathered_.size())
      mark(gathered_);
    if (bitmap_.empty()) {
      union_ = std::move(gathered_);
      std::sort(union_.begin(), union_.end());
      union_.erase(std::unique(union_.begin(), union_.end()), union_.end());
      return;
    }
    words_before_.reserve(bitmap_.size());
    for (std::size_t word = 0; word < bitmap_.size(); ++word) {
      words_before_.push_back(static_cast<std::int64_t>(union_.size()));
      for (std::uint64_t bits = bitmap_[word]; bits != 0; bits &= bits - 1)
        union_.push_back(static_cast<std::int64_t>(word * 64) + std::countr_zero(bits));
    }
  }

  void mark(const Rows& rows) {
    bitmap_.resize(words_of_bitmap());
    for (const std::int64_t row : rows) bitmap_[row / 64] |= std::uint64_t{1} << (row % 64);
  }

  /// In the union, of one of its rows.
  std::int64_t place_of(std::int64_t row) const {
    if (bitmap_.empty())
      return std::lower_bound(union_.begin(), union_.end(), row) - union_.begin();
    const std::uint64_t lower = (std::uint64_t{1} << (row % 64)) - 1;
    return words_before_[row / 64] + std::popcount(bitmap_[row / 64] & lower);
  }

  /// A row, so that none travels for its neighbour's sake; 0, the job's, for longer and tiny rows.
  std::uint16_t block_elements(const sluice::Communicator& job) const {
    const std::uint64_t row = kind_.elements.of(sum_.stride(0));
    const bool tiny = row * sluice::element_bytes(kind_.elements.type) < kBlockBytesMin;
    return tiny || row > job.block_elements(kind_.elements.type) ? 0
                                                                 : static_cast<std::uint16_t>(row);
  }

  /// Writes this rank's rows to their blocks, which are marked. All other blocks become what the
  /// other ranks have there, as every row of the union is some rank's.
  void write_own_rows(std::uint64_t block_elements) {
    const std::uint64_t elements = kind_.elements.of(sum_.numel());
    const std::uint64_t row_elements = kind_.elements.of(sum_.stride(0));
    nonzero_blocks_.resize((elements + 64 * block_elements - 1) / (64 * block_elements));
    const bool row_is_block = row_elements == block_elements;
    if (!row_is_block) zero_own_blocks(block_elements, row_elements, elements);
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(
        at::kBool, at::kHalf, at::kBFloat16, sum_.scalar_type(), kCall, [&] {
          const std::int64_t size = sum_.stride(0);
          auto* const sum = sum_.data_ptr<scalar_t>();
          const scalar_t* from = values_.data_ptr<scalar_t>();
          for (std::size_t i = 0; i < rows_.size(); ++i, from += size) {
            if (i + kRowsAhead < rows_.size()) prefetch(sum + rows_[i + kRowsAhead] * size, size);
            scalar_t* const to = sum + rows_[i] * size;
            if (row_is_block && mark_block(static_cast<std::uint64_t>(rows_[i])))
              std::copy_n(from, size, to);
            else
              std::transform(from, from + size, to, to,
                             [](scalar_t a, scalar_t b) { return static_cast<scalar_t>(a + b); });
          }
        });
  }

  void zero_own_blocks(std::uint64_t block_elements, std::uint64_t row_elements,
                       std::uint64_t elements) {
    const std::size_t size = sluice::element_bytes(kind_.elements.type);
    auto* const sum = static_cast<std::byte*>(sum_.data_ptr());
    for (const std::int64_t row : rows_) {
      const std::uint64_t begin = static_cast<std::uint64_t>(row) * row_elements;
      const std::uint64_t last = (begin + row_elements - 1) / block_elements;
      for (std::uint64_t block = begin / block_elements; block <= last; ++block) {
        if (!mark_block(block)) continue;
        const std::uint64_t first = block * block_elements;
        std::memset(sum + first * size, 0, std::min(block_elements, elements - first) * size);
      }
    }
  }

  /// False: it was marked.
  bool mark_block(std::uint64_t block) {
    const std::uint64_t bit = std::uint64_t{1} << (block % 64);
    std::uint64_t& word = nonzero_blocks_[block / 64];
    return (std::exchange(word, word | bit) & bit) == 0;
  }

  const at::Tensor target_;
  const Reducing kind_;
  const std::uint64_t tag_;
  const std::int64_t row_count_;
  Rows rows_;          // this rank's, in any order; in the end their places in the union
  at::Tensor values_;  // of them

  Rows gathered_;                      // slots; then of all ranks, unless bitmaps were reduced
  std::vector<std::uint64_t> bitmap_;  // of the union; empty: it was sorted
  Rows union_;                         // of all ranks' rows, rising
  Rows words_before_;                  // rows before each word of the bitmap
  std::vector<std::uint64_t> nonzero_blocks_;
  at::Tensor sum_;  // of the union's rows
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
