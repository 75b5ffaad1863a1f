// The shape of weights and gradients: one row per feature bucket, one column per section. A record
// touches only the rows of its words, so a gradient is zero in whole rows: a row is one block.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace section_trainer {

constexpr std::size_t kColumns = 64;        ///< most sections a model can tell apart
constexpr std::size_t kBuckets = 1u << 17;  ///< features are hashed into this many rows
constexpr std::size_t kParameters = kBuckets * kColumns;

struct alignas(64) Row {
  std::array<float, kColumns> at{};
};
static_assert(sizeof(Row) == kColumns * sizeof(float));

class Table {
 public:
  Row& operator[](std::size_t row) { return rows_[row]; }
  const Row& operator[](std::size_t row) const { return rows_[row]; }

  std::span<float> tensor() { return {rows_.front().at.data(), kParameters}; }
  std::span<const float> tensor() const { return {rows_.front().at.data(), kParameters}; }

 private:
  std::vector<Row> rows_ = std::vector<Row>(kBuckets);
};

/// Which rows of a table may be non-zero: bit r % 64 of word r / 64.
class RowSet {
 public:
  void insert(std::size_t row) { words_[row / 64] |= std::uint64_t{1} << (row % 64); }
  void clear() { words_.fill(0); }
  std::span<const std::uint64_t> words() const { return words_; }

  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t bits = words_[w]; bits != 0; bits &= bits - 1)
        visit(w * 64 + std::size_t(std::countr_zero(bits)));
  }

 private:
  std::array<std::uint64_t, kBuckets / 64> words_{};
};

}  // namespace section_trainer
