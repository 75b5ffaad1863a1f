// The search for blocks that are not zero. It runs at the speed of memory, as it only ORs elements.
// If the OR of a block has no bits except the elements' sign bits, every element is +0 or -0; a set
// sign bit shows that there was a -0. Included once per target, as block_reduction.cpp is.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/nonzero_search.cpp"
#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "common/numeric/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A 64-bit word has whole elements of every type. Vectors also start at whole elements, as blocks
// and vectors consist of whole elements.
using Words = hn::ScalableTag<std::uint64_t>;
using Bits = hn::Vec<Words>;
inline constexpr std::size_t kVector = sizeof(std::uint64_t) * hn::MaxLanes(Words());

HWY_INLINE Bits read(const std::byte* in) {
  const hn::Repartition<std::uint8_t, Words> bytes;
  return hn::BitCast(Words(), hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(in)));
}

HWY_INLINE Bits read_short(const std::byte* in, std::size_t size) {
  std::array<std::byte, kVector> padded{};
  std::memcpy(padded.data(), in, size);
  return read(padded.data());
}

HWY_INLINE bool is_zero(Bits bits) {
  return hn::AllTrue(Words(), hn::Eq(bits, hn::Zero(Words())));
}

/// All bits of an element except a float's sign.
constexpr std::uint64_t magnitude_mask(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 0x7FFF'7FFF'7FFF'7FFF;
    case ElementType::kFloat32:
      return 0x7FFF'FFFF'7FFF'FFFF;
    case ElementType::kFloat64:
      return 0x7FFF'FFFF'FFFF'FFFF;
    case ElementType::kInt32:
    case ElementType::kInt64:
    case ElementType::kInt8:
    case ElementType::kUInt8:
    case ElementType::kInt16:
      break;
  }
  return ~std::uint64_t{0};
}

/// Returns whether the `size` bytes are zeros of either sign; their sign bits are then added to
/// `signs`.
HWY_INLINE bool is_zero_block(const std::byte* block, std::size_t size, Bits magnitude,
                              Bits& signs) {
  // Most blocks that are not zero begin with such data: only their first cache line is read.
  if (size >= kVector && !is_zero(hn::And(read(block), magnitude))) return false;
  Bits seen = hn::Zero(Words());
  std::size_t i = 0;
  for (; i + 4 * kVector <= size; i += 4 * kVector) {
    const Bits lower = hn::Or(read(block + i), read(block + i + kVector));
    const Bits upper = hn::Or(read(block + i + 2 * kVector), read(block + i + 3 * kVector));
    seen = hn::Or(seen, hn::Or(lower, upper));
    if (!is_zero(hn::And(seen, magnitude))) return false;
  }
  for (; i + kVector <= size; i += kVector) seen = hn::Or(seen, read(block + i));
  if (i < size) {  // the last vector may overlap the one before, which does not matter for an OR
    const Bits rest = size < kVector ? read_short(block, size) : read(block + size - kVector);
    seen = hn::Or(seen, rest);
  }
  if (!is_zero(hn::And(seen, magnitude))) return false;
  signs = hn::Or(signs, seen);
  return true;
}

/// With one sequence a core may read at only half the speed of memory, as the processor's
/// prefetching ends at each page. So several sequences are read side by side. (Explicit prefetch
/// instructions gained a third on one machine, and lost half on another.)
inline constexpr std::uint32_t kSequences = 4;

class Marker {
 public:
  Marker(const BlockedTensor& tensor, std::uint64_t* bits)
      : data_(tensor.data),
        tensor_bytes_(tensor.element_count * element_bytes(tensor.type)),
        block_bytes_(tensor.block_elements * element_bytes(tensor.type)),
        magnitude_(hn::Set(Words(), magnitude_mask(tensor.type))),
        bits_(bits) {}

  HWY_INLINE void operator()(std::uint32_t block) {
    const std::uint64_t begin = block * block_bytes_;
    const std::uint64_t size = std::min(block_bytes_, tensor_bytes_ - begin);
    if (!is_zero_block(data_ + begin, size, magnitude_, signs_))
      bits_[block / 64] |= std::uint64_t{1} << (block % 64);
  }

  bool saw_negative_zero() const { return !is_zero(signs_); }

 private:
  const std::byte* data_;
  std::uint64_t tensor_bytes_;
  std::uint64_t block_bytes_;
  Bits magnitude_;
  Bits signs_ = hn::Zero(Words());
  std::uint64_t* bits_;
};

bool mark(const BlockedTensor& tensor, std::uint32_t first, std::uint32_t end,
          std::uint64_t* bits) {
  Marker mark_block(tensor, bits);
  const std::uint32_t length = (end - first) / kSequences;
  for (std::uint32_t i = 0; i < length; ++i)
    for (std::uint32_t s = 0; s < kSequences; ++s) mark_block(first + s * length + i);
  for (std::uint32_t block = first + kSequences * length; block < end; ++block) mark_block(block);
  return mark_block.saw_negative_zero();
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(mark);

bool mark_nonzero_blocks(const BlockedTensor& tensor, std::uint32_t first, std::uint32_t end,
                         std::uint64_t* bits) {
  assert(first <= end && end <= tensor.block_count() && is_valid(tensor.type));
  return HWY_DYNAMIC_DISPATCH(mark)(tensor, first, end, bits);
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
