// The sums of sorted pairs of keys and rows, for neighbouring keys at a time: a window. That is a
// chunk (common/protocol/keyed.hpp) if rows are encoded, as those are rounded chunk by chunk; else
// as many keys as a cache holds the sums of: to find where each rank's pairs leave a window takes
// longer than to add a few of them.
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
  /// So many more pairs are written than there are sums.
  static constexpr std::size_t kSpare = 1;

  using Rejected = std::array<std::uint64_t, wire::kRejectedClasses>;

  /// `type`: of the caller's rows; of the geometry, which must outlive this, as they travel.
  /// `divisor`: of an average. Throws std::bad_alloc.
  WindowSums(const KeyedGeometry& geometry, ElementType type, Reduction reduction,
             std::uint32_t divisor);

  /// The next window begins at the chunk of this key, and ends at `end` or before. Returns where.
  std::uint64_t begin_at(std::uint64_t key, std::uint64_t end);

  /// Adds one rank's next pairs, as far as they are of the window. Their rows are the caller's.
  /// Returns how many. Keys that do not rise are added somewhere in the window, or not at all.
  std::size_t add(std::span<const std::uint64_t> keys, const std::byte* rows,
                  numeric::Rounding rounding);

  /// Writes the window's sums, all or those that reach the threshold, to `keys`, which rise, and
  /// `rows`, which are the caller's again. Then the window is empty. Returns how many.
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
  const std::size_t row_;  // elements
  const std::size_t sum_bytes_;
  const std::size_t most_;  // keys of a window
  const std::unique_ptr<std::byte, Free> sums_;
  std::vector<std::byte> encoded_, rows_, widened_;
  std::vector<std::uint64_t> has_;     // a bit for each key: there is a sum
  std::vector<std::uint8_t> touched_;  // by word of `has_`: it may have some
  std::uint64_t first_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace sluice::worker::host
