// Sums of blocks, the search for blocks that are not zero, and copies, with SIMD that is chosen at
// run time.
//
// Accumulators of 16-bit floats are fp32, so that a sum is rounded to the element type only once.
// For averages of integers they have twice the width, in which the sum of 256 ranks is exact.
// Otherwise they have the element's type. `in` and `out` point into packets and tensors and need no
// alignment. `acc` needs the alignment of its type, and is fastest at kAccumulatorAlignment. Every
// function is pure, accepts any count (0 too) and accesses exactly `count` elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sluice/types.hpp>

namespace sluice::numeric {

inline constexpr std::size_t kAccumulatorAlignment = 64;

/// Bytes of one element's accumulator for any reduction: at most twice the element's bytes.
constexpr std::size_t accumulator_bytes(ElementType type) {
  const bool is_wide_enough = type == ElementType::kFloat32 || type == ElementType::kFloat64;
  return (is_wide_enough ? 1 : 2) * element_bytes(type);
}

/// Bytes of one element's accumulator for this reduction.
constexpr std::size_t accumulator_bytes(ElementType type, Reduction reduction) {
  const bool is_wide = is_float(type) ? element_bytes(type) == 2 : reduction == Reduction::kAverage;
  return (is_wide ? 2 : 1) * element_bytes(type);
}

/// The accumulator's type; element_bytes() returns its size.
struct AccumulatorType {
  ElementType of;
};
constexpr AccumulatorType accumulator_type(ElementType type) {
  return {type};
}
constexpr std::size_t element_bytes(AccumulatorType type) {
  return accumulator_bytes(type.of);
}

/// One reduction of one element type. Blocks are reduced as
///   load(first) · combine(each further, lowest rank first) · [combine_zero] · store
/// which gives the same bits in whatever order the packets arrived.
struct BlockReduction {
  /// acc = in
  void (*load)(void* acc, const std::byte* in, std::size_t count);
  /// acc = acc ∘ in.  min/max: acc = (in < acc or in is NaN) ? in : acc, so NaN stays.
  void (*combine)(void* acc, const std::byte* in, std::size_t count);
  /// acc = acc ∘ 0, for ranks whose block was zero and did not travel. It is null if that changes
  /// nothing (sum, average, bitwise or and xor).
  void (*combine_zero)(void* acc, std::size_t count);
  /// out = acc, divided by `ranks` (1..256) for average. Floats are rounded to nearest, ties to
  /// even. -0 becomes +0, so that a result has the same bits in blocks of any size. NaN stays NaN
  /// and is quiet; which NaN the sum of two NaNs is depends on the machine. Quotients of integers
  /// are truncated towards zero.
  void (*store)(std::byte* out, const void* acc, std::size_t count, std::uint32_t ranks);

  /// As combine, but element i of `in` belongs to acc[at[i]]; no value occurs twice in `at`. Null
  /// for averages of integers.
  void (*combine_at)(void* acc, const std::byte* in, const std::uint32_t* at, std::size_t count);
};

/// Whether combining with +0 is the same as loading, apart from what store() does with -0.
constexpr bool begins_with_zero(ElementType type, Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kBitOr ||
         reduction == Reduction::kBitXor || (reduction == Reduction::kAverage && is_float(type));
}

/// The kernels of a type and a reduction that is valid for it. The reference is valid for ever.
const BlockReduction& block_reduction(ElementType type, Reduction reduction);

/// A tensor for the search: `element_count` elements in blocks of `block_elements`; the last block
/// may be short.
struct BlockedTensor {
  const std::byte* data = nullptr;
  std::uint64_t element_count = 0;
  std::uint32_t block_elements = 1;
  ElementType type = ElementType::kFloat32;

  std::uint32_t block_count() const {
    return static_cast<std::uint32_t>((element_count + block_elements - 1) / block_elements);
  }
};

/// Sets bit b % 64 of bits[b / 64] for every block b of first .. end - 1 that is not zero, and
/// leaves all other bits; end <= block_count(). An element is zero if it equals 0, so -0.0 is zero.
/// Returns whether one of the zero blocks contains a -0.0.
bool mark_nonzero_blocks(const BlockedTensor& tensor, std::uint32_t first, std::uint32_t end,
                         std::uint64_t* bits);

/// As memcpy, but the destination does not stay in the caches, and need not be read from memory
/// first: for tensors that do not fit into the caches anyway. Until finish_copies_past_caches() was
/// called, another core may see later stores of this core before these.
void copy_past_caches(std::byte* out, const std::byte* in, std::size_t size);
void finish_copies_past_caches();

/// Copies keys, in one of these two ways. Returns whether each key is greater than the one before
/// it, if nobody changes them meanwhile.
bool copy_rising(std::uint64_t* out, const std::uint64_t* in, std::size_t count, bool past_caches);

/// The name of the instruction set in use, for reports: "AVX3", "AVX2", "SSE4", ...
const char* simd_target();

}  // namespace sluice::numeric
