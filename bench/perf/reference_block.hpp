// The correct reduction, bit for bit, by plain scalar code in rank order. It handles one block at a
// time, so that checking needs little memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <sluice/types.hpp>

#include "bench/perf/tensors.hpp"

namespace sluice::perf {

__extension__ using Int128 = __int128;

/// Wider than any integer, so that averages are exact.
template <class T>
struct AccumulatorOf {
  using Type = std::conditional_t<std::is_integral_v<T>, Int128, T>;
};
template <>
struct AccumulatorOf<Float16> {
  using Type = float;
};
template <>
struct AccumulatorOf<BFloat16> {
  using Type = float;
};

/// The reduction of one block. Owners are added lowest rank first. The others' blocks are zero:
/// they add nothing to a sum, and take part in min and max as one +0 at the end. 16-bit floats are
/// accumulated as float; an average divides before the single rounding, and an average of integers
/// does not wrap. No float becomes -0.
template <class T>
class ReferenceBlock {
 public:
  ReferenceBlock(Reduction reduction, std::uint16_t ranks, std::size_t elements);

  /// With `elements` elements; call it at most `ranks` times.
  void add(std::span<const T> owners_block);
  void result(std::span<T> out) const;  ///< all +0 if nothing was added

 private:
  Reduction reduction_;
  std::uint16_t ranks_;
  std::uint16_t owners_ = 0;
  std::vector<typename AccumulatorOf<T>::Type> accumulators_;
};

/// Elements of `result` (a whole tensor, tensors.bytes() long) whose bits are not the reference's.
std::uint64_t count_wrong(const TensorSet& tensors, std::uint64_t run, Reduction reduction,
                          std::span<const std::byte> result);

struct EncodedOp {
  Reduction reduction = Reduction::kSum;  ///< or average
  Encoding encoding = Encoding::kInt8;
  bool is_stochastic = false;
};

/// The number of float elements that differ from the exact sum or average by more than `op`'s
/// encoding permits. If no rank owns a block, it must be +0.
std::uint64_t count_beyond_bound(const TensorSet& tensors, std::uint64_t run, const EncodedOp& op,
                                 std::span<const std::byte> result);

}  // namespace sluice::perf
