// A run: pairs of rising local keys and their rows, as DATA and RESULT of keyed ops carry them
// (docs/protocol.md, "Keyed streams").
//
//   header    the first key, the number of keys, the width w of a symbol, the number of escapes
//   symbols   of w bits each, one behind the other, the lowest bits first. A symbol less than
//             2^w - 1 is a key: so many keys are left out before it. The largest symbol is an
//             escape: 2^w - 1 keys are left out, and the next symbol goes on.
//   rows      in the order of their keys. Scaled rows: of each chunk that has keys its scale (2
//             bytes), and its rows as one scaled block
//
// With w = 0 there are no symbols: all keys are neighbours. With w = 1 the symbols are a bitmap.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "common/base/wire_type.hpp"
#include "common/numeric/gaps.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

/// No key has this number, as keys are less than 2^64 - 1: the end of all keys.
inline constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

inline constexpr std::uint8_t kMostChunkBits = 8;

/// How the rows of a run lie. Scaled rows have a scale for each chunk of 2^chunk_bits neighbouring
/// keys, and a run has all keys of its sender's in a chunk, or none.
class RunFormat {
 public:
  RunFormat() = default;
  RunFormat(std::uint8_t chunk_bits, std::uint16_t row_elements, WireType type)
      : row_bits_(row_elements * static_cast<std::uint32_t>(type.bytes(2) * 4)),
        chunk_bits_(chunk_bits),
        is_scaled_(type.is_scaled()),
        type_(type) {
    assert(row_elements != 0 && chunk_bits <= kMostChunkBits);
  }

  WireType type() const { return type_; }
  bool is_scaled() const { return is_scaled_; }
  std::uint64_t chunk_of(std::uint64_t key) const { return key >> chunk_bits_; }
  std::uint64_t first_key_of(std::uint64_t chunk) const { return chunk << chunk_bits_; }
  /// The size of so many rows; if they are scaled, of so many of one chunk.
  std::size_t rows_bytes(std::size_t count) const { return (count * row_bits_ + 7) / 8; }
  /// No run of so many bytes has more keys.
  std::size_t most_keys(std::size_t bytes) const { return bytes * 8 / row_bits_; }

 private:
  std::uint32_t row_bits_ = 8;
  std::uint8_t chunk_bits_ = 0;
  bool is_scaled_ = false;
  WireType type_ = ElementType::kInt8;
};

/// How keys are written: which width, and what it takes.
struct KeyCoding {
  static constexpr std::uint8_t kMostWidth = 56;

  std::size_t keys = 0;
  std::size_t escapes = 0;
  std::uint8_t width = 0;

  std::size_t symbols() const { return width == 0 ? 0 : keys - 1 + escapes; }
  std::size_t bytes() const { return sizeof(wire::RunHeader) + (symbols() * width + 7) / 8; }
};

/// A run that is written, with its size.
struct RunPlan {
  KeyCoding coding;
  std::size_t bytes = 0;  ///< of all; 0 if there is no key
};

/// Plans a run of the first of these keys, as many as fit in `room`. They rise. If the first
/// keys_that_decide() are given, and not all fit, the plan is the same whatever follows them. If
/// rows are scaled, a chunk of which not all of the given keys fit is left out; `goes_on` says that
/// the last chunk may have keys which are not given. The first chunk must fit.
RunPlan plan_run(std::span<const std::uint64_t> keys, std::size_t room, const RunFormat& format,
                 bool goes_on);

/// From so many keys the width of a symbol is guessed: about as many as fit.
inline std::size_t keys_that_decide(std::size_t room, const RunFormat& format) {
  return std::max<std::size_t>(format.most_keys(room - sizeof(wire::RunHeader)) * 2 / 3, 1);
}

/// Writes header and symbols to a run of the planned size. Returns where the rows begin, which must
/// be written afterwards.
std::byte* write_keys(const KeyCoding& coding, std::span<const std::uint64_t> keys,
                      std::span<std::byte> run);

/// A run that was received: its parts, before its symbols are read.
struct RunView {
  std::uint64_t first = kNoKey;
  KeyCoding coding;
  std::span<const std::byte> symbols = {};  ///< and what is behind them
  std::span<const std::byte> rows = {};     ///< and scales, if there are any

  /// Nothing if the bytes cannot be a run. An empty run has no keys.
  static std::optional<RunView> parse(std::span<const std::byte> run);
  /// Whether there are so many bytes of rows as the keys may have; costs nothing.
  bool may_have_rows(const RunFormat& format) const {
    const std::size_t least = format.rows_bytes(coding.keys);
    return format.is_scaled() ? rows.size() > least : rows.size() == least;
  }
  /// Whether `rows` are those of the keys, with valid scales.
  bool has_rows(const RunFormat& format) const;
};

/// A scale, and behind it the rows of its chunk.
inline std::int16_t take_scale(const std::byte*& in) {
  wire::Le<std::int16_t> scale;
  std::memcpy(&scale, in, sizeof scale);
  in += sizeof scale;
  return scale;
}
inline void put_scale(std::byte*& out, wire::Le<std::int16_t> scale) {
  std::memcpy(out, &scale, sizeof scale);
  out += sizeof scale;
}

/// Reads the keys of a run in order. Whatever the bytes are, they rise.
class KeyReader {
 public:
  KeyReader() = default;
  explicit KeyReader(const RunView& run)
      : symbols_(run.symbols),
        width_(run.coding.width),
        count_(static_cast<std::uint32_t>(run.coding.symbols())),
        left_(static_cast<std::uint32_t>(run.coding.keys)),
        next_(run.first) {}

  /// The next key; kNoKey at the end.
  std::uint64_t next() const { return next_; }
  /// Keys that are left, if the run is valid.
  std::uint32_t left() const { return left_; }

  /// Reads the keys below `limit`, at most left() of them. Writes each less `base`, which is no
  /// more than next(). `out` must have room for left() keys, or for all numbers from next() to
  /// before `limit`; and for one more. Returns how many keys were read.
  template <class T>
  std::size_t read_below(std::uint64_t limit, std::uint64_t base, T* out);

  /// Takes back what the last read_below() wrote as `keys`, one at least, and as all behind them.
  void put_back(std::span<const std::uint32_t> keys, std::uint64_t base);

  /// The last key that is left. Nothing if the symbols that are left do not have so many keys, or
  /// do not end with one, or lead to 2^64 - 1 or beyond.
  std::optional<std::uint64_t> last() const;

 private:
  /// Some symbols that follow each other, the next one in the lowest bits.
  struct Word {
    std::uint64_t bits;
    std::uint32_t symbols;
  };
  /// The next symbols, one at least.
  Word word_at(std::uint32_t symbol) const {
    const std::size_t bit = std::size_t{symbol} * width_, byte = bit / 8;
    Word word{0, static_cast<std::uint32_t>((64 - bit % 8) / width_)};
    if (symbols_.size() - byte >= sizeof word.bits)
      std::memcpy(&word.bits, symbols_.data() + byte, sizeof word.bits);
    else
      std::memcpy(&word.bits, symbols_.data() + byte, symbols_.size() - byte);
    word.bits >>= bit % 8;
    word.symbols = std::min(word.symbols, count_ - symbol);
    return word;
  }
  numeric::GapSymbols gaps() const { return {symbols_, width_, count_}; }
  std::uint64_t escape() const { return (std::uint64_t{1} << width_) - 1; }
  bool ends_with_key() const {
    return symbol_ == count_ || (word_at(count_ - 1).bits & escape()) != escape();
  }
  void end() {
    next_ = kNoKey;
    left_ = 0;
  }
  template <class T>
  std::size_t read_neighbours(std::uint64_t limit, std::uint64_t base, T* out);
  template <class T>
  std::size_t read_bitmap(std::uint64_t limit, std::uint64_t base, T* out);
  template <class T>
  std::size_t read_symbols(std::uint64_t limit, std::uint64_t base, T* out);

  static constexpr std::uint64_t kFar = std::uint64_t{1} << 61;

  std::span<const std::byte> symbols_ = {};
  std::uint8_t width_ = 0;
  std::uint32_t count_ = 0;   // of symbols
  std::uint32_t symbol_ = 0;  // the next one
  std::uint32_t left_ = 0;
  std::uint64_t next_ = kNoKey;
};

// Inline, as they are called for every few keys.
template <class T>
std::size_t KeyReader::read_neighbours(std::uint64_t limit, std::uint64_t base, T* out) {
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(limit - next_, left_));
  for (std::uint32_t i = 0; i < count; ++i) out[i] = static_cast<T>(next_ + i - base);
  left_ -= count;
  next_ = left_ == 0 ? kNoKey : next_ + count;
  return count;
}

/// With symbols of one bit, each is about the next number: 0 if it is a key.
template <class T>
std::size_t KeyReader::read_bitmap(std::uint64_t limit, std::uint64_t base, T* out) {
  const std::uint64_t most = left_;
  std::size_t n = 1;
  out[0] = static_cast<T>(next_ - base);
  std::uint64_t number = next_ + 1;  // of the next symbol
  while (symbol_ < count_ && n < most) {
    const Word word = word_at(symbol_);
    if (number + word.symbols < number) break;  // it is beyond all keys
    std::uint64_t keys = ~word.bits;
    if (word.symbols < 64) keys &= (std::uint64_t{1} << word.symbols) - 1;
    const std::size_t found = n + static_cast<std::size_t>(std::popcount(keys));
    const bool goes_on = number + word.symbols <= limit && found <= most;
    for (; goes_on && keys != 0; keys &= keys - 1)
      out[n++] = static_cast<T>(number - base) + static_cast<T>(std::countr_zero(keys));
    for (; keys != 0 && n < most; keys &= keys - 1) {
      const auto place = static_cast<std::uint32_t>(std::countr_zero(keys));
      const std::uint64_t key = number + place;
      if (key >= limit) {
        symbol_ += place + 1;
        left_ -= static_cast<std::uint32_t>(n);
        next_ = key;
        return n;
      }
      out[n++] = static_cast<T>(key - base);
    }
    symbol_ += word.symbols;
    number += word.symbols;
  }
  end();
  return n;
}

/// Begins with next_. Ends at the limit, or far before it: no sum of gaps overflows.
template <class T>
std::size_t KeyReader::read_symbols(std::uint64_t limit, std::uint64_t base, T* out) {
  const std::uint64_t origin = next_, far = std::min(limit - origin, kFar);
  const std::uint64_t escape = this->escape();
  const std::size_t most = left_;
  const auto shift = static_cast<T>(origin - base);
  out[0] = shift;
  numeric::GapReading reading{.symbol = symbol_, .keys = 1, .least = 1};  // from the origin on
  const auto room = static_cast<std::size_t>(std::min<std::uint64_t>(most, far));
  numeric::read_gaps(gaps(), reading, room, far, shift, out);
  symbol_ = static_cast<std::uint32_t>(reading.symbol);
  std::size_t n = reading.keys;
  std::uint64_t least = reading.least;
  while (symbol_ < count_ && n < most) {
    const Word word = word_at(symbol_);
    std::uint64_t bits = word.bits;
    for (std::uint32_t i = 0; i < word.symbols && n < most; ++i, bits >>= width_) {
      const std::uint64_t gap = bits & escape;
      if (least + gap < least) {  // it is beyond all keys
        end();
        return n;
      }
      ++symbol_;
      least += gap;
      if (gap == escape) continue;
      if (least >= far) {
        left_ -= static_cast<std::uint32_t>(n);
        next_ = origin + least;
        if (next_ < origin || next_ == kNoKey) end();
        return n;
      }
      out[n++] = static_cast<T>(least++) + shift;
    }
  }
  end();
  return n;
}

inline void KeyReader::put_back(std::span<const std::uint32_t> keys, std::uint64_t base) {
  const std::uint64_t next = base + keys.front();
  if (width_ == 1) {
    const std::uint64_t last = next_ == kNoKey ? base + keys.back() : next_;
    symbol_ = (next_ == kNoKey ? count_ : symbol_) - static_cast<std::uint32_t>(last - next);
  } else if (width_ > 1) {
    // The symbol behind that of the new next key: others are of keys that are put back, or escapes.
    std::size_t keys_behind = keys.size() - (next_ == kNoKey ? 1 : 0);
    symbol_ = next_ == kNoKey ? count_ : symbol_;
    for (; symbol_ != 0; --symbol_) {
      const bool is_key = (word_at(symbol_ - 1).bits & escape()) != escape();
      if (is_key && keys_behind-- == 0) break;
    }
  }
  left_ += static_cast<std::uint32_t>(keys.size());
  next_ = next;
}

template <class T>
std::size_t KeyReader::read_below(std::uint64_t limit, std::uint64_t base, T* out) {
  std::size_t n = 0;
  while (next_ < limit)
    n += width_ == 0   ? read_neighbours(limit, base, out + n)
         : width_ == 1 ? read_bitmap(limit, base, out + n)
                       : read_symbols(limit, base, out + n);
  return n;
}

}  // namespace sluice
