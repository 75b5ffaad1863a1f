// Which block travels where: the mapping of a tensor's blocks to streams and columns. Workers and
// aggregators compute it in the same way (docs/protocol.md, "Mapping").
//
// With S streams of W columns, block b of op k belongs to global column (b + (k mod S)·W) mod S·W;
// stream s has the columns s·W .. s·W+W-1. So an op begins on stream k mod S, and small ops are
// spread over streams and aggregators.
#pragma once

#include <algorithm>
#include <cstdint>

#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/wire_type.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice {

/// How many elements of a type fit into one packet of `payload_bytes`. For a scaled type, they must
/// fit before they are encoded.
constexpr std::size_t most_block_elements(WireType type, std::size_t payload_bytes) {
  return (payload_bytes - wire::kBlockPacketOverhead - sizeof(wire::Column)) /
         element_bytes(type.element());
}

/// Elements per block of a type: as many as wanted, halved until one block fits into
/// `payload_bytes`.
constexpr std::uint32_t fitting_block_elements(std::uint32_t wanted, WireType type,
                                               std::size_t payload_bytes) {
  const std::size_t most = most_block_elements(type, payload_bytes);
  std::uint32_t elements = wanted;
  while (elements > 1 && elements > most) elements /= 2;
  return elements;
}

/// Elements per block of an op that wants at most so many; 0: as many as the session has.
constexpr std::uint32_t fitting_block_elements(const Session& session, std::uint16_t wanted,
                                               ElementType type) {
  return fitting_block_elements(wanted == 0 ? session.block_elements : wanted, type,
                                session.payload_bytes);
}

/// W: how many blocks fit into one packet, 1..kMaxColumns.
constexpr std::uint8_t fitting_columns(std::uint32_t block_elements, WireType type,
                                       std::size_t payload_bytes) {
  const std::size_t room = payload_bytes - wire::kBlockPacketOverhead;
  const std::size_t fit = room / (sizeof(wire::Column) + type.bytes(block_elements));
  return static_cast<std::uint8_t>(std::clamp<std::size_t>(fit, 1, limits::kMaxColumns));
}

/// The most columns that an op can have in a session; that is with the smallest blocks.
constexpr std::uint8_t widest_columns(const Session& s) {
  return fitting_columns(1, ElementType::kInt8, s.payload_bytes);
}

/// The mapping of one op's blocks to the streams of a job.
struct Geometry {
  std::uint64_t element_count = 0;
  std::uint32_t block_elements = 1;
  std::uint32_t blocks = 0;        ///< ceil(element_count / block_elements)
  std::uint16_t streams = 1;       ///< S
  std::uint16_t first_stream = 0;  ///< the stream of block 0
  std::uint8_t columns = 1;        ///< W
  WireType type = ElementType::kFloat32;

  static constexpr Geometry make(std::uint64_t element_count, WireType type,
                                 std::uint32_t block_elements, std::size_t payload_bytes,
                                 std::uint16_t streams, OpNumber op) {
    Geometry g;
    g.element_count = element_count;
    g.type = type;
    g.block_elements = fitting_block_elements(block_elements, type, payload_bytes);
    g.columns = fitting_columns(g.block_elements, type, payload_bytes);
    g.blocks =
        static_cast<std::uint32_t>((element_count + g.block_elements - 1) / g.block_elements);
    g.streams = streams;
    g.first_stream = static_cast<std::uint16_t>(op % streams);
    return g;
  }

  /// Distance between two blocks of one column.
  constexpr std::uint32_t stride() const { return std::uint32_t{streams} * columns; }

  /// Whether two blocks at this distance are in the same column. Usually the second is the next
  /// block of the column, so this is checked first: a division would cost more than all other work
  /// for a column.
  constexpr bool in_one_column(std::uint32_t distance) const {
    return distance == stride() || distance % stride() == 0;
  }

  /// The first stream takes part in every op, so that descriptors are always compared.
  constexpr bool uses(StreamId s) const { return s.value == first_stream || lowest(s) < blocks; }

  /// How many streams take part.
  constexpr std::uint16_t used_streams() const {
    const std::uint32_t needed = blocks / columns + (blocks % columns != 0);
    return static_cast<std::uint16_t>(std::clamp<std::uint32_t>(needed, 1, streams));
  }

  /// The column's current block in the op's first round.
  constexpr BlockIndex first_index(StreamId s, std::uint8_t column) const {
    const std::uint32_t index = lowest(s) + column;
    return index < blocks ? BlockIndex{index} : kNoBlock;
  }

  /// Elements of a block: the last one may be short.
  constexpr std::uint32_t elements_of(BlockIndex b) const {
    const std::uint64_t begin = std::uint64_t{b.value} * block_elements;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(block_elements, element_count - begin));
  }

  constexpr std::size_t full_block_bytes() const { return type.bytes(block_elements); }
  constexpr std::size_t round_bytes() const { return columns * full_block_bytes(); }
  constexpr std::size_t bytes_of(BlockIndex b) const { return type.bytes(elements_of(b)); }
  constexpr std::size_t offset_of(BlockIndex b) const { return b.value * full_block_bytes(); }

 private:
  constexpr std::uint32_t lowest(StreamId s) const {
    const std::uint32_t place = (std::uint32_t{s.value} + streams - first_stream) % streams;
    return place * columns;
  }
};

/// Most elements of a tensor: its block indices stay below kNoBlock.
constexpr std::uint64_t max_element_count(std::uint32_t block_elements) {
  return std::uint64_t{kNoBlock.value} * block_elements;
}

}  // namespace sluice
