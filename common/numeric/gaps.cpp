// Symbols of a run of pairs, several in one vector. Included once per target, as
// block_reduction.cpp is. Where a vector has less than 32 bytes they are handled one by one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/numeric/gaps.cpp"
#include "common/numeric/gaps.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::numeric::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#define SLUICE_WIDE_GAPS (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)

// ---------------------------------------------------------------------------------------- reading
#if SLUICE_WIDE_GAPS

/// Some symbols in the lanes of a vector, and those behind them. All groups begin at the same bit
/// of a byte.
class SymbolGroups {
 public:
  static constexpr std::size_t kSymbols = 8;
  static constexpr unsigned kWidest = 24;  // each lies in 4 bytes, four of them in 16

  using D = hn::FixedTag<std::uint32_t, kSymbols>;
  using Lanes = hn::Vec<D>;
  struct Group {
    hn::Mask<D> escapes;
    Lanes reached;  ///< one more than the symbol's key, counted from the least key
    Lanes reach;    ///< how much larger the least next key is behind this group, in all lanes

    std::uint32_t total() const { return hn::GetLane(reach); }
    std::size_t keys() const { return kSymbols - hn::CountTrue(D(), escapes); }
  };

  SymbolGroups(const GapSymbols& symbols, std::size_t first)
      : at_(symbols.bytes.data() + first * symbols.width / 8), width_(symbols.width) {
    const D d;
    const auto phase = static_cast<std::uint32_t>(first * width_ % 8);
    const std::uint32_t of_upper = phase + 4 * width_;
    upper_ = of_upper / 8;
    const auto in_half = hn::And(hn::Iota(d, 0), hn::Set(d, 3));
    const auto begins =
        hn::IfThenElse(hn::FirstN(d, 4), hn::Set(d, phase), hn::Set(d, of_upper % 8));
    const auto bits = hn::Add(hn::Mul(in_half, hn::Set(d, width_)), begins);
    shifts_ = hn::And(bits, hn::Set(d, 7));
    bytes_ =
        hn::Add(hn::Mul(hn::ShiftRight<3>(bits), hn::Set(d, 0x01010101)), hn::Set(d, 0x03020100));
    escape_ = hn::Set(d, (std::uint32_t{1} << width_) - 1);
    // Groups of which all bytes that are loaded are there.
    const std::byte* const end = symbols.bytes.data() + symbols.bytes.size();
    const std::size_t whole = first < symbols.count ? (symbols.count - first) / kSymbols : 0;
    const std::ptrdiff_t room = end - at_ - static_cast<std::ptrdiff_t>(upper_ + std::size_t{16});
    left_ = room < 0 ? 0 : std::min(whole, static_cast<std::size_t>(room) / width_ + 1);
  }

  bool has_next() const { return left_ != 0; }

  Group next() const {
    const D d;
    const hn::FixedTag<std::uint8_t, 16> half;
    const hn::Repartition<std::uint8_t, D> d8;
    const auto* const at = reinterpret_cast<const std::uint8_t*>(at_);
    const auto words = hn::Combine(d8, hn::LoadU(half, at + upper_), hn::LoadU(half, at));
    const auto lanes = hn::BitCast(d, hn::TableLookupBytes(words, hn::BitCast(d8, bytes_)));
    const auto gaps = hn::And(hn::Shr(lanes, shifts_), escape_);
    const auto escapes = hn::Eq(gaps, escape_);
    // The sum of each and those before it, first in both halves.
    auto sums = hn::Add(gaps, hn::IfThenZeroElse(escapes, hn::Set(d, 1)));
    sums = hn::Add(sums, hn::ShiftLeftLanes<1>(d, sums));
    sums = hn::Add(sums, hn::ShiftLeftLanes<2>(d, sums));
    const auto lower = hn::TableLookupLanes(sums, hn::SetTableIndices(d, kLastOfLower));
    sums = hn::Add(sums, hn::IfThenZeroElse(hn::FirstN(d, 4), lower));
    return {escapes, sums, hn::TableLookupLanes(sums, hn::SetTableIndices(d, kLast))};
  }
  void pass() {
    at_ += width_;
    --left_;
  }

 private:
  alignas(32) static constexpr std::int32_t kLastOfLower[kSymbols] = {3, 3, 3, 3, 3, 3, 3, 3};
  alignas(32) static constexpr std::int32_t kLast[kSymbols] = {7, 7, 7, 7, 7, 7, 7, 7};

  const std::byte* at_;
  std::uint32_t width_, upper_;
  std::size_t left_;
  Lanes shifts_, bytes_, escape_;
};

template <class T>
void read(const GapSymbols& symbols, GapReading& reading, std::size_t most, std::uint64_t far,
          T shift, T* out) {
  using Groups = SymbolGroups;
  if (symbols.width > Groups::kWidest) return;
  const Groups::D d;
  GapReading r = reading;
  for (Groups groups(symbols, r.symbol); groups.has_next(); groups.pass()) {
    if (r.keys + Groups::kSymbols > most) break;
    const Groups::Group group = groups.next();
    if (r.least + group.total() > far) break;
    const auto keys = hn::Compress(group.reached, hn::Not(group.escapes));
    const T before = static_cast<T>(r.least + shift) - 1;
    if constexpr (sizeof(T) == 4) {
      hn::StoreU(hn::Add(keys, hn::Set(d, before)), d, out + r.keys);
    } else {
      const hn::FixedTag<T, Groups::kSymbols / 2> d64;
      const hn::Half<Groups::D> half;
      const auto base = hn::Set(d64, before);
      hn::StoreU(hn::Add(hn::PromoteTo(d64, hn::LowerHalf(half, keys)), base), d64, out + r.keys);
      hn::StoreU(hn::Add(hn::PromoteTo(d64, hn::UpperHalf(half, keys)), base), d64,
                 out + r.keys + Groups::kSymbols / 2);
    }
    r.symbol += Groups::kSymbols;
    r.keys += group.keys();
    r.least += group.total();
  }
  reading = r;
}

void pass(const GapSymbols& symbols, GapReading& reading) {
  using Groups = SymbolGroups;
  if (symbols.width > Groups::kWidest) return;
  for (Groups groups(symbols, reading.symbol); groups.has_next(); groups.pass()) {
    const Groups::Group group = groups.next();
    reading.symbol += Groups::kSymbols;
    reading.keys += group.keys();
    reading.least += group.total();
  }
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

// ---------------------------------------------------------------------------------------- writing
GapCount count(std::span<const std::uint64_t> keys, std::uint64_t escape) {
  GapCount found{};
  std::size_t i = 1;
#if SLUICE_WIDE_GAPS
  const hn::FixedTag<std::uint64_t, 4> d;
  const auto one = hn::Set(d, 1), below = hn::Set(d, escape - 1), near = hn::Set(d, 2 * escape - 1);
  auto escapes = hn::Zero(d), far = hn::Zero(d);
  for (; i + 4 <= keys.size(); i += 4) {
    const auto gaps = hn::Sub(hn::Sub(hn::LoadU(d, &keys[i]), hn::LoadU(d, &keys[i - 1])), one);
    escapes = hn::Sub(escapes, hn::VecFromMask(d, hn::Gt(gaps, below)));
    far = hn::Or(far, hn::VecFromMask(d, hn::Gt(gaps, near)));
  }
  found.escapes = hn::GetLane(hn::SumOfLanes(d, escapes));
  found.has_far = !hn::AllFalse(d, hn::Ne(far, hn::Zero(d)));
#endif
  for (; i < keys.size(); ++i) {
    const std::uint64_t gap = keys[i] - keys[i - 1] - 1;
    found.escapes += gap >= escape ? 1 : 0;
    found.has_far |= gap >= 2 * escape;
  }
  return found;
}

/// What is written one behind the other, the lowest bits first.
class BitWriter {
 public:
  static constexpr unsigned kMost = 56;  ///< bits at a time

  BitWriter(std::byte* out, const std::byte* room_end) : out_(out), room_end_(room_end) {}

  /// Whether put_in_room() may be called twice.
  bool has_room() const { return room_end_ - out_ >= 16; }
  void put_in_room(std::uint64_t word, std::uint64_t size) {
    bits_ |= word << count_;
    count_ += size;
    std::memcpy(out_, &bits_, sizeof bits_);
    out_ += count_ / 8;
    bits_ >>= count_ & ~std::uint64_t{7};
    count_ &= 7;
  }
  void put(std::uint64_t word, std::uint64_t size) {
    if (has_room()) return put_in_room(word, size);
    bits_ |= word << count_;
    count_ += size;
    const auto room = static_cast<std::size_t>(room_end_ - out_);
    std::memcpy(out_, &bits_, std::min(room, sizeof bits_));
    out_ += std::min<std::size_t>(room, count_ / 8);
    bits_ >>= count_ & ~std::uint64_t{7};
    count_ &= 7;
  }

 private:
  std::byte* out_;
  const std::byte* room_end_;
  std::uint64_t bits_ = 0;  // not written yet, or again: less than a byte of them
  std::uint64_t count_ = 0;
};

void write_gap(std::uint64_t gap, unsigned width, BitWriter& out) {
  const std::uint64_t escape = (std::uint64_t{1} << width) - 1;
  for (; gap >= escape; gap -= escape) out.put(escape, width);
  out.put(gap, width);
}

void write(std::span<const std::uint64_t> keys, unsigned width, std::byte* to,
           const std::byte* room_end) {
  BitWriter out(to, room_end);
  std::size_t i = 1;
#if SLUICE_WIDE_GAPS
  const hn::FixedTag<std::uint64_t, 4> d;
  const auto escape = hn::Set(d, (std::uint64_t{1} << width) - 1),
             below = hn::Set(d, (std::uint64_t{1} << width) - 2), near = hn::Add(escape, below);
  const auto one = hn::Set(d, 1), size = hn::Set(d, width);
  const bool is_narrow = 4 * width <= BitWriter::kMost;  // two keys with escapes are put at a time
  for (; is_narrow && i + 4 <= keys.size() && out.has_room();) {
    const auto gaps = hn::Sub(hn::Sub(hn::LoadU(d, &keys[i]), hn::LoadU(d, &keys[i - 1])), one);
    if (!hn::AllFalse(d, hn::Gt(gaps, near))) {
      for (const std::size_t end = i + 4; i < end; ++i)
        write_gap(keys[i] - keys[i - 1] - 1, width, out);
      continue;
    }
    const auto has_escape = hn::Gt(gaps, below);
    const auto behind = hn::Shl(hn::Sub(gaps, escape), size);
    const auto symbols = hn::IfThenElse(has_escape, hn::Or(behind, escape), gaps);
    const auto bits = hn::Add(size, hn::IfThenElseZero(has_escape, size));
    // Each odd lane gets those of its even neighbour before its own.
    const auto before = hn::DupEven(bits);
    alignas(32) std::uint64_t words[4], sizes[4];
    hn::Store(hn::Or(hn::DupEven(symbols), hn::Shl(symbols, before)), d, words);
    hn::Store(hn::Add(bits, before), d, sizes);
    out.put_in_room(words[1], sizes[1]);
    out.put_in_room(words[3], sizes[3]);
    i += 4;
  }
#endif
  for (; i < keys.size(); ++i) write_gap(keys[i] - keys[i - 1] - 1, width, out);
}

}  // namespace sluice::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::numeric {

HWY_EXPORT(read_32);
HWY_EXPORT(read_64);
HWY_EXPORT(pass);
HWY_EXPORT(count);
HWY_EXPORT(write);

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

GapCount count_gaps(std::span<const std::uint64_t> keys, std::uint64_t escape) {
  return HWY_DYNAMIC_DISPATCH(count)(keys, escape);
}

void write_gaps(std::span<const std::uint64_t> keys, unsigned width, std::byte* out,
                const std::byte* room_end) {
  HWY_DYNAMIC_DISPATCH(write)(keys, width, out, room_end);
}

}  // namespace sluice::numeric
#endif  // HWY_ONCE
