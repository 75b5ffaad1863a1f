#include "worker/engine/dense_rounds.hpp"

#include <algorithm>
#include <cassert>

#include "common/protocol/build.hpp"

namespace sluice::worker {

void DenseRounds::begin(Operation& op, StreamId stream, const Session&) {
  const Geometry& geometry = op.geometry();
  assert(geometry.columns <= columns_.size());
  first_column_ = geometry.first_column(stream);
  owns_ = false;
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    Column& column = columns_[c];
    column.current = geometry.first_index(stream, c);
    column.at = op.next_nonzero(first_column_ + c, column.current);
    column.after = column.owned() ? next_behind(op, c, column.current) : column.at;
    owns_ |= column.owned();
  }
}

/// The rank's first block of the column behind this one.
BlockIndex DenseRounds::next_behind(Operation& op, std::uint8_t c, BlockIndex b) const {
  const std::uint32_t column = first_column_ + c;
  return op.next_nonzero(column, op.geometry().following(column, b));
}

/// Whether this rank has a block for the round. An owner may find that it has none: its block lay
/// beyond the search's lookahead when it was announced.
bool DenseRounds::travels(Operation& op, const Column& column) {
  return column.owned() && op.is_nonzero(column.current);
}

bool DenseRounds::has_arrived(Operation& op) const {
  if (!op.is_on_device()) return true;
  return std::all_of(
      columns_.begin(), columns_.begin() + op.geometry().columns,
      [&](const Column& column) { return !travels(op, column) || op.has_arrived(column.current); });
}

void DenseRounds::describe(Operation& op, Contribution& mine) const {
  const Geometry& geometry = op.geometry();
  mine.is_keyed = false;
  mine.shape = wire::shape_of(geometry);
  mine.blocks = {};
  mine.packet = {};
  mine.bytes = 0;
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    const Column& state = columns_[c];
    wire::Column& column = mine.columns[c] = {};
    column.index = state.current.value;
    column.next = state.after.value;
    if (!travels(op, state)) continue;
    column.flags = wire::kColumnPresent;
    mine.bytes += geometry.bytes_of(state.current);
  }
}

/// Loads the blocks one after the other, and their scales.
void DenseRounds::load(Operation& op, Contribution& mine, std::byte* out) {
  for (std::size_t c = 0; c < mine.shape.columns; ++c) {
    wire::Column& column = mine.columns[c];
    if (column.flags != wire::kColumnPresent) continue;
    const BlockIndex b{column.index};
    column.scale = op.load(b, out);
    out += op.geometry().bytes_of(b);
  }
}

bool DenseRounds::fits(Operation& op, const Packet& packet, const Contribution& mine) const {
  const Geometry& geometry = op.geometry();
  if (!wire::same(packet.shape(), wire::shape_of(geometry))) return false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const std::uint32_t number = first_column_ + c;
    const Column& state = columns_[c++];
    if (BlockIndex{column.index} != state.current) return false;
    if (column.flags == 0 && travels(op, state)) return false;  // our block would be lost
    if (column.flags == wire::kColumnWithheld && !may_be_withheld(op, state, mine)) return false;
    if (BlockIndex{column.next} > state.after) return false;  // and here the next one
    const BlockIndex next{column.next};
    if (next != kNoBlock && geometry.column_of(next) != number) return false;
  }
  return true;
}

/// Whether this rank does not need the sum of a column: it does not want it, or its own block may
/// be the whole sum.
bool DenseRounds::may_be_withheld(Operation& op, const Column& column, const Contribution& mine) {
  if (!op.wants(column.current)) return true;
  return op.moves() && travels(op, column) && !mine.blocks.empty();
}

/// Stores the sums that a result lacks because this rank alone has the blocks.
void DenseRounds::store_own(Operation& op, const Packet& result, const Contribution& mine) {
  std::span<const std::byte> blocks = mine.blocks;
  if (blocks.empty()) return;
  for (std::size_t c = 0; const wire::Column& column : result.columns()) {
    const wire::Column& own = mine.columns[c++];
    if (own.flags == 0) continue;
    const BlockIndex b{own.index};
    const std::size_t size = op.geometry().bytes_of(b);
    if (column.flags == wire::kColumnWithheld && op.wants(b)) {
      op.store(b, blocks.first(size));
      ++op.statistics.blocks_received;
    }
    blocks = blocks.subspan(size);
  }
}

RoundSource::Applied DenseRounds::apply(Operation& op, const Packet& packet, Contribution& mine) {
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> sum) {
    op.store(columns_[c].current, sum, packet.columns()[c].scale);
    ++op.statistics.blocks_received;
  });
  if (op.moves()) store_own(op, packet, mine);
  op.finish_stores();
  bool done = true;
  owns_ = false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    Column& state = columns_[c];
    const BlockIndex want{column.next};
    const bool has_sum = column.flags != 0;
    if (travels(op, state)) ++op.statistics.blocks_sent;  // here: a round may be begun twice
    if (state.current != kNoBlock) op.end_round(state.current, want, has_sum);
    state.current = want;
    state.at = state.after;  // the first own block after the finished one
    assert(want <= state.at);
    if (state.owned()) state.after = next_behind(op, c, want);
    owns_ |= state.owned();
    done &= want == kNoBlock;
    ++c;
  }
  return done ? Applied::kDone : Applied::kGoesOn;
}

double DenseRounds::progress(const Operation& op, StreamId stream) const {
  const Geometry& geometry = op.geometry();
  const auto blocks_from = [&](BlockIndex b) {
    return b == kNoBlock ? 0 : geometry.blocks_between(b, kNoBlock);
  };
  std::uint64_t all = 0, left = 0;
  for (std::uint8_t c = 0; c < geometry.columns; ++c) {
    all += blocks_from(geometry.first_index(stream, c));
    left += blocks_from(columns_[c].current);
  }
  return all == 0 ? 0 : static_cast<double>(all - left) / static_cast<double>(all);
}

}  // namespace sluice::worker
