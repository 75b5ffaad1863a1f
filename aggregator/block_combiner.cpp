#include "aggregator/block_combiner.hpp"

#include <algorithm>

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
      last_owner_(widest_columns(session)) {}

bool BlockCombiner::begin(const Packet& packet, StreamId stream, const Session& session,
                          bool resumed) {
  const auto& shape = packet.shape();
  const auto geometry = Geometry::make(
      shape.element_count, static_cast<ElementType>(shape.wire_type), shape.block_elements,
      session.payload_bytes, session.streams, packet.as<wire::Data>().op);
  if (!wire::same(shape, wire::shape_of(geometry)) || !geometry.uses(stream)) return false;
  const std::uint32_t stride = geometry.stride();
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const std::uint32_t first = geometry.first_index(stream, c++).value;
    const bool on_column = column.index == kNoBlock.value || (column.index - first) % stride == 0;
    if (resumed ? !on_column : column.index != first) return false;
  }
  shape_ = shape;
  geometry_ = geometry;
  reduction_ = &numeric::block_reduction(geometry.type,
                                         static_cast<Reduction>(packet.descriptor()->reduction));
  accumulator_stride_ =
      aligned(geometry.block_elements * element_bytes(numeric::accumulator_type(geometry.type)));
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns())
    current_[c++] = BlockIndex{column.index};
  return true;
}

bool BlockCombiner::fits(const Packet& packet, std::span<const BlockIndex> next) const {
  if (!wire::same(packet.shape(), shape_)) return false;
  const std::uint32_t stride = geometry_.stride();
  for (std::uint8_t c = 0; const wire::Column& column : packet.columns()) {
    const BlockIndex index{column.index};
    const bool present = (column.flags & wire::kColumnPresent) != 0;
    if (index != current_[c]) return false;
    if (!next.empty() && present && next[c] != index) return false;  // an owner's may prove zero
    if (column.next != kNoBlock.value && (column.next - index.value) % stride != 0) return false;
    ++c;
  }
  return true;
}

bool BlockCombiner::contradicts(const Packet& packet) const {
  return wire::same(packet.shape(), shape_) &&
         !std::equal(packet.columns().begin(), packet.columns().end(), current_.begin(),
                     [](const wire::Column& column, BlockIndex current) {
                       return BlockIndex{column.index} == current;
                     });
}

void BlockCombiner::add(Rank w, const Packet& packet) {
  packet.for_each_block([&](std::uint8_t c, std::span<const std::byte> block) {
    last_owner_[c] = w;
    const std::size_t elements = block.size() / element_bytes(geometry_.type);
    const auto accumulate = owners_[c]++ == 0 ? reduction_->load : reduction_->combine;
    accumulate(accumulator(c), block.data(), elements);
  });
}

bool BlockCombiner::is_empty() const {
  return std::all_of(owners_.begin(), owners_.end(), [](auto n) { return n == 0; });
}

std::size_t BlockCombiner::sums_bytes() const {
  std::size_t bytes = 0;
  for (std::uint8_t c = 0; c < geometry_.columns; ++c)
    if (owners_[c] != 0) bytes += geometry_.bytes_of(current_[c]);
  return bytes;
}

void BlockCombiner::write(std::span<wire::Column> columns, std::byte* sums, std::uint16_t ranks) {
  for (std::uint8_t c = 0; c < geometry_.columns; ++c) {
    columns[c].index = current_[c].value;
    if (owners_[c] == 0) continue;
    columns[c].flags = wire::kColumnPresent;
    const std::uint32_t elements = geometry_.elements_of(current_[c]);
    if (owners_[c] < ranks && reduction_->combine_zero != nullptr)
      reduction_->combine_zero(accumulator(c), elements);
    reduction_->store(sums, accumulator(c), elements, ranks);
    sums += geometry_.bytes_of(current_[c]);
  }
}

void BlockCombiner::start_round(std::span<const BlockIndex> current) {
  std::fill(owners_.begin(), owners_.end(), std::uint16_t{0});
  std::copy(current.begin(), current.end(), current_.begin());
}

}  // namespace sluice::aggregator
