// One collective call on this rank: its tensors, which blocks are not zero, what it cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>
#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/wanted.hpp"
#include "common/protocol/wire.hpp"
#include "worker/nonzero_map.hpp"

namespace sluice::worker {

/// What the caller asks for. The memory stays the engine's until the op's Completion.
///
/// Every collective is a sum of one tensor over the ranks: of a broadcast all ranks but the root
/// hold zeros, of an all_gather each holds zeros but for its part; of a reduce_scatter each wants
/// but a part. What a rank neither holds nor wants is not in its memory: `held` and `wanted` tell
/// what is. Where elements are moved, they travel as integers, so that every bit comes through.
struct OpRequest {
  wire::Collective collective = wire::Collective::kAllReduce;
  ElementType type = ElementType::kFloat32;  ///< of the caller's tensor
  Reduction reduction = Reduction::kSum;
  const std::byte* input = nullptr;       ///< the elements held
  std::byte* output = nullptr;            ///< those wanted, one range after the other
  std::uint64_t element_count = 0;        ///< of the whole tensor
  std::optional<ElementRange> held = {};  ///< none: the whole tensor
  std::optional<std::vector<ElementRange>> wanted = {};  ///< rising; none: the whole tensor
  std::uint16_t root = 0;
  std::uint16_t layout = 0;
  std::uint16_t block_elements = 0;                    ///< at most; 0: the session's
  std::span<const std::uint64_t> nonzero_blocks = {};  ///< bit per block; empty: search
  std::uint64_t tag = 0;

  /// Of the elements on the wire.
  ElementType wire_type() const {
    return wire::moves(collective) ? integer_of(element_bytes(type)) : type;
  }

 private:
  static constexpr ElementType integer_of(std::size_t bytes) {
    return bytes == 8   ? ElementType::kInt64
           : bytes == 4 ? ElementType::kInt32
           : bytes == 2 ? ElementType::kInt16
                        : ElementType::kInt8;
  }
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

  /// The contribution to block b.
  void load(BlockIndex b, std::byte* out) const;

  /// The first block >= from in the column of `from` that is not zero, or is not known to be zero
  /// yet; kNoBlock if there is none.
  BlockIndex next_nonzero(BlockIndex from);
  bool is_nonzero(BlockIndex b) { return nonzero_.contains(b.value); }
  BlockIndex following(BlockIndex b) const;  ///< the column's block after b, or kNoBlock
  bool wants(BlockIndex b) const { return sluice::wants(descriptor_, geometry_, b); }
  bool moves() const { return wire::moves(request_.collective); }

  /// The sum of block b: copies what is wanted of it to the output.
  void store(BlockIndex b, std::span<const std::byte> sum);

  /// Blocks begin, begin + stride, ... before `end` (kNoBlock: the tensor's end) are zero on every
  /// rank: makes them +0 in the output where they are not.
  void store_zeros(BlockIndex begin, BlockIndex end);

  OpStatistics statistics;
  std::uint16_t streams_left = 0;

 private:
  /// Calls f(place in the output, offset in the block, size) in bytes for what is wanted of b.
  template <class F>
  void for_each_wanted(BlockIndex b, F&& f) const;

  /// Whether the output of blocks that are zero everywhere holds zeros already.
  bool is_whole_in_place() const {
    return request_.input == request_.output && !request_.wanted && held_.begin == 0 &&
           held_.end == geometry_.element_count;
  }

  OpRequest request_;
  Geometry geometry_;
  ElementRange held_;
  std::vector<std::uint64_t> places_;  ///< of each range wanted: its first element's in the output
  wire::Descriptor descriptor_;
  NonZeroMap nonzero_;
};

}  // namespace sluice::worker
