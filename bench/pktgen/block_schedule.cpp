#include "bench/pktgen/block_schedule.hpp"

namespace sluice::pktgen {
namespace {

Geometry geometry_of(const Session& session, const PatternOptions& options) {
  const auto with = [&](std::uint64_t elements) {
    return Geometry::make(elements, options.type, session.block_elements, session.payload_bytes,
                          session.streams, 0);
  };
  const Geometry empty = with(0);
  return with(std::uint64_t{options.rows} * empty.row_blocks() * empty.block_elements);
}

}  // namespace

BlockSchedule::BlockSchedule(const Session& session, const PatternOptions& options)
    : geometry_(geometry_of(session, options)),
      ranks_(session.ranks),
      rows_(options.rows),
      words_per_column_((options.rows + 63u) / 64u),
      bits_(std::size_t{geometry_.row_blocks()} * (ranks_ + 1u) * words_per_column_) {
  const perf::BlockPattern pattern(geometry_.blocks, options.density, options.overlap,
                                   options.seed);
  for (std::uint16_t turn = 0; turn < geometry_.streams; ++turn)
    for (std::uint8_t c = 0; c < geometry_.columns; ++c)
      for (std::uint16_t r = 0; r < ranks_; ++r)
        for (Row row = 0; row < rows_; ++row) {
          if (!pattern.nonzero(r, block(turn, c, row).value)) continue;
          const std::uint64_t bit = std::uint64_t{1} << (row % 64);
          bits_[place(turn, r, c) + row / 64] |= bit;
          bits_[place(turn, ranks_, c) + row / 64] |= bit;
        }
}

RankSet BlockSchedule::owners(std::uint16_t turn, std::uint8_t column, Row row) const {
  RankSet set;
  for (std::uint16_t r = 0; r < ranks_; ++r)
    if (owns(turn, Rank{r}, column, row)) set.insert(Rank{r});
  return set;
}

}  // namespace sluice::pktgen
