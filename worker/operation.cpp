#include "worker/operation.hpp"

#include <cstring>

#include "common/numeric/kernels.hpp"

namespace sluice::worker {

Operation::Operation(const OpRequest& request, const Geometry& geometry)
    : streams_left(geometry.used_streams()), request_(request), geometry_(geometry) {
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
  if (!request_.nonzero_blocks.empty()) {
    for (BlockIndex b = from; b != kNoBlock; b = following(b))
      if (((request_.nonzero_blocks[b.value / 64] >> (b.value % 64)) & 1) != 0) return b;
    return kNoBlock;
  }
  const numeric::BlockedTensor tensor{request_.input, geometry_.element_count,
                                      geometry_.block_elements, geometry_.type};
  const auto found = numeric::next_nonzero_block(tensor, from.value, geometry_.stride());
  passed_negative_zero_ |= found.passed_negative_zero;
  return found.block < geometry_.blocks ? BlockIndex{found.block} : kNoBlock;
}

void Operation::store(BlockIndex b, std::span<const std::byte> sum) {
  std::memcpy(request_.output + geometry_.offset_of(b), sum.data(), sum.size());
}

void Operation::store_zeros(BlockIndex begin, BlockIndex end) {
  const bool in_place = request_.input == request_.output;
  if (in_place && !passed_negative_zero_) return;
  for (BlockIndex b = begin; b < end; b = following(b))
    std::memset(request_.output + geometry_.offset_of(b), 0, geometry_.bytes_of(b));
}

}  // namespace sluice::worker
