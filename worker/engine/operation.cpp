#include "worker/engine/operation.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "common/numeric/encoding.hpp"
#include "common/numeric/kernels.hpp"

namespace sluice::worker {
namespace {

/// From this size on, little of a tensor is left in the caches when the op ends. For a smaller one
/// the effort is not worth it.
constexpr std::size_t kLargeTensorBytes = std::size_t{16} << 20;
constexpr std::size_t kStreamedBytes = 1024;

/// Tells the aggregator what is wanted, or a little more: the ranges, if they are of one length and
/// equally far apart, else all from the first one's begin to the last one's end.
void want(wire::Descriptor& descriptor, std::span<const ElementRange> ranges) {
  descriptor.flags = wire::kWantsPart;
  if (ranges.empty()) return;
  const auto length = [](const ElementRange& range) { return range.end - range.begin; };
  const std::uint64_t begin = ranges[0].begin;
  const std::uint64_t stride = ranges.size() == 1 ? 0 : ranges[1].begin - begin;
  bool even = true;
  for (std::size_t i = 0; i < ranges.size(); ++i)
    even &= ranges[i].begin == begin + i * stride && length(ranges[i]) == length(ranges[0]);
  descriptor.begin = begin;
  descriptor.count = even ? length(ranges[0]) : ranges.back().end - begin;
  descriptor.stride = even ? stride : 0;
}

}  // namespace

Operation::Operation(const OpRequest& request, const Geometry& geometry, const SearchLimits& search)
    : streams_left(geometry.used_streams()),
      request_(request),
      geometry_(geometry),
      is_large_(geometry.element_count * element_bytes(request.type) >= kLargeTensorBytes),
      held_(request.held.value_or(ElementRange{0, geometry.element_count})),
      nonzero_(
          {request.input, geometry.element_count, geometry.block_elements, request.tensor_type()},
          request.device ? request.device->words.nonzero_blocks : request.nonzero_blocks, search,
          held_, request.searched_blocks),
      device_(request.device ? std::make_unique<DeviceSide>(*request.device) : nullptr) {
  assert(geometry.element_count <= max_element_count(geometry.block_elements));
  assert(held_.begin <= held_.end && held_.end <= geometry.element_count);
  descriptor_.collective = static_cast<std::uint8_t>(request.collective);
  descriptor_.op_type = static_cast<std::uint8_t>(request.type);
  descriptor_.reduction = static_cast<std::uint8_t>(request.reduction);
  descriptor_.root = request.root;
  descriptor_.layout = request.layout;
  descriptor_.tag = request.tag;
  descriptor_.rounding_seed = request.rounding_seed;
  statistics.blocks = geometry.blocks;
  if (!request.wanted) return;
  want(descriptor_, *request.wanted);
  std::uint64_t offset = 0;
  std::uint64_t end = 0;
  for (const ElementRange& range : *request.wanted) {
    assert(end <= range.begin && range.begin <= range.end && range.end <= geometry.element_count);
    end = range.end;
    output_offsets_.push_back(offset);
    offset += range.end - range.begin;
  }
}

Operation::Operation(const OpRequest& request, const KeyedGeometry& geometry,
                     std::shared_ptr<ResultMemory> memory)
    : Operation(request, Geometry{}) {
  keyed_ =
      std::make_unique<KeyedOperation>(*request.keyed, request.type, geometry, std::move(memory));
  streams_left = geometry.used_streams();
  descriptor_.begin = std::bit_cast<std::uint64_t>(request.keyed->threshold);
}

std::int16_t Operation::load(BlockIndex b, std::byte* out) const {
  assert(b.value < geometry_.blocks);
  const std::size_t size = element_size();
  const std::uint64_t begin = first_element(b);
  const std::uint64_t end = begin + geometry_.elements_of(b);
  if (request_.is_encoded()) {  // of a reduction, all of the block is held
    assert(held_.begin <= begin && end <= held_.end);
    return numeric::encode(geometry_.type, out, request_.input + (begin - held_.begin) * size,
                           end - begin, rounder().of(b.value));
  }
  const std::uint64_t from = std::clamp(held_.begin, begin, end);
  const std::uint64_t to = std::clamp(held_.end, from, end);
  if (from != begin) std::memset(out, 0, (from - begin) * size);
  if (from != to)
    std::memcpy(out + (from - begin) * size, request_.input + (from - held_.begin) * size,
                (to - from) * size);
  if (to != end) std::memset(out + (to - begin) * size, 0, (end - to) * size);
  return 0;
}

template <class F>
void Operation::for_each_wanted(BlockIndex b, F&& f) const {
  const std::size_t size = element_size();
  const std::uint64_t begin = first_element(b);
  const std::uint64_t elements = geometry_.elements_of(b);
  if (!request_.wanted) return f(request_.output + begin * size, 0, elements);
  const std::uint64_t end = begin + elements;
  const std::vector<ElementRange>& ranges = *request_.wanted;
  const auto ends_before = [&](const ElementRange& range) { return range.end <= begin; };
  auto range = std::partition_point(ranges.begin(), ranges.end(), ends_before);
  for (; range != ranges.end() && range->begin < end; ++range) {
    const std::uint64_t from = std::max(begin, range->begin);
    const std::uint64_t to = std::min(end, range->end);
    const std::uint64_t offset =
        output_offsets_[static_cast<std::size_t>(range - ranges.begin())] + (from - range->begin);
    if (from < to) f(request_.output + offset * size, from - begin, to - from);
  }
}

void Operation::copy(std::byte* out, const std::byte* in, std::size_t size) const {
  if (out == in) return;
  if (is_large_ && size >= kStreamedBytes)
    numeric::copy_past_caches(out, in, size);
  else
    std::memcpy(out, in, size);
}

void Operation::store(BlockIndex b, std::span<const std::byte> sum, std::int16_t scale) {
  const WireType type = geometry_.type;
  assert(b.value < geometry_.blocks && sum.size() == geometry_.bytes_of(b));
  for_each_wanted(b, [&](std::byte* out, std::uint64_t first, std::uint64_t count) {
    if (request_.is_encoded())
      numeric::decode(type, out, sum.data(), {geometry_.elements_of(b), first, count}, scale);
    else
      copy(out, sum.data() + type.bytes(first), type.bytes(count));
  });
  if (device_) device_->has_result(b, 1);
  if (request_.found_blocks)
    request_.found_blocks->nonzero[b.value / 64] |= std::uint64_t{1} << (b.value % 64);
}

void Operation::finish_stores() const {
  if (is_large_) numeric::finish_copies_past_caches();
}

void Operation::write_zeros(BlockIndex begin, BlockIndex end) {
  if (request_.wanted && request_.wanted->empty()) return;
  for_each_in_column(geometry_, begin, end, [&](BlockIndex b) {
    for_each_wanted(b, [&](std::byte* out, std::uint64_t, std::uint64_t count) {
      std::memset(out, 0, count * element_size());
    });
  });
}

void Operation::end_on_device(BlockIndex begin, BlockIndex end) {
  for_each_in_column(geometry_, begin, end, [&](BlockIndex b) { device_->has_ended(b); });
  device_->publish_final();
}

}  // namespace sluice::worker
