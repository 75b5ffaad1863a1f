// Which rank has which blocks, and in which order they are exchanged. It is computed once, so that
// no tensors and searches are needed while packets flow.
//
// Every op has the same number of blocks, `rows` in each column of each stream. In an op, streams
// are counted from its first one, so all ops have the same schedule. For each of these, column and
// rank, one bit per row tells whether the rank's block is non-zero; one more "rank" is the union of
// all.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/perf/pattern.hpp"
#include "common/base/rank_set.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/session.hpp"

namespace sluice::pktgen {

using Row = std::uint16_t;
inline constexpr Row kNoRow = 0xFFFF;
inline constexpr Row kMaxRows = 4096;

struct PatternOptions {
  ElementType type = ElementType::kFloat32;
  Row rows = 256;
  double density = 1;
  perf::Overlap overlap = perf::Overlap::kRandom;
  std::uint64_t seed = 1;
};

class BlockSchedule {
 public:
  BlockSchedule(const Session& session, const PatternOptions& options);

  /// The geometry of every op, without its first stream.
  const Geometry& geometry() const { return geometry_; }

  /// The number of this stream in the op, counted from the op's first stream.
  std::uint16_t turn(StreamId s, OpNumber op) const {
    const auto first = static_cast<std::uint16_t>(op % geometry_.streams);
    return static_cast<std::uint16_t>(s.value >= first ? s.value - first
                                                       : s.value + geometry_.streams - first);
  }

  BlockIndex block(std::uint16_t turn, std::uint8_t column, Row row) const {
    if (row == kNoRow) return kNoBlock;
    const std::uint32_t of_all = std::uint32_t{turn} * geometry_.columns + column;
    return {static_cast<std::uint32_t>(geometry_.block_at(of_all, row))};
  }

  bool owns(std::uint16_t turn, Rank rank, std::uint8_t column, Row row) const {
    return (words(turn, rank.value, column)[row / 64] >> (row % 64) & 1) != 0;
  }
  RankSet owners(std::uint16_t turn, std::uint8_t column, Row row) const;

  /// The rank's first non-zero block after `row` in the column.
  Row next_own(std::uint16_t turn, Rank rank, std::uint8_t column, Row row) const {
    return next(words(turn, rank.value, column), row);
  }
  /// The first block after `row` that some rank has.
  Row next_wanted(std::uint16_t turn, std::uint8_t column, Row row) const {
    return next(words(turn, ranks_, column), row);
  }

 private:
  std::size_t place(std::uint16_t turn, std::uint16_t rank, std::uint8_t column) const {
    const std::size_t column_of_rank = std::size_t{turn} * (ranks_ + 1u) + rank;
    return (column_of_rank * geometry_.columns + column) * words_per_column_;
  }
  const std::uint64_t* words(std::uint16_t turn, std::uint16_t rank, std::uint8_t column) const {
    return bits_.data() + place(turn, rank, column);
  }

  Row next(const std::uint64_t* words, Row after) const {
    for (std::uint32_t row = after + 1u; row < rows_; row = (row | 63) + 1)
      if (const std::uint64_t rest = words[row / 64] >> (row % 64); rest != 0)
        return static_cast<Row>(row + static_cast<std::uint32_t>(std::countr_zero(rest)));
    return kNoRow;
  }

  Geometry geometry_;
  std::uint16_t ranks_;
  Row rows_;
  std::size_t words_per_column_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace sluice::pktgen
