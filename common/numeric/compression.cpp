// The compressors' passes over memory. A block is removed from `out` while its energy is computed,
// as most blocks are not sent. A block that is sent is then moved there from the residual, which is
// still in the L1 cache. Included once per target, as block_reduction.cpp is.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/compression.cpp"
#include "common/numeric/compression.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Doubles = hn::ScalableTag<double>;
inline constexpr std::size_t kFloats = hn::MaxLanes(Floats());
inline constexpr std::size_t kDoubles = hn::MaxLanes(Doubles());

template <class D>
HWY_INLINE hn::Vec<D> sums(D d, const float* gradients, const float* residual, std::size_t i) {
  const auto gradient = hn::LoadU(d, gradients + i);
  return residual == nullptr ? gradient : hn::Add(gradient, hn::LoadU(d, residual + i));
}

HWY_INLINE float sum(const float* gradients, const float* residual, std::size_t i) {
  return residual == nullptr ? gradients[i] : gradients[i] + residual[i];
}

/// The parts of an energy: enough to keep the widest vectors busy. The squares are exact in double,
/// so a fused multiply-add gives the same bits as two operations.
inline constexpr std::size_t kParts = 32;
using Parts = std::array<hn::Vec<Doubles>, kParts / kDoubles>;
constexpr auto kAllParts = std::make_index_sequence<kParts / kDoubles>();

/// Adds the squares of kParts sums to the parts. With `out`, the sums are written to the residual,
/// and zeros to `out`.
template <bool kLeaveOut, std::size_t... kVector>
HWY_INLINE void add_squares(std::index_sequence<kVector...> /*of the parts*/,
                            const float* gradients, float* residual, float* out, Parts& parts) {
  const hn::Rebind<float, Doubles> floats;
  const auto add = [&](std::size_t vector) HWY_ATTR {
    const auto whole = sums(floats, gradients, residual, vector * kDoubles);
    const auto wide = hn::PromoteTo(Doubles(), whole);
    parts[vector] = hn::MulAdd(wide, wide, parts[vector]);
    if constexpr (kLeaveOut) {
      hn::StoreU(whole, floats, residual + vector * kDoubles);
      hn::StoreU(hn::Zero(floats), floats, out + vector * kDoubles);
    }
  };
  (add(kVector), ...);
}

/// Adds its vectors in the order that block_energies() defines.
HWY_INLINE double total(Parts& parts) {
  for (std::size_t width = parts.size() / 2; width != 0; width /= 2)
    for (std::size_t vector = 0; vector < width; ++vector)
      parts[vector] = hn::Add(parts[vector], parts[vector + width]);
  HWY_ALIGN std::array<double, kDoubles> values;
  hn::Store(parts[0], Doubles(), values.data());
  for (std::size_t width = kDoubles / 2; width != 0; width /= 2)
    for (std::size_t i = 0; i < width; ++i) values[i] += values[i + width];
  return values[0];
}

/// Returns the block's energy. With kLeaveOut, the block is also left in the state of one that is
/// not sent.
template <bool kLeaveOut>
HWY_INLINE double energy_of(const float* gradients, float* residual, float* out,
                            std::size_t count) {
  Parts parts;
  parts.fill(hn::Zero(Doubles()));
  std::size_t i = 0;
  for (; i + kParts <= count; i += kParts)
    add_squares<kLeaveOut>(kAllParts, gradients + i, residual == nullptr ? nullptr : residual + i,
                           kLeaveOut ? out + i : nullptr, parts);
  if (i < count) {  // a square of zero changes no part
    std::array<float, kParts> last{};
    for (std::size_t rest = i; rest < count; ++rest) {
      last[rest - i] = sum(gradients, residual, rest);
      if constexpr (kLeaveOut) {
        residual[rest] = last[rest - i];
        out[rest] = 0;
      }
    }
    add_squares<false>(kAllParts, last.data(), nullptr, nullptr, parts);
  }
  return total(parts);
}

/// Sends a block whose sums are in the residual already.
HWY_INLINE void send_from(float* residual, float* out, std::size_t count, float divisor) {
  const Floats d;
  const auto by = hn::Set(d, divisor);
  std::size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const auto whole = hn::LoadU(d, residual + i);
    hn::StoreU(divisor == 1 ? whole : hn::Div(whole, by), d, out + i);
    hn::StoreU(hn::Zero(d), d, residual + i);
  }
  for (; i < count; ++i) out[i] = divisor == 1 ? residual[i] : residual[i] / divisor;
  for (i = count / kFloats * kFloats; i < count; ++i) residual[i] = 0;
}

/// Sends a block without a residual.
HWY_INLINE void send(const float* gradients, float* out, std::size_t count, float divisor) {
  if (divisor == 1) {
    if (out != gradients) std::memcpy(out, gradients, count * sizeof(float));
    return;
  }
  const Floats d;
  const auto by = hn::Set(d, divisor);
  std::size_t i = 0;
  for (; i + kFloats <= count; i += kFloats)
    hn::StoreU(hn::Div(hn::LoadU(d, gradients + i), by), d, out + i);
  for (; i < count; ++i) out[i] = gradients[i] / divisor;
}

/// How many sequences are read side by side, as in the search for blocks that are not zero: that is
/// faster than one.
inline constexpr std::uint64_t kSequences = 4;

class Pass {
 public:
  explicit Pass(const FeedbackBlocks& blocks) : blocks_(blocks) {}

  std::uint64_t size(std::uint64_t block) const {
    return std::min<std::uint64_t>(blocks_.block_elements, blocks_.count - begin(block));
  }
  HWY_INLINE double energy(std::uint64_t block) const {
    return energy_of<false>(blocks_.gradients + begin(block), residual(block), nullptr,
                            size(block));
  }
  /// Returns whether the block is sent.
  HWY_INLINE bool keep(std::uint64_t block, bool is_chosen, double above) const {
    const float* const gradients = blocks_.gradients + begin(block);
    float* const kept = residual(block);
    float* const out = blocks_.out + begin(block);
    const double own = kept != nullptr ? energy_of<true>(gradients, kept, out, size(block))
                                       : energy_of<false>(gradients, kept, out, size(block));
    const bool is_finite = own <= std::numeric_limits<double>::max();
    const bool is_sent = !is_finite || (is_chosen && own > above);
    if (is_sent && kept != nullptr) send_from(kept, out, size(block), blocks_.divisor);
    if (is_sent && kept == nullptr) send(gradients, out, size(block), blocks_.divisor);
    if (!is_sent && kept == nullptr) std::fill_n(out, size(block), 0.0F);
    return is_sent;
  }

 private:
  std::uint64_t begin(std::uint64_t block) const { return block * blocks_.block_elements; }
  float* residual(std::uint64_t block) const {
    return blocks_.residual == nullptr ? nullptr : blocks_.residual + begin(block);
  }

  const FeedbackBlocks& blocks_;
};

void energies(const FeedbackBlocks& blocks, double* out) {
  const Pass pass(blocks);
  const std::uint64_t count = blocks.block_count();
  const std::uint64_t length = count / kSequences;
  for (std::uint64_t i = 0; i < length; ++i)
    for (std::uint64_t s = 0; s < kSequences; ++s)
      out[s * length + i] = pass.energy(s * length + i);
  for (std::uint64_t block = kSequences * length; block < count; ++block)
    out[block] = pass.energy(block);
}

std::uint64_t keep(const FeedbackBlocks& blocks, double energy, std::uint64_t* chosen) {
  const Pass pass(blocks);
  const std::uint64_t count = blocks.block_count();
  const std::uint64_t length = count / kSequences;
  std::uint64_t sent = 0;
  const auto keep_one = [&](std::uint64_t block) HWY_ATTR {
    std::uint64_t& word = chosen[block / 64];
    const std::uint64_t bit = std::uint64_t{1} << (block % 64);
    const bool is_sent = pass.keep(block, (word & bit) != 0, energy);
    word = is_sent ? word | bit : word & ~bit;
    sent += is_sent ? 1 : 0;
  };
  for (std::uint64_t i = 0; i < length; ++i)
    for (std::uint64_t s = 0; s < kSequences; ++s) keep_one(s * length + i);
  for (std::uint64_t block = kSequences * length; block < count; ++block) keep_one(block);
  return sent;
}

void magnitudes(const float* gradients, const float* residual, std::size_t count,
                std::uint32_t* out) {
  const Floats d;
  const hn::RebindToUnsigned<Floats> bits;
  const auto mask = hn::Set(bits, kMagnitudeMask);
  std::size_t i = 0;
  for (; i + kFloats <= count; i += kFloats)
    hn::StoreU(hn::And(hn::BitCast(bits, sums(d, gradients, residual, i)), mask), bits, out + i);
  for (; i < count; ++i)
    out[i] = std::bit_cast<std::uint32_t>(sum(gradients, residual, i)) & kMagnitudeMask;
}

class Taker {
 public:
  Taker(ElementLimit& limit, std::uint32_t* keys, float* values)
      : limit_(limit), keys_(keys), values_(values) {}

  /// Returns the part of the sum that stays.
  float operator()(std::uint32_t key, float whole) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(whole) & kMagnitudeMask;
    if (bits < limit_.bits || (bits == limit_.bits && limit_.ties == 0)) return whole;
    if (bits == limit_.bits) --limit_.ties;
    keys_[taken_] = key;
    values_[taken_] = whole;
    ++taken_;
    return 0;
  }

  std::size_t taken() const { return taken_; }

 private:
  ElementLimit& limit_;
  std::uint32_t* keys_;
  float* values_;
  std::size_t taken_ = 0;
};

std::size_t take(const float* gradients, float* residual, std::size_t count,
                 std::uint32_t first_key, ElementLimit& limit, std::uint32_t* keys, float* values) {
  const Floats d;
  const hn::RebindToSigned<Floats> bits;
  const auto mask = hn::Set(bits, static_cast<std::int32_t>(kMagnitudeMask));
  const auto below = hn::Set(bits, static_cast<std::int32_t>(limit.bits - 1));
  Taker taker(limit, keys, values);
  std::size_t i = 0;
  for (; i + kFloats <= count; i += kFloats) {
    const auto whole = sums(d, gradients, residual, i);
    if (hn::AllFalse(bits, hn::Gt(hn::And(hn::BitCast(bits, whole), mask), below))) {
      if (residual != nullptr) hn::StoreU(whole, d, residual + i);
      continue;
    }
    HWY_ALIGN std::array<float, kFloats> values;
    hn::Store(whole, d, values.data());
    for (std::size_t k = 0; k < kFloats; ++k)
      values[k] = taker(first_key + static_cast<std::uint32_t>(i + k), values[k]);
    if (residual != nullptr) hn::StoreU(hn::Load(d, values.data()), d, residual + i);
  }
  for (; i < count; ++i) {
    const float rest =
        taker(first_key + static_cast<std::uint32_t>(i), sum(gradients, residual, i));
    if (residual != nullptr) residual[i] = rest;
  }
  return taker.taken();
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(energies);
HWY_EXPORT(keep);
HWY_EXPORT(magnitudes);
HWY_EXPORT(take);

void block_energies(const FeedbackBlocks& blocks, double* energies) {
  assert(blocks.block_elements > 0);
  HWY_DYNAMIC_DISPATCH(energies)(blocks, energies);
}

std::uint64_t keep_blocks(const FeedbackBlocks& blocks, double energy, std::uint64_t* chosen) {
  assert(blocks.block_elements > 0 && energy >= 0);
  return HWY_DYNAMIC_DISPATCH(keep)(blocks, energy, chosen);
}

void sum_magnitudes(const float* gradients, const float* residual, std::size_t count,
                    std::uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(magnitudes)(gradients, residual, count, out);
}

std::size_t take_elements(const float* gradients, float* residual, std::size_t count,
                          std::uint32_t first_key, ElementLimit& limit, std::uint32_t* keys,
                          float* values) {
  assert(limit.bits > 0);
  return HWY_DYNAMIC_DISPATCH(take)(gradients, residual, count, first_key, limit, keys, values);
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
