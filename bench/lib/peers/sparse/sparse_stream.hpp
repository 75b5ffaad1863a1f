/// Sparse streams: pairs of index and value, sorted by index, no index twice; or the dense form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace sparse {

struct Pair {
  std::uint32_t index;
  float value;
};
static_assert(sizeof(Pair) == 8);

/// Leaves new elements uninitialised: all are written next, and zeroing them costs time.
template <class T>
struct Uninitialized : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Uninitialized<U>;
  };
  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    std::construct_at(place, static_cast<Arguments&&>(arguments)...);
  }
};

template <class T>
using Buffer = std::vector<T, Uninitialized<T>>;
using Pairs = Buffer<Pair>;
using Dense = Buffer<float>;
using Run = std::span<const Pair>;

/// A sum: `values` of all elements if it is dense, otherwise `pairs`.
struct Stream {
  bool is_dense = false;
  Pairs pairs;
  Dense values;
};

/// With more pairs than this, the dense form is smaller: N v / (i + v), where i and v are the bytes
/// of an index and a value (SparCML, section 5.1).
inline std::size_t delta(std::size_t elements) {
  return elements * sizeof(float) / sizeof(Pair);
}

/// Where the range of rank r begins if E elements are divided evenly: E r / P; P + 1 numbers.
std::vector<std::uint32_t> even_ranges(std::uint32_t elements, int ranks);

/// The part of each range.
std::vector<Run> cut(Run pairs, const std::vector<std::uint32_t>& begins);

/// Equal indices are added.
Pairs merge(Run a, Run b);
/// By a tree of merges of two: each pair is moved log2(runs) times.
Pairs merge_all(std::vector<Run> runs);

Dense zeros(std::size_t count);
/// `values[0]` has the index `first`.
void add_pairs(Run pairs, std::uint32_t first, std::span<float> values);
/// The sum of pairs, in the smaller form.
Stream sum_of_runs(const std::vector<Run>& runs, std::size_t elements);

}  // namespace sparse
