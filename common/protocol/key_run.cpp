#include "common/protocol/key_run.hpp"

#include <array>
#include <bit>

namespace sluice {
namespace {

using wire::RunHeader;

/// The width with the fewest bits for keys whose mean distance is known, less one: for distances as
/// they are where each key is there or not by chance. kWidest[w] is the largest mean for w bits;
/// from the last one on it doubles with each bit. One bit is taken up to a mean of 2.2 instead of
/// 1.618: a bitmap is faster, and takes 0.15 bits of a key more at most.
std::uint8_t width_for(double mean) {
  constexpr std::array kWidest{0.0,   2.2,   3.008, 5.518, 10.11, 18.62,
                               34.55, 64.68, 122.1, 232.0, 443.7};
  std::uint8_t width = 0;
  while (width < kWidest.size() && mean > kWidest[width]) ++width;
  if (width < kWidest.size()) return width;
  for (double widest = 2 * kWidest.back(); mean > widest && width < KeyCoding::kMostWidth;
       widest *= 2)
    ++width;
  return width;
}

/// More than a run may have.
constexpr std::uint64_t kTooManyEscapes = RunHeader::kMostEscapes + std::uint64_t{1};

/// The mean number of keys that are left out between two neighbours.
double mean_gap(std::span<const std::uint64_t> keys) {
  if (keys.size() < 2) return 0;
  const auto others = static_cast<double>(keys.size() - 1);
  return static_cast<double>(keys.back() - keys.front() - (keys.size() - 1)) / others;
}

/// How much of a run is used, while keys are added one by one.
class Fill {
 public:
  Fill(const RunFormat& format, std::uint8_t width, std::uint64_t first)
      : format_(format), width_(width), chunk_(format.chunk_of(first)) {}

  /// Returns the size with one more key, behind so many symbols.
  std::size_t add(std::uint64_t key, std::size_t symbols) {
    if (format_.is_scaled() && format_.chunk_of(key) != chunk_) {
      chunks_bytes_ += chunk_bytes(in_chunk_);
      in_chunk_ = 0;
      chunk_ = format_.chunk_of(key);
    }
    ++in_chunk_;
    return sizeof(RunHeader) + (symbols * width_ + 7) / 8 + chunks_bytes_ + chunk_bytes(in_chunk_);
  }

 private:
  std::size_t chunk_bytes(std::size_t keys) const {
    return format_.rows_bytes(keys) + (format_.is_scaled() ? sizeof(std::int16_t) : 0);
  }

  const RunFormat& format_;
  std::uint8_t width_;
  std::uint64_t chunk_;
  std::size_t in_chunk_ = 0;
  std::size_t chunks_bytes_ = 0;  // of the chunks before this one
};

/// How many escapes a gap takes.
std::uint64_t escapes_in(std::uint64_t gap, std::uint64_t escape) {
  if (gap < escape) return 0;
  return gap < 2 * escape ? 1 : gap / escape;
}

/// The run of as many keys as fit with this width. If rows are scaled it has no part of a chunk;
/// then it may be empty.
RunPlan plan_scaled(std::uint8_t width, std::span<const std::uint64_t> keys, std::size_t room,
                    const RunFormat& format, bool goes_on) {
  const std::uint64_t escape = (std::uint64_t{1} << width) - 1;
  Fill fill(format, width, keys[0]);
  RunPlan plan{.coding = {.keys = 1, .width = width}, .bytes = fill.add(keys[0], 0)};
  RunPlan whole;  // the last plan without a part of a chunk
  std::size_t escapes = 0, i = 1;
  for (const std::size_t end = std::min<std::size_t>(keys.size(), RunHeader::kMostKeys); i < end;
       ++i) {
    if (format.chunk_of(keys[i]) != format.chunk_of(keys[i - 1])) whole = plan;
    const std::uint64_t gap = keys[i] - keys[i - 1] - 1;
    if (width == 0 && gap != 0) break;
    if (width != 0) escapes += std::min(escapes_in(gap, escape), kTooManyEscapes);
    const std::size_t bytes = fill.add(keys[i], width == 0 ? 0 : i + escapes);
    if (bytes > room || escapes > RunHeader::kMostEscapes) break;
    plan = {.coding = {.keys = i + 1, .escapes = escapes, .width = width}, .bytes = bytes};
  }
  return i < keys.size() || goes_on ? whole : plan;
}

/// How many of the keys, and their escapes, fit in so many bits if each key takes `key_bits` and
/// each escape `width`; one at least.
KeyCoding fill_unscaled(std::uint8_t width, std::span<const std::uint64_t> keys, std::size_t bits,
                        std::size_t key_bits) {
  constexpr std::size_t kTogether = 16;
  const std::uint64_t escape = (std::uint64_t{1} << width) - 1;
  KeyCoding coding{.keys = 1, .width = width};
  std::size_t used = 0;
  const auto gap_before = [&](std::size_t i) { return keys[i] - keys[i - 1] - 1; };
  const auto fits = [&](std::size_t more_keys, std::size_t more_escapes) {
    const std::size_t more = more_keys * key_bits + more_escapes * width;
    if (used + more > bits || coding.escapes + more_escapes > RunHeader::kMostEscapes) return false;
    used += more;
    coding.keys += more_keys;
    coding.escapes += more_escapes;
    return true;
  };
  while (coding.keys + kTogether <= keys.size()) {
    const auto [escapes, has_far] =
        numeric::count_gaps(keys.subspan(coding.keys - 1, kTogether + 1), escape);
    if (has_far || !fits(kTogether, escapes)) {
      const std::size_t end = coding.keys + kTogether;
      while (coding.keys != end) {
        const std::uint64_t some = escapes_in(gap_before(coding.keys), escape);
        if (!fits(1, std::min(some, kTooManyEscapes))) return coding;
      }
    }
  }
  while (coding.keys < keys.size()) {
    const std::uint64_t some = escapes_in(gap_before(coding.keys), escape);
    if (!fits(1, std::min(some, kTooManyEscapes))) break;
  }
  return coding;
}

/// The same with symbols of one bit: then each number takes one.
KeyCoding fill_bitmap(std::span<const std::uint64_t> keys, std::size_t bits, std::size_t row_bits) {
  std::size_t fit = 1, end = keys.size() + 1;  // the first so many fit; so many do not
  while (end - fit > 1) {
    const std::size_t count = (fit + end) / 2;
    const std::uint64_t span = keys[count - 1] - keys[0];
    const bool fits =
        span - (count - 1) <= RunHeader::kMostEscapes && span + (count - 1) * row_bits <= bits;
    (fits ? fit : end) = count;
  }
  return {.keys = fit, .escapes = keys[fit - 1] - keys[0] - (fit - 1), .width = 1};
}

/// The run of rows that are not scaled, each of which takes so many bytes.
RunPlan plan_unscaled(std::uint8_t width, std::span<const std::uint64_t> keys, std::size_t room,
                      std::size_t row_bytes) {
  room -= sizeof(RunHeader);
  keys = keys.first(std::min({keys.size(), RunHeader::kMostKeys, room / row_bytes}));
  KeyCoding coding{.keys = 1, .width = width};
  if (width == 0) {
    while (coding.keys < keys.size() && keys[coding.keys] == keys[0] + coding.keys) ++coding.keys;
  } else {
    // Of a run's symbols the last byte is taken whole.
    const std::size_t bits = (room - row_bytes) * 8, row_bits = row_bytes * 8;
    coding = width == 1 ? fill_bitmap(keys, bits, row_bits)
                        : fill_unscaled(width, keys, bits, row_bits + width);
  }
  return {coding, coding.bytes() + coding.keys * row_bytes};
}

}  // namespace

RunPlan plan_run(std::span<const std::uint64_t> keys, std::size_t room, const RunFormat& format,
                 bool goes_on) {
  if (keys.empty()) return {};
  const std::size_t some = std::min(keys_that_decide(room, format), keys.size());
  const std::uint8_t width = width_for(mean_gap(keys.first(some)));
  if (!format.is_scaled()) {
    const std::size_t row_bytes = format.rows_bytes(1);
    const RunPlan plan = plan_unscaled(width, keys, room, row_bytes);
    // The keys that fit may lie nearer to each other, or farther apart.
    const std::uint8_t other = width_for(mean_gap(keys.first(plan.coding.keys)));
    if (other == width) return plan;
    const RunPlan second = plan_unscaled(other, keys, room, row_bytes);
    return second.coding.keys > plan.coding.keys ? second : plan;
  }
  RunPlan plan = plan_scaled(width, keys, room, format, goes_on);
  if (plan.coding.keys == 0) {  // one chunk needs another width than several, which lie apart
    std::size_t count = 1;
    while (count < keys.size() && format.chunk_of(keys[count]) == format.chunk_of(keys[0])) ++count;
    const auto chunk = keys.first(count);
    plan = plan_scaled(width_for(mean_gap(chunk)), chunk, room, format, false);
  }
  assert(plan.coding.keys != 0 && plan.bytes <= room);
  return plan;
}

namespace {

/// Writes 8 bytes, or as many as there is room for.
void put_word(std::uint64_t word, std::byte* out, const std::byte* room_end) {
  if (room_end - out >= static_cast<std::ptrdiff_t>(sizeof word))
    std::memcpy(out, &word, sizeof word);
  else
    std::memcpy(out, &word, static_cast<std::size_t>(room_end - out));
}

/// Symbols of one bit, each of which is about the next number: 0 if it is a key.
void write_bitmap(std::span<const std::uint64_t> keys, std::byte* out, const std::byte* end) {
  std::uint64_t first = keys[0] + 1;  // the number of the word's lowest bit
  std::uint64_t bits = 0;             // of those that are keys
  for (const std::uint64_t key : keys.subspan(1)) {
    for (; key - first >= 64; first += 64) {
      put_word(~bits, out, end);
      out += sizeof bits;
      bits = 0;
    }
    bits |= std::uint64_t{1} << (key - first);
  }
  put_word(~bits, out, end);
}

}  // namespace

std::byte* write_keys(const KeyCoding& coding, std::span<const std::uint64_t> keys,
                      std::span<std::byte> run) {
  RunHeader header;
  header.first = keys[0];
  header.keys = static_cast<std::uint16_t>(coding.keys);
  header.escapes = static_cast<std::uint16_t>(coding.escapes);
  header.width = coding.width;
  std::memcpy(run.data(), &header, sizeof header);
  std::byte* out = run.data() + sizeof header;
  std::byte* const end = run.data() + coding.bytes();
  if (coding.width == 0) return end;

  if (coding.width == 1)
    write_bitmap(keys.first(coding.keys), out, end);
  else
    numeric::write_gaps(keys.first(coding.keys), coding.width, out, run.data() + run.size());
  return end;
}

std::optional<RunView> RunView::parse(std::span<const std::byte> run) {
  if (run.empty()) return RunView{};
  if (run.size() < sizeof(RunHeader)) return std::nullopt;
  RunHeader header;
  std::memcpy(&header, run.data(), sizeof header);
  RunView view;
  view.first = header.first;
  view.coding = {.keys = header.keys, .escapes = header.escapes, .width = header.width};
  const KeyCoding& coding = view.coding;
  if (coding.keys == 0 || view.first == kNoKey || coding.width > KeyCoding::kMostWidth)
    return std::nullopt;
  if ((coding.width == 0 || coding.keys == 1) && coding.escapes != 0) return std::nullopt;
  if (coding.bytes() > run.size()) return std::nullopt;
  view.symbols = run.subspan(sizeof(RunHeader));
  view.rows = run.subspan(coding.bytes());
  return view;
}

bool RunView::has_rows(const RunFormat& format) const {
  if (!may_have_rows(format)) return false;
  if (!format.is_scaled()) return true;
  std::array<std::uint32_t, (1 << kMostChunkBits) + 1> offsets;
  std::span<const std::byte> rest = rows;
  for (KeyReader reader(*this); reader.next() != kNoKey;) {
    const std::uint64_t chunk = format.chunk_of(reader.next());
    const std::uint64_t begin = format.first_key_of(chunk), end = format.first_key_of(chunk + 1);
    const std::size_t count = reader.read_below(end > begin ? end : kNoKey, begin, offsets.data());
    const std::size_t size = sizeof(std::int16_t) + format.rows_bytes(count);
    if (rest.size() < size) return false;
    const std::byte* in = rest.data();
    if (!format.type().is_scale(take_scale(in))) return false;
    rest = rest.subspan(size);
  }
  return rest.empty();
}

std::optional<std::uint64_t> KeyReader::last() const {
  if (left_ == 0) return std::nullopt;
  __extension__ using Wide = unsigned __int128;
  if (width_ == 0) {
    const Wide key = Wide{next_} + (left_ - 1);
    return key < kNoKey ? std::optional(static_cast<std::uint64_t>(key)) : std::nullopt;
  }
  numeric::GapReading reading{.symbol = symbol_, .keys = 1, .least = 1};
  if (width_ != 1) numeric::pass_gaps(gaps(), reading);
  Wide least = Wide{next_} + reading.least;  // the next key is no less
  std::size_t keys = reading.keys;
  for (auto at = static_cast<std::uint32_t>(reading.symbol); at < count_;) {
    const Word word = word_at(at);
    at += word.symbols;
    if (width_ == 1) {
      const unsigned escapes = std::popcount(word.bits << (64 - word.symbols));
      keys += word.symbols - escapes;
      least += word.symbols;
      continue;
    }
    std::uint64_t bits = word.bits;
    for (std::uint32_t i = 0; i < word.symbols; ++i, bits >>= width_) {
      const std::uint64_t gap = bits & escape(), is_key = gap != escape() ? 1 : 0;
      keys += is_key;
      least += gap + is_key;
    }
  }
  if (keys != left_ || !ends_with_key()) return std::nullopt;
  const Wide key = least - 1;
  if (key >= kNoKey) return std::nullopt;
  return static_cast<std::uint64_t>(key);
}

}  // namespace sluice
