// Keyed ops: sums of sorted pairs of a 64-bit key and a row of values (docs/protocol.md, "Keyed
// streams"). Keys are divided into chunks of 2^b consecutive keys. A chunk is never split: its
// number determines the stream on which it travels, and a round sums whole chunks.
//
// A run of chunks, as DATA and RESULT carry it:
//   per chunk   how many chunk numbers lie between it and the one before (LEB128; for the first
//               one its number), the number of its keys less one (1 byte), the scale (2 bytes,
//               only if rows are scaled), the keys, the rows
//   the keys    nothing, if the chunk has all; otherwise a byte each, or a bitmap, whichever is
//               shorter
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/wire_type.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

/// The end of all chunks. No chunk has this number, as keys are less than 2^64 - 1.
inline constexpr std::uint64_t kNoChunk = ~std::uint64_t{0};

inline constexpr std::uint8_t kMostChunkBits = 8;  // the offset of a key in its chunk is a byte

namespace keyed {

constexpr std::size_t kMostNumberBytes = 10;  // 64 bits in groups of 7

inline std::size_t bitmap_bytes(std::uint8_t chunk_bits) {
  return ((std::size_t{1} << chunk_bits) + 7) / 8;
}

inline std::size_t keys_bytes(std::size_t count, std::uint8_t chunk_bits) {
  if (count == std::size_t{1} << chunk_bits) return 0;
  return std::min(count, bitmap_bytes(chunk_bits));
}

inline std::size_t number_bytes(std::uint64_t number) {
  return (static_cast<std::size_t>(std::bit_width(number | 1)) + 6) / 7;
}

/// Every bit of the result depends on every bit of `x` (the last steps of splitmix64).
inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

}  // namespace keyed

struct PackedChunk;

/// How chunks are stored in a run: up to 2^bits keys, and rows of so many elements, one behind the
/// other. The scaled elements of a chunk have one scale.
class ChunkFormat {
 public:
  ChunkFormat() = default;
  ChunkFormat(std::uint8_t bits, std::uint16_t row_elements, WireType type)
      : row_bits_(row_elements * static_cast<std::uint32_t>(type.bytes(2) * 4)),
        bits_(bits),
        is_scaled_(type.is_scaled()),
        type_(type) {
    assert(bits <= kMostChunkBits && row_elements != 0);
  }

  std::uint8_t bits() const { return bits_; }
  std::size_t most_keys() const { return std::size_t{1} << bits_; }
  WireType type() const { return type_; }
  bool is_scaled() const { return is_scaled_; }
  std::size_t scale_bytes() const { return is_scaled_ ? sizeof(std::int16_t) : 0; }
  /// The size of the keys, and of the rows, of a chunk with so many keys.
  std::size_t keys_bytes(std::size_t count) const { return keyed::keys_bytes(count, bits_); }
  std::size_t rows_bytes(std::size_t count) const { return (count * row_bits_ + 7) / 8; }
  /// The size of a chunk whose number is by `distance` larger than that of the chunk before.
  std::size_t bytes(std::uint64_t distance, std::size_t count) const {
    return keyed::number_bytes(distance) + 1 + scale_bytes() + keys_bytes(count) +
           rows_bytes(count);
  }

 private:
  std::uint32_t row_bits_ = 8;
  std::uint8_t bits_ = 0;
  bool is_scaled_ = false;
  WireType type_ = ElementType::kInt8;
};

/// How a keyed op's keys are divided into chunks, and the chunks among the streams of a job.
struct KeyedGeometry {
  std::uint64_t key_bound = 1;     ///< all keys are less; at least 1
  std::uint16_t row_elements = 1;  ///< elements of each key's row, at least 1
  std::uint8_t chunk_bits = 0;     ///< a chunk has 2^chunk_bits keys, at most 256
  std::uint16_t streams = 1;       ///< S
  /// Takes part in every op, so that descriptors are always compared.
  std::uint16_t first_stream = 0;
  WireType type = ElementType::kFloat32;

  /// Nothing if a row is too long for a packet.
  static std::optional<KeyedGeometry> make(std::uint64_t key_bound, std::uint16_t row_elements,
                                           WireType type, const Session& session, OpNumber op);

  ChunkFormat format() const { return {chunk_bits, row_elements, type}; }
  /// The bytes of a row as it is reduced. Scaled elements are then as long as fp32; their chunks
  /// have the size of those of fp32.
  std::size_t row_bytes() const { return row_elements * element_bytes(type.element()); }
  std::size_t chunk_keys() const { return std::size_t{1} << chunk_bits; }
  std::uint64_t chunk_of(std::uint64_t key) const { return key >> chunk_bits; }
  std::uint64_t chunks() const { return chunk_of(key_bound - 1) + 1; }

  std::uint16_t used_streams() const {
    return static_cast<std::uint16_t>(std::min<std::uint64_t>(streams, chunks()));
  }
  bool uses(StreamId s) const { return place_of(s) < used_streams(); }
  /// Consecutive chunks are spread over all streams as evenly as possible, so that the streams
  /// finish together, also if only some groups of consecutive chunks are there.
  StreamId stream_of(std::uint64_t chunk) const;
  /// The same, counted from the first stream.
  std::uint16_t place_of(std::uint64_t chunk) const;
  std::uint16_t place_of(StreamId s) const {
    return static_cast<std::uint16_t>((std::uint32_t{s.value} + streams - first_stream) % streams);
  }

  /// Whether the chunk's keys are valid: in ascending order and less than the bound.
  bool has_keys_of(const PackedChunk& chunk) const;
};

/// The elements of the longest row that fits into a packet of the session.
std::size_t most_row_elements(WireType type, const Session& session);

/// The most bytes of a run in a packet of a keyed op.
std::size_t run_room(const Session& session);
std::size_t keyed_result_room(const Session& session);

/// One chunk of a run: its keys are number * 2^chunk_bits + offset.
struct KeyedChunk {
  std::uint64_t number;
  std::uint16_t count;                    ///< keys, 1..256
  std::int16_t scale;                     ///< if rows are scaled
  std::array<std::uint8_t, 256> offsets;  ///< `count` of them, ascending
  const std::byte* rows;                  ///< in the run, one behind the other
};

/// The set of keys in a chunk.
class ChunkKeys {
 public:
  ChunkKeys() = default;
  explicit ChunkKeys(std::span<const std::uint8_t> offsets) {
    for (const std::uint8_t offset : offsets) insert(offset);
  }

  void insert(std::uint8_t offset) { words_[offset / 64] |= std::uint64_t{1} << offset % 64; }
  bool contains(std::uint8_t offset) const { return (words_[offset / 64] >> offset % 64 & 1) != 0; }
  /// Writes the keys in ascending order. Returns how many there are.
  std::size_t write(std::span<std::uint8_t, 256> offsets) const {
    std::size_t count = 0;
    for (std::size_t word = 0; word < words_.size(); ++word)
      for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1)
        offsets[count++] =
            static_cast<std::uint8_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
    return count;
  }
  /// Writes the bitmap of a run.
  void write_bitmap(std::byte* out, std::size_t bytes) const {
    assert(bytes <= sizeof words_);
    std::memcpy(out, words_.data(), bytes);
  }

 private:
  std::array<std::uint64_t, 4> words_{};
};

/// Whether all keys of the chunk are less than `key_bound`.
inline bool has_keys_below(const KeyedChunk& chunk, std::uint8_t chunk_bits,
                           std::uint64_t key_bound) {
  const std::uint64_t last = key_bound - 1;
  if (chunk.number != last >> chunk_bits) return chunk.number < last >> chunk_bits;
  return chunk.offsets[chunk.count - 1u] <= (last & ((1u << chunk_bits) - 1));
}

/// One chunk of a run whose keys have not been read yet.
struct PackedChunk {
  std::uint64_t number = kNoChunk;
  std::uint16_t count = 0;          ///< keys, 1..256
  std::int16_t scale = 0;           ///< if rows are scaled
  const std::byte* keys = nullptr;  ///< as they are in the run; the rows follow
};

/// Reads a run chunk by chunk. Each byte, except those of rows, is read once, and is checked before
/// it is used: another process may be able to write to the memory of the run.
class ChunkReader {
 public:
  ChunkReader() = default;
  ChunkReader(std::span<const std::byte> run, const ChunkFormat& format)
      : rest_(run), format_(format) {}

  enum class Read { kChunk, kEnd, kMalformed };
  Read next(KeyedChunk& chunk);
  /// The same without the keys, which unpack() checks.
  Read next(PackedChunk& chunk);
  /// Reads the keys of a chunk; `offsets` has room for 256. Returns where its rows begin; null if
  /// the keys are not those of a chunk in ascending order.
  static const std::byte* unpack(const PackedChunk& chunk, std::uint8_t chunk_bits,
                                 std::uint8_t* offsets);

 private:
  Read read_number(std::uint64_t& number, std::size_t& at) const;

  std::span<const std::byte> rest_;
  std::uint64_t lowest_ = 0;  // the least number that the next chunk may have
  ChunkFormat format_;
};

/// Writes a run chunk by chunk into limited room.
class ChunkWriter {
 public:
  ChunkWriter() = default;
  ChunkWriter(std::span<std::byte> room, const ChunkFormat& format)
      : room_(room), format_(format) {}

  /// Returns where to write the chunk's keys, in the form of a run, followed by its rows. Returns
  /// null, and writes nothing, if the chunk does not fit. Numbers must be ascending. Any chunk fits
  /// into an empty run.
  std::byte* open(std::uint64_t number, std::size_t count);
  /// The same, and writes the keys: returns where to write the rows.
  std::byte* append(std::uint64_t number, std::span<const std::uint8_t> offsets) {
    return append(number, offsets, ChunkKeys(offsets));
  }
  /// The same, if the keys are also known as a set.
  std::byte* append(std::uint64_t number, std::span<const std::uint8_t> offsets,
                    const ChunkKeys& set);
  /// Sets the scale of the chunk that was opened last, if its rows are scaled.
  void set_scale(wire::Le<std::int16_t> scale) { std::memcpy(scale_, &scale, sizeof scale); }
  bool has_bitmap(std::size_t count) const {
    return count >= keyed::bitmap_bytes(format_.bits()) && count >> format_.bits() == 0;
  }
  std::size_t size() const { return size_; }
  std::span<const std::byte> run() const { return room_.first(size_); }

 private:
  std::span<std::byte> room_;
  std::size_t size_ = 0;
  std::uint64_t lowest_ = 0;
  std::byte* scale_ = nullptr;
  ChunkFormat format_;
};

// Inline, as it is called for every chunk.
inline std::uint16_t KeyedGeometry::place_of(std::uint64_t chunk) const {
  constexpr std::uint64_t kGoldenRatio = 0x9E37'79B9'7F4A'7C15;  // as a fraction of 2^64
  constexpr unsigned kGroupBits = 12;
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t share = keyed::mixed(chunk >> kGroupBits) + chunk * kGoldenRatio;
  return static_cast<std::uint16_t>((Wide{share} * used_streams()) >> 64);
}

inline StreamId KeyedGeometry::stream_of(std::uint64_t chunk) const {
  const std::uint32_t stream = std::uint32_t{first_stream} + place_of(chunk);
  return StreamId{static_cast<std::uint16_t>(stream < streams ? stream : stream - streams)};
}

inline ChunkReader::Read ChunkReader::read_number(std::uint64_t& number, std::size_t& at) const {
  if (rest_.empty()) return Read::kEnd;
  std::uint64_t distance = 0;
  for (unsigned shift = 0;; shift += 7) {
    if (at == rest_.size() || shift > 63) return Read::kMalformed;
    const auto byte = static_cast<std::uint8_t>(rest_[at++]);
    const std::uint64_t group = byte & 0x7F;
    if (shift == 63 && group > 1) return Read::kMalformed;
    distance |= group << shift;
    if ((byte & 0x80) != 0) continue;
    if (byte == 0 && shift != 0) return Read::kMalformed;  // a number has only one valid form
    break;
  }
  number = lowest_ + distance;
  return number < lowest_ || number == kNoChunk ? Read::kMalformed : Read::kChunk;
}

inline ChunkReader::Read ChunkReader::next(PackedChunk& chunk) {
  std::size_t at = 0;
  if (const Read read = read_number(chunk.number, at); read != Read::kChunk) return read;
  if (at == rest_.size()) return Read::kMalformed;
  lowest_ = chunk.number + 1;
  const std::size_t count = static_cast<std::size_t>(rest_[at++]) + 1;
  const std::size_t size = format_.keys_bytes(count) + format_.rows_bytes(count);
  if (count > format_.most_keys() || rest_.size() - at < format_.scale_bytes() + size)
    return Read::kMalformed;
  if (format_.is_scaled()) {
    wire::Le<std::int16_t> scale;
    std::memcpy(&scale, rest_.data() + at, sizeof scale);
    chunk.scale = scale;
    if (!format_.type().is_scale(chunk.scale)) return Read::kMalformed;
    at += sizeof scale;
  }
  chunk.count = static_cast<std::uint16_t>(count);
  chunk.keys = rest_.data() + at;
  rest_ = rest_.subspan(at + size);
  return Read::kChunk;
}

inline const std::byte* ChunkReader::unpack(const PackedChunk& chunk, std::uint8_t chunk_bits,
                                            std::uint8_t* offsets) {
  const std::size_t all = std::size_t{1} << chunk_bits;
  const std::size_t count = chunk.count;
  const std::size_t keys = keyed::keys_bytes(count, chunk_bits);
  if (keys == 0) {
    for (std::size_t i = 0; i < all; ++i) offsets[i] = static_cast<std::uint8_t>(i);
  } else if (keys < keyed::bitmap_bytes(chunk_bits)) {
    auto last = static_cast<std::uint8_t>(chunk.keys[0]);
    offsets[0] = last;
    bool rising = true;
    for (std::size_t i = 1; i < count; ++i) {
      const auto offset = static_cast<std::uint8_t>(chunk.keys[i]);
      rising &= offset > last;
      offsets[i] = last = offset;
    }
    if (!rising || last >= all) return nullptr;
  } else {
    std::array<std::uint64_t, 4> bitmap{};
    std::memcpy(bitmap.data(), chunk.keys, keys);
    std::size_t found = 0;
    for (const std::uint64_t word : bitmap) found += static_cast<std::size_t>(std::popcount(word));
    if (found != count || (all < 8 && (bitmap[0] >> all) != 0)) return nullptr;
    for (std::size_t word = 0; word < bitmap.size(); ++word)
      for (std::uint64_t bits = bitmap[word]; bits != 0; bits &= bits - 1)
        *offsets++ =
            static_cast<std::uint8_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
  }
  return chunk.keys + keys;
}

inline bool KeyedGeometry::has_keys_of(const PackedChunk& packed) const {
  KeyedChunk chunk;
  chunk.number = packed.number;
  chunk.count = packed.count;
  return ChunkReader::unpack(packed, chunk_bits, chunk.offsets.data()) != nullptr &&
         has_keys_below(chunk, chunk_bits, key_bound);
}

inline ChunkReader::Read ChunkReader::next(KeyedChunk& chunk) {
  PackedChunk packed;
  if (const Read read = next(packed); read != Read::kChunk) return read;
  chunk.number = packed.number;
  chunk.count = packed.count;
  chunk.scale = packed.scale;
  chunk.rows = unpack(packed, format_.bits(), chunk.offsets.data());
  return chunk.rows == nullptr ? Read::kMalformed : Read::kChunk;
}

inline std::byte* ChunkWriter::open(std::uint64_t number, std::size_t count) {
  assert(number >= lowest_ && number != kNoChunk);
  assert(count != 0 && count <= format_.most_keys());
  std::uint64_t distance = number - lowest_;
  const std::size_t size = format_.bytes(distance, count);
  if (room_.size() - size_ < size) {
    assert(size_ != 0);
    return nullptr;
  }
  std::byte* out = room_.data() + size_;
  for (; distance >= 0x80; distance >>= 7)
    *out++ = static_cast<std::byte>((distance & 0x7F) | 0x80);
  *out++ = static_cast<std::byte>(distance);
  *out++ = static_cast<std::byte>(count - 1);
  scale_ = std::exchange(out, out + format_.scale_bytes());
  size_ += size;
  lowest_ = number + 1;
  return out;
}

inline std::byte* ChunkWriter::append(std::uint64_t number, std::span<const std::uint8_t> offsets,
                                      const ChunkKeys& set) {
  std::byte* const out = open(number, offsets.size());
  if (out == nullptr) return nullptr;
  const std::size_t keys = format_.keys_bytes(offsets.size());
  if (has_bitmap(offsets.size()))
    set.write_bitmap(out, keys);
  else if (keys != 0)
    std::memcpy(out, offsets.data(), keys);
  return out + keys;
}

/// The threshold of a keyed op: smaller sums are not delivered. It is in the descriptor, in the
/// bits that say for other ops what is wanted.
inline double threshold_of(const wire::Descriptor& descriptor) {
  return std::bit_cast<double>(std::uint64_t{descriptor.begin});
}

/// The class of a sum that does not reach the threshold, by its magnitude: see
/// wire::kRejectedClasses.
inline std::size_t rejected_class(double magnitude, double threshold) {
  std::size_t in_class = 0;
  for (double bound = threshold / 2; in_class + 1 < wire::kRejectedClasses && magnitude < bound;
       bound /= 2)
    ++in_class;
  return in_class;
}

}  // namespace sluice
