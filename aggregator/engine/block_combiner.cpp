#include "aggregator/engine/block_combiner.hpp"

#include <algorithm>
#include <array>
#include <cassert>

#include "common/protocol/build.hpp"

namespace sluice::aggregator {
namespace {

std::size_t aligned(std::size_t bytes) {
  return (bytes + numeric::kAccumulatorAlignment - 1) / numeric::kAccumulatorAlignment *
         numeric::kAccumulatorAlignment;
}

}  // namespace

BlockCombiner::BlockCombiner(const Session& session)
    : accumulators_(static_cast<std::byte*>(::operator new (
          accumulator_bytes(session), std::align_val_t{numeric::kAccumulatorAlignment}))),
      current_(widest_columns(session), kNoBlock),
      owners_(widest_columns(session)),
      last_owner_(widest_columns(session)),
      ranks_(session.ranks) {}

bool BlockCombiner::begin(const Packet& packet, StreamId stream, const Session& session,
                          bool resumed) {
  const auto& shape = packet.shape();
  const auto geometry =
      Geometry::make(shape.element_count, WireType(shape.wire_type), shape.block_elements,
                     session.payload_bytes, session.streams, packet.as<wire::Data>().op);
  if (!wire::same(shape, wire::shape_of(geometry)) || !geometry.uses(stream)) return false;
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const BlockIndex index{column.index};
    const bool on_column =
        index == kNoBlock || geometry.column_of(index) == geometry.first_column(stream) + c;
    if (resumed ? !on_column : index != geometry.first_index(stream, c)) return false;
    ++c;
  }
  shape_ = shape;
  geometry_ = geometry;
  first_column_ = geometry.first_column(stream);
  rounder_ = {.seed = packet.descriptor()->rounding_seed, .op = packet.as<wire::Data>().op};
  const ElementType element = geometry.type.element();
  const auto reduction = static_cast<Reduction>(packet.descriptor()->reduction);
  reduction_ = &numeric::block_reduction(element, reduction);
  accumulator_bytes_ = numeric::accumulator_bytes(element, reduction);
  accumulator_stride_ =
      aligned(geometry.block_elements * element_bytes(numeric::accumulator_type(element)));
  assert(geometry.columns <= current_.size() &&
         geometry.columns * accumulator_stride_ <= accumulator_bytes(session));
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns())
    current_[c++] = BlockIndex{column.index};
  return true;
}

bool BlockCombiner::contradicts(const Packet& packet) const {
  return wire::same(packet.shape(), shape_) &&
         !std::equal(packet.columns().begin(), packet.columns().end(), current_.begin(),
                     [](const wire::Column& column, BlockIndex current) {
                       return BlockIndex{column.index} == current;
                     });
}

BlockCombiner::PartialSum BlockCombiner::partial_sum(std::uint8_t column) const {
  if (owners_[column] == 0) return {};
  const std::size_t elements = geometry_.elements_of(current_[column]);
  return {{accumulator(column), elements * accumulator_bytes_}, owners_[column]};
}

/// Decodes one piece at a time, which is small enough for the L1 cache.
void BlockCombiner::accumulate_scaled(std::byte* sum, const std::byte* block, std::int16_t scale,
                                      std::uint32_t elements, bool is_first) const {
  if (is_first) return numeric::decode(geometry_.type, sum, block, {elements, 0, elements}, scale);
  constexpr std::size_t kPiece = 1024;
  std::array<float, kPiece> piece;
  const auto decoded = std::as_writable_bytes(std::span(piece)).data();
  for (std::size_t at = 0; at < elements; at += kPiece) {
    const std::size_t count = std::min(kPiece, elements - at);
    numeric::decode(geometry_.type, decoded, block, {elements, at, count}, scale);
    reduction_->combine(sum + at * sizeof(float), decoded, count);
  }
}

}  // namespace sluice::aggregator
