// One collective call on this rank: its tensors, which blocks are not zero, what it cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>
#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/wire.hpp"
#include "worker/nonzero_map.hpp"

namespace sluice::worker {

/// What the caller asks for. The memory stays the engine's until the op's Completion.
struct OpRequest {
  wire::Collective collective = wire::Collective::kAllReduce;
  ElementType type = ElementType::kFloat32;
  Reduction reduction = Reduction::kSum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  ///< == input: in place
  std::uint64_t element_count = 0;
  std::span<const std::uint64_t> nonzero_blocks = {};  ///< bit per block; empty: search
  std::uint64_t tag = 0;
};

/// An op's end. Its statistics hold also where it failed.
struct Completion {
  OpNumber op = 0;
  OpStatistics statistics;
  std::optional<Error> error;
};

class Operation {
 public:
  Operation(const OpRequest& request, const Geometry& geometry, const SearchLimits& search = {});

  const Geometry& geometry() const { return geometry_; }
  const wire::Descriptor& descriptor() const { return descriptor_; }

  const std::byte* block(BlockIndex b) const { return request_.input + geometry_.offset_of(b); }

  /// The first block >= from in the column of `from` that is not zero, or is not known to be zero
  /// yet; kNoBlock if there is none.
  BlockIndex next_nonzero(BlockIndex from);
  bool is_nonzero(BlockIndex b) { return nonzero_.contains(b.value); }
  BlockIndex following(BlockIndex b) const;  ///< the column's block after b, or kNoBlock

  /// The sum of block b: copies it to the output.
  void store(BlockIndex b, std::span<const std::byte> sum);

  /// Blocks begin, begin + stride, ... before `end` (kNoBlock: the tensor's end) are zero on every
  /// rank: makes them +0 in the output where they are not.
  void store_zeros(BlockIndex begin, BlockIndex end);

  OpStatistics statistics;
  std::uint16_t streams_left = 0;

 private:
  OpRequest request_;
  Geometry geometry_;
  wire::Descriptor descriptor_;
  NonZeroMap nonzero_;
};

}  // namespace sluice::worker
