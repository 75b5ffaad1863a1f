#include "worker/operation.hpp"

#include <cstring>

namespace sluice::worker {

Operation::Operation(const OpRequest& request, const Geometry& geometry, const SearchLimits& search)
    : streams_left(geometry.used_streams()),
      request_(request),
      geometry_(geometry),
      nonzero_({request.input, geometry.element_count, geometry.block_elements, geometry.type},
               request.nonzero_blocks, search) {
  descriptor_.collective = static_cast<std::uint8_t>(request.collective);
  descriptor_.op_type = static_cast<std::uint8_t>(request.type);
  descriptor_.reduction = static_cast<std::uint8_t>(request.reduction);
  descriptor_.tag = request.tag;
  statistics.blocks = geometry.blocks;
}

BlockIndex Operation::following(BlockIndex b) const {
  const std::uint64_t next = std::uint64_t{b.value} + geometry_.stride();
  return next < geometry_.blocks ? BlockIndex{static_cast<std::uint32_t>(next)} : kNoBlock;
}

BlockIndex Operation::next_nonzero(BlockIndex from) {
  if (from == kNoBlock) return kNoBlock;
  const std::uint32_t found = nonzero_.next(from.value, geometry_.stride());
  return found < geometry_.blocks ? BlockIndex{found} : kNoBlock;
}

void Operation::store(BlockIndex b, std::span<const std::byte> sum) {
  std::memcpy(request_.output + geometry_.offset_of(b), sum.data(), sum.size());
}

void Operation::store_zeros(BlockIndex begin, BlockIndex end) {
  const bool in_place = request_.input == request_.output;
  if (in_place && !nonzero_.saw_negative_zero()) return;
  for (BlockIndex b = begin; b < end; b = following(b))
    std::memset(request_.output + geometry_.offset_of(b), 0, geometry_.bytes_of(b));
}

}  // namespace sluice::worker
