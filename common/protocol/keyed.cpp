#include "common/protocol/keyed.hpp"

#include <cstring>

namespace sluice {
namespace {

constexpr std::size_t kMostNumberBytes = 10;  // of 64 bits in groups of 7

std::size_t bitmap_bytes(std::uint8_t chunk_bits) {
  return ((std::size_t{1} << chunk_bits) + 7) / 8;
}

std::size_t keys_bytes(std::size_t count, std::uint8_t chunk_bits) {
  if (count == std::size_t{1} << chunk_bits) return 0;
  return std::min(count, bitmap_bytes(chunk_bits));
}

std::size_t number_bytes(std::uint64_t number) {
  return (static_cast<std::size_t>(std::bit_width(number | 1)) + 6) / 7;
}

std::size_t most_chunk_bytes(std::uint8_t chunk_bits, std::size_t row_bytes) {
  return kMostNumberBytes + 1 + bitmap_bytes(chunk_bits) + (row_bytes << chunk_bits);
}

/// Every bit of the result depends on every bit of `x` (the last steps of splitmix64).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EB;
  return x ^ (x >> 31);
}

std::size_t room_in_packet(const Session& session, std::size_t fixed_bytes) {
  return session.payload_bytes - fixed_bytes - wire::kTrailerBytes;
}

}  // namespace

// --------------------------------------------------------------------------------------- geometry
std::optional<KeyedGeometry> KeyedGeometry::make(std::uint64_t key_bound,
                                                 std::uint16_t row_elements, ElementType type,
                                                 const Session& session, OpNumber op) {
  assert(key_bound != 0 && key_bound != kNoChunk && row_elements != 0);
  KeyedGeometry g;
  g.key_bound = key_bound;
  g.row_elements = row_elements;
  g.type = type;
  g.streams = session.streams;
  g.first_stream = static_cast<std::uint16_t>(op % session.streams);
  const std::size_t room =
      std::min(room_in_packet(session, sizeof(wire::KeyValueData) + sizeof(wire::Descriptor)),
               room_in_packet(session, sizeof(wire::KeyValueResult)));
  g.chunk_bits = kMostChunkBits;
  while (g.chunk_bits > 0 && (g.row_bytes() << g.chunk_bits > limits::kChunkBytes ||
                              most_chunk_bytes(g.chunk_bits, g.row_bytes()) > room))
    --g.chunk_bits;
  if (most_chunk_bytes(g.chunk_bits, g.row_bytes()) > room) return std::nullopt;
  return g;
}

std::uint16_t KeyedGeometry::turn_of(std::uint64_t chunk) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint16_t>((Wide{mixed(chunk)} * used_streams()) >> 64);
}

StreamId KeyedGeometry::stream_of(std::uint64_t chunk) const {
  const std::uint32_t stream = std::uint32_t{first_stream} + turn_of(chunk);
  return StreamId{static_cast<std::uint16_t>(stream < streams ? stream : stream - streams)};
}

std::size_t run_room(const Session& session) {
  return session.by_reference
             ? limits::kReferencedRoundBytes
             : room_in_packet(session, sizeof(wire::KeyValueData) + sizeof(wire::Descriptor));
}

std::size_t keyed_result_room(const Session& session) {
  return session.by_reference ? limits::kReferencedRoundBytes
                              : room_in_packet(session, sizeof(wire::KeyValueResult));
}

// ------------------------------------------------------------------------------------------- runs
ChunkReader::Read ChunkReader::read_number(std::uint64_t& number, std::size_t& at) const {
  if (rest_.empty()) return Read::kEnd;
  std::uint64_t distance = 0;
  for (unsigned shift = 0;; shift += 7) {
    if (at == rest_.size() || shift > 63) return Read::kMalformed;
    const auto byte = static_cast<std::uint8_t>(rest_[at++]);
    const std::uint64_t group = byte & 0x7F;
    if (shift == 63 && group > 1) return Read::kMalformed;
    distance |= group << shift;
    if ((byte & 0x80) != 0) continue;
    if (byte == 0 && shift != 0) return Read::kMalformed;  // one way to write a number
    break;
  }
  number = lowest_ + distance;
  return number < lowest_ || number == kNoChunk ? Read::kMalformed : Read::kChunk;
}

ChunkReader::Read ChunkReader::next(PackedChunk& chunk) {
  std::size_t at = 0;
  if (const Read read = read_number(chunk.number, at); read != Read::kChunk) return read;
  if (at == rest_.size()) return Read::kMalformed;
  lowest_ = chunk.number + 1;
  const std::size_t count = static_cast<std::size_t>(rest_[at++]) + 1;
  const std::size_t size = keys_bytes(count, chunk_bits_) + count * row_bytes_;
  if (count > std::size_t{1} << chunk_bits_ || rest_.size() - at < size) return Read::kMalformed;
  chunk.count = static_cast<std::uint16_t>(count);
  chunk.keys = rest_.data() + at;
  rest_ = rest_.subspan(at + size);
  return Read::kChunk;
}

const std::byte* ChunkReader::unpack(const PackedChunk& chunk, std::uint8_t chunk_bits,
                                     std::uint8_t* offsets) {
  const std::size_t all = std::size_t{1} << chunk_bits;
  const std::size_t count = chunk.count;
  const std::size_t keys = keys_bytes(count, chunk_bits);
  if (keys == 0) {
    for (std::size_t i = 0; i < all; ++i) offsets[i] = static_cast<std::uint8_t>(i);
  } else if (keys < bitmap_bytes(chunk_bits)) {
    std::memcpy(offsets, chunk.keys, count);
    bool rising = offsets[count - 1] < all;
    for (std::size_t i = 1; i < count; ++i) rising &= offsets[i] > offsets[i - 1];
    if (!rising) return nullptr;
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

ChunkReader::Read ChunkReader::next(KeyedChunk& chunk) {
  PackedChunk packed;
  if (const Read read = next(packed); read != Read::kChunk) return read;
  chunk.number = packed.number;
  chunk.count = packed.count;
  chunk.rows = unpack(packed, chunk_bits_, chunk.offsets.data());
  return chunk.rows == nullptr ? Read::kMalformed : Read::kChunk;
}

std::size_t ChunkWriter::bytes_of(std::uint64_t distance, std::size_t count,
                                  std::uint8_t chunk_bits, std::size_t row_bytes) {
  return number_bytes(distance) + 1 + keys_bytes(count, chunk_bits) + count * row_bytes;
}

std::byte* ChunkWriter::append(std::uint64_t number, std::span<const std::uint8_t> offsets) {
  assert(number >= lowest_ && number != kNoChunk);
  assert(!offsets.empty() && offsets.size() <= std::size_t{1} << chunk_bits_);
  std::uint64_t distance = number - lowest_;
  const std::size_t keys = keys_bytes(offsets.size(), chunk_bits_);
  const std::size_t size = bytes_of(distance, offsets.size(), chunk_bits_, row_bytes_);
  if (room_.size() - size_ < size) {
    assert(size_ != 0);
    return nullptr;
  }
  std::byte* out = room_.data() + size_;
  for (; distance >= 0x80; distance >>= 7)
    *out++ = static_cast<std::byte>((distance & 0x7F) | 0x80);
  *out++ = static_cast<std::byte>(distance);
  *out++ = static_cast<std::byte>(offsets.size() - 1);
  if (keys != 0 && keys < bitmap_bytes(chunk_bits_)) {
    std::memcpy(out, offsets.data(), keys);
  } else if (keys != 0) {
    std::array<std::uint64_t, 4> bitmap{};
    for (const std::uint8_t offset : offsets)
      bitmap[offset / 64] |= std::uint64_t{1} << offset % 64;
    std::memcpy(out, bitmap.data(), keys);
  }
  size_ += size;
  lowest_ = number + 1;
  return out + keys;
}

}  // namespace sluice
