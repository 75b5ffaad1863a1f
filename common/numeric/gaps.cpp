// Symbols of a run of pairs, several in one 64-bit word. Included once per target, as
// block_reduction.cpp is. Without BMI2 there is no kernel, and the caller reads symbol by symbol.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/gaps.cpp"
#include "common/numeric/gaps.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_ARCH_X86
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

namespace hn = hwy::HWY_NAMESPACE;

/// Some symbols, one in each lane of a word. `kWidest`: so wide may they be that no sum overflows a
/// lane, and that they are in one word wherever they begin.
template <class Lane>
class Group {
 public:
  static constexpr std::size_t kSymbols = sizeof(std::uint64_t) / sizeof(Lane);
  static constexpr unsigned kWidest = sizeof(Lane) == 1 ? 5 : 14;

  /// A group may begin with each symbol before this one: it is whole, and its word is in the bytes.
  static std::size_t end(const GapSymbols& symbols) {
    if (symbols.bytes.size() < sizeof(std::uint64_t) || symbols.count < kSymbols) return 0;
    const std::size_t last_word = symbols.bytes.size() - sizeof(std::uint64_t);
    return std::min(symbols.count - kSymbols, (8 * last_word + 7) / symbols.width) + 1;
  }

  Group(const GapSymbols& symbols, std::size_t first) {
    const std::uint64_t escape = (std::uint64_t{1} << symbols.width) - 1;
    const std::size_t bit = first * symbols.width;
    std::uint64_t word;
    std::memcpy(&word, symbols.bytes.data() + bit / 8, sizeof word);
    const std::uint64_t gaps = _pdep_u64(word >> bit % 8, kOnes * escape);
    // The highest bit of a lane is set if its symbol is the largest one.
    escapes_ = ((gaps + kOnes * (kHalf - escape)) >> (kLaneBits - 1)) & kOnes;
    reached_ = (gaps + (kOnes - escapes_)) * kOnes;
  }

  std::size_t keys() const { return kSymbols - static_cast<std::size_t>(std::popcount(escapes_)); }
  /// How much larger the least next key is behind this group.
  std::uint64_t reach() const { return reached_ >> (64 - kLaneBits); }

  /// Writes the keys, one behind the other, and then up to kSymbols any numbers.
  template <class T>
  void write(T before, T* out) const {
    const std::uint64_t keys = _pext_u64(reached_, ~(escapes_ * kLargest));
    constexpr std::size_t kVector = HWY_MIN(kSymbols, 32 / sizeof(T));
    const hn::FixedTag<T, kVector> d;
    const hn::Rebind<std::uint32_t, decltype(d)> d32;
    const hn::Rebind<Lane, decltype(d)> lanes;
    const auto base = hn::Set(d, static_cast<T>(before - 1));
    for (std::size_t i = 0; i < kSymbols; i += kVector) {
      Lane some[kSymbols];
      const std::uint64_t rest = keys >> (i * kLaneBits);
      std::memcpy(some, &rest, sizeof rest);
      const auto few = hn::PromoteTo(d32, hn::LoadU(lanes, some));
      if constexpr (sizeof(T) == 4)
        hn::StoreU(hn::Add(base, few), d, out + i);
      else
        hn::StoreU(hn::Add(base, hn::PromoteTo(d, few)), d, out + i);
    }
  }

 private:
  static constexpr unsigned kLaneBits = 8 * sizeof(Lane);
  static constexpr std::uint64_t kLargest = (std::uint64_t{1} << kLaneBits) - 1;
  static constexpr std::uint64_t kOnes = ~std::uint64_t{0} / kLargest;  // in each lane
  static constexpr std::uint64_t kHalf = std::uint64_t{1} << (kLaneBits - 1);

  std::uint64_t escapes_;  // 1 in their lanes
  std::uint64_t reached_;  // in each lane: one more than its key, counted from the least key
};

template <class Lane, class T>
void read_groups(const GapSymbols& symbols, GapReading& reading, std::size_t most,
                 std::uint64_t far, T shift, T* out) {
  using Some = Group<Lane>;
  const std::size_t end = Some::end(symbols);
  GapReading r = reading;
  while (r.symbol < end && r.keys + Some::kSymbols <= most) {
    const Some group(symbols, r.symbol);
    if (r.least + group.reach() > far) break;
    group.write(static_cast<T>(r.least + shift), out + r.keys);
    r.symbol += Some::kSymbols;
    r.keys += group.keys();
    r.least += group.reach();
  }
  reading = r;
}

template <class Lane>
void pass_groups(const GapSymbols& symbols, GapReading& reading) {
  using Some = Group<Lane>;
  const std::size_t end = Some::end(symbols);
  GapReading r = reading;
  for (; r.symbol < end; r.symbol += Some::kSymbols) {
    const Some group(symbols, r.symbol);
    r.keys += group.keys();
    r.least += group.reach();
  }
  reading = r;
}

template <class T>
void read(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
          T shift, T* out) {
  if (symbols.width <= Group<std::uint8_t>::kWidest)
    read_groups<std::uint8_t>(symbols, reading, most, far, shift, out);
  else if (symbols.width <= Group<std::uint16_t>::kWidest)
    read_groups<std::uint16_t>(symbols, reading, most, far, shift, out);
}

void pass(const GapSymbols& symbols, GapReading& reading) {
  if (symbols.width <= Group<std::uint8_t>::kWidest)
    pass_groups<std::uint8_t>(symbols, reading);
  else if (symbols.width <= Group<std::uint16_t>::kWidest)
    pass_groups<std::uint16_t>(symbols, reading);
}

#else

template <class T>
void read(const GapSymbols&, GapReading&, std::size_t, std::uint64_t, T, T*) {}
void pass(const GapSymbols&, GapReading&) {}

#endif

void read_32(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
             std::uint32_t shift, std::uint32_t* out) {
  read(symbols, reading, most, far, shift, out);
}
void read_64(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
             std::uint64_t shift, std::uint64_t* out) {
  read(symbols, reading, most, far, shift, out);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(read_32);
HWY_EXPORT(read_64);
HWY_EXPORT(pass);

void read_gaps(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
               std::uint32_t shift, std::uint32_t* out) {
  assert(symbols.width >= 2);
  HWY_DYNAMIC_DISPATCH(read_32)(symbols, reading, most, far, shift, out);
}

void read_gaps(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
               std::uint64_t shift, std::uint64_t* out) {
  assert(symbols.width >= 2);
  HWY_DYNAMIC_DISPATCH(read_64)(symbols, reading, most, far, shift, out);
}

void pass_gaps(const GapSymbols& symbols, GapReading& reading) {
  assert(symbols.width >= 2);
  HWY_DYNAMIC_DISPATCH(pass)(symbols, reading);
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
