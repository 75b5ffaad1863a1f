// Which block travels where: the mapping of a tensor's blocks to streams and columns. Workers and
// aggregators compute it in the same way (docs/protocol.md, "Mapping").
//
// The blocks lie in rows of S·W, one for each column of each stream: row i has the blocks i·S·W ..
// (i + 1)·S·W - 1. An op begins on the stream that its number says, so that small ops are spread
// over streams and aggregators. Each row is rotated by as many columns as its number says, so that
// the blocks of a matrix of which some columns alone are non-zero are spread, too.
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
  static constexpr std::uint32_t kRowFraction = 0x5D9D'7397;  ///< times 2^32; see rotation()

  std::uint64_t element_count = 0;
  std::uint32_t block_elements = 1;
  std::uint32_t blocks = 0;        ///< ceil(element_count / block_elements)
  std::uint16_t streams = 1;       ///< S
  std::uint16_t first_stream = 0;  ///< the stream of block 0
  std::uint8_t columns = 1;        ///< W
  WireType type = ElementType::kFloat32;
  std::uint64_t row_reciprocal = 0;  ///< 2^64 / row_blocks(), rounded up; 0: divide instead

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
    g.row_reciprocal = ~std::uint64_t{0} / g.row_blocks() + 1;
    return g;
  }

  /// Blocks in a row: S·W.
  constexpr std::uint32_t row_blocks() const { return std::uint32_t{streams} * columns; }

  /// Without a division, which would cost more than all other work for a column: exact for all 32
  /// bits (Lemire et al., "Faster remainder by direct computation", 2019).
  constexpr std::uint32_t row_of(BlockIndex b) const {
    if (row_reciprocal == 0) return b.value / row_blocks();
    __extension__ using Product = unsigned __int128;
    return static_cast<std::uint32_t>(Product{row_reciprocal} * b.value >> 64);
  }

  /// By how many columns a row is rotated: by multiples of a fraction of all, which are spread
  /// evenly over the columns (a Kronecker sequence). So are those of every few rows, and modulo few
  /// aggregators: as of the golden ratio, no partial quotient of the fraction is large, but nor is
  /// one of its multiples by small numbers. Of the first row 0.
  static constexpr std::uint32_t rotation(std::uint32_t row, std::uint32_t row_blocks) {
    return static_cast<std::uint32_t>(std::uint64_t{row * kRowFraction} * row_blocks >> 32);
  }

  /// The block's column, counted over all streams from the op's first one: 0 .. S·W-1.
  constexpr std::uint32_t column_of(BlockIndex b) const {
    const std::uint32_t row = row_of(b);
    const std::uint32_t all = row_blocks();
    const std::uint32_t column = b.value - row * all + rotation(row, all);
    return column < all ? column : column - all;
  }

  /// Where the column has its block in a row; may lie beyond the last block.
  constexpr std::uint64_t block_at(std::uint32_t column, std::uint32_t row) const {
    return block_at(column, row, row_blocks());
  }
  static constexpr std::uint64_t block_at(std::uint32_t column, std::uint32_t row,
                                          std::uint32_t row_blocks) {
    const std::uint32_t rotated = rotation(row, row_blocks);
    return std::uint64_t{row} * row_blocks +
           (column >= rotated ? column - rotated : column + row_blocks - rotated);
  }

  /// The column's block after b, or kNoBlock.
  constexpr BlockIndex following(std::uint32_t column, BlockIndex b) const {
    const std::uint64_t next = block_at(column, row_of(b) + 1);
    return next < blocks ? BlockIndex{static_cast<std::uint32_t>(next)} : kNoBlock;
  }
  constexpr BlockIndex following(BlockIndex b) const { return following(column_of(b), b); }

  /// How many blocks the column has from b to before `end`, which is one of its blocks or kNoBlock.
  constexpr std::uint32_t blocks_between(BlockIndex b, BlockIndex end) const {
    if (end != kNoBlock) return row_of(end) - row_of(b);
    const std::uint32_t last_row = row_of(BlockIndex{blocks - 1});
    return last_row - row_of(b) + (block_at(column_of(b), last_row) < blocks);
  }

  /// The first stream takes part in every op, so that descriptors are always compared.
  constexpr bool uses(StreamId s) const {
    return s.value == first_stream || first_column(s) < blocks;
  }

  /// How many streams take part.
  constexpr std::uint16_t used_streams() const {
    const std::uint32_t needed = blocks / columns + (blocks % columns != 0);
    return static_cast<std::uint16_t>(std::clamp<std::uint32_t>(needed, 1, streams));
  }

  /// The first of the stream's columns, as column_of() counts them.
  constexpr std::uint32_t first_column(StreamId s) const {
    const std::uint32_t place = (std::uint32_t{s.value} + streams - first_stream) % streams;
    return place * columns;
  }

  /// The column's current block in the op's first round.
  constexpr BlockIndex first_index(StreamId s, std::uint8_t column) const {
    const std::uint32_t index = first_column(s) + column;
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
};

/// The blocks of one column, one behind the other.
class ColumnBlocks {
 public:
  /// `first` is one of them.
  ColumnBlocks(const Geometry& geometry, std::uint32_t column, BlockIndex first)
      : row_blocks_(geometry.row_blocks()), column_(column), row_(geometry.row_of(first)) {}

  /// May lie beyond the last block of the tensor.
  std::uint64_t block() const { return Geometry::block_at(column_, row_, row_blocks_); }
  void advance() { ++row_; }
  /// Passes over the blocks below `begin`.
  void skip_to(BlockIndex begin) {
    if (block() >= begin.value) return;
    row_ = begin.value / row_blocks_;
    if (block() < begin.value) advance();
  }

 private:
  std::uint32_t row_blocks_, column_, row_;
};

/// Calls f(BlockIndex) for a column's blocks from `first` on, below `end`; kNoBlock: all of them.
template <class F>
void for_each_in_column(const Geometry& geometry, BlockIndex first, BlockIndex end, F&& f) {
  const std::uint32_t most = std::min(end.value, geometry.blocks);
  ColumnBlocks column(geometry, geometry.column_of(first), first);
  for (; column.block() < most; column.advance())
    f(BlockIndex{static_cast<std::uint32_t>(column.block())});
}

/// Most elements of a tensor: its block indices stay below kNoBlock.
constexpr std::uint64_t max_element_count(std::uint32_t block_elements) {
  return std::uint64_t{kNoBlock.value} * block_elements;
}

}  // namespace sluice
