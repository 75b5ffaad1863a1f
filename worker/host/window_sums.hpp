// The sums of sorted pairs of keys and rows, for a range of keys at a time: the window. If rows are
// encoded, a window is one chunk (common/protocol/keyed.hpp), as chunks are rounded one by one.
// Otherwise it has as many keys as there are sums in a cache: to find where each rank's pairs leave
// a window takes longer than to add a few pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sluice/types.hpp>

#include "common/numeric/encoding.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/keyed.hpp"

namespace sluice::worker::host {

class WindowSums {
 public:
  /// How many more pairs are written than there are sums.
  static constexpr std::size_t kSpare = 1;

  using Rejected = std::array<std::uint64_t, wire::kRejectedClasses>;

  /// `type` is the type of the caller's rows; `geometry`, which must outlive this, has the type in
  /// which they travel. `divisor` is for an average. Throws std::bad_alloc.
  WindowSums(const KeyedGeometry& geometry, ElementType type, Reduction reduction,
             std::uint32_t divisor);

  /// Begins the next window at the chunk of this key. It ends at `end` or before. Returns where it
  /// ends.
  std::uint64_t begin_at(std::uint64_t key, std::uint64_t end);

  /// Adds the next pairs of one rank, with rows of the caller's type, as far as they lie in the
  /// window. Returns how many were added. Keys that are not ascending are added somewhere in the
  /// window, or not at all.
  std::size_t add(std::span<const std::uint64_t> keys, const std::byte* rows,
                  numeric::Rounding rounding);

  /// Writes the window's sums, or those that reach the threshold, to `keys` (ascending) and `rows`
  /// (of the caller's type). The window is empty afterwards. Returns how many were written.
  std::size_t take(double threshold, numeric::Rounding rounding, std::uint64_t* keys,
                   std::byte* rows, Rejected& rejected);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  template <class Function>
  void for_each_word(const Function& f);
  std::uint64_t take_touched(std::size_t group);
  std::size_t add_floats(std::span<const std::uint64_t> keys, const std::byte* rows);
  template <bool divides>
  std::size_t take_floats(std::uint64_t* keys, std::byte* rows);
  const std::byte* as_they_travel(const std::byte* rows, std::size_t elements,
                                  numeric::Rounding rounding);
  bool is_rejected(const std::byte* row, double threshold, Rejected& rejected);

  const KeyedGeometry& geometry_;
  const numeric::BlockReduction& kernels_;
  const std::uint32_t divisor_;
  const bool is_encoded_;
  const bool is_average_;
  const bool is_float_;    // one fp32 for each key
  const std::size_t row_;  // its elements
  const std::size_t sum_bytes_;
  const std::size_t most_;  // keys of a window
  const std::unique_ptr<std::byte, Free> sums_;
  std::vector<std::byte> encoded_, rows_, widened_;
  std::vector<std::uint64_t> has_;     // a bit for each key: it has a sum
  std::vector<std::uint8_t> touched_;  // for each word of `has_`: it may not be zero
  std::uint64_t first_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace sluice::worker::host
