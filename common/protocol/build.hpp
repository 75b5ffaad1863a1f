// Writing packets: the other half of the codec.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <span>

#include "common/protocol/geometry.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::wire {

inline Header header_of(Kind kind, std::uint32_t job, std::size_t length) {
  Header header;
  header.magic = kMagic;
  header.version = kVersion;
  header.kind = static_cast<std::uint8_t>(kind);
  header.length = static_cast<std::uint16_t>(length);
  header.job = job;
  return header;
}

/// A packet of fixed size: its Header is filled, and everything else is zero.
template <class T>
T make(std::uint32_t job) {
  T packet;
  reinterpret_cast<Header&>(packet) = header_of(KindOf<T>::kValue, job, sizeof(T));
  return packet;
}

template <class T>
std::span<const std::byte> bytes_of(const T& packet) {
  return std::as_bytes(std::span(&packet, 1));
}

inline Shape shape_of(const Geometry& geometry) {
  Shape shape;
  shape.element_count = geometry.element_count;
  shape.block_elements = static_cast<std::uint16_t>(geometry.block_elements);
  shape.wire_type = geometry.type.code();
  shape.columns = geometry.columns;
  return shape;
}

inline Shape shape_of(const KeyedGeometry& geometry) {
  Shape shape;
  shape.element_count = geometry.key_bound;
  shape.block_elements = geometry.row_elements;
  shape.wire_type = geometry.type.code();
  shape.columns = geometry.chunk_bits;
  return shape;
}

inline bool same(const Shape& a, const Shape& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// The size of a DATA or RESULT with `payload` bytes of blocks.
template <class T>
constexpr std::size_t block_packet_bytes(std::uint8_t columns, bool descriptor,
                                         std::size_t payload) {
  return sizeof(T) + (descriptor ? sizeof(Descriptor) : 0) + columns * sizeof(Column) + payload;
}

/// A DATA or RESULT that is being written. Fill `fixed`, the descriptor if there is one, and the
/// columns; then append the blocks in the order of columns.
template <class T>
struct BlockPacket {
  T& fixed;
  Descriptor* descriptor;  // null if there is none
  std::span<Column> columns;
  std::byte* payload;

  /// `out` has exactly block_packet_bytes() bytes.
  static BlockPacket begin(std::span<std::byte> out, std::uint32_t job, std::uint8_t columns,
                           bool with_descriptor) {
    std::byte* at = out.data();
    T* fixed = ::new (at) T();
    reinterpret_cast<Header&>(*fixed) = header_of(KindOf<T>::kValue, job, out.size());
    at += sizeof(T);
    Descriptor* descriptor = nullptr;
    if (with_descriptor) {
      descriptor = ::new (at) Descriptor();
      at += sizeof(Descriptor);
    }
    Column* first = ::new (at) Column();
    for (std::uint8_t c = 1; c < columns; ++c) ::new (at + c * sizeof(Column)) Column();
    return {*fixed, descriptor, {first, columns}, at + columns * sizeof(Column)};
  }
};

}  // namespace sluice::wire
