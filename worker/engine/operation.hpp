// One collective call on this rank: its tensors, which blocks are not zero, or its keyed pairs, and
// what it cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "common/numeric/encoding.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/wanted.hpp"
#include "common/protocol/wire.hpp"
#include "worker/engine/device_side.hpp"
#include "worker/engine/keyed_operation.hpp"
#include "worker/engine/nonzero_map.hpp"
#include "worker/engine/op_request.hpp"

namespace sluice::worker {

/// An op's end. Its statistics hold also where it failed.
struct Completion {
  OpNumber op = 0;
  OpStatistics statistics;
  std::optional<Error> error;
};

class Operation {
 public:
  Operation(const OpRequest& request, const Geometry& geometry, const SearchLimits& search = {});
  Operation(const OpRequest& request, const KeyedGeometry& geometry,
            std::shared_ptr<ResultMemory> memory);

  /// The pairs of a keyed op; all else here is for dense ops, except the descriptor and statistics.
  /// Null: the op is dense.
  KeyedOperation* keyed() { return keyed_.get(); }
  const KeyedOperation* keyed() const { return keyed_.get(); }

  bool is_on_device() const { return device_ != nullptr; }
  /// Whether it can begin: if the tensor is on a device, its bitmap must have arrived.
  bool is_ready() const { return !device_ || device_->has_bitmap(); }
  /// Whether a block that is not zero can be read.
  bool has_arrived(BlockIndex b) const { return !device_ || device_->has_arrived(b); }

  const OpRequest& request() const { return request_; }
  void set_timeout(const OpTimeout& timeout) { request_.timeout = timeout; }

  bool uses(StreamId s) const { return keyed_ ? keyed_->geometry().uses(s) : geometry_.uses(s); }

  std::uint16_t used_streams() const {
    return keyed_ ? keyed_->geometry().used_streams() : geometry_.used_streams();
  }

  /// The maximum bytes of one round on one stream.
  std::size_t round_bytes() const { return keyed_ ? limits::kMaxPayload : geometry_.round_bytes(); }

  const Geometry& geometry() const { return geometry_; }
  const wire::Descriptor& descriptor() const { return descriptor_; }

  /// The rank and the op's number decide how the op rounds.
  void rounds_as(Rank rank, OpNumber op) {
    rank_ = rank;
    op_ = op;
  }

  numeric::Rounder rounder() const {
    return {.seed = request_.rounding_seed, .op = op_, .by = rank_.value};
  }

  /// Writes the contribution to block b as it travels. Returns its scale: 0 if it has none.
  std::int16_t load(BlockIndex b, std::byte* out) const;

  /// The first block >= from in the column, which has `from`, that is not zero, or is not known to
  /// be zero yet; kNoBlock if there is none.
  BlockIndex next_nonzero(std::uint32_t column, BlockIndex from) {
    return from == kNoBlock ? kNoBlock : nonzero_.next(geometry_, column, from);
  }
  bool is_nonzero(BlockIndex b) { return nonzero_.contains(b.value); }
  bool wants(BlockIndex b) const { return sluice::wants(descriptor_, geometry_, b); }
  bool moves() const { return wire::moves(request_.collective); }

  /// The sum of block b as it travels: writes what is wanted to the output.
  void store(BlockIndex b, std::span<const std::byte> sum, std::int16_t scale = 0);
  /// To be called after the last store of a round, before the round's end is published.
  void finish_stores() const;

  /// A column's round has ended, and its sum, if there is one, is stored. Blocks behind it, before
  /// `next` (kNoBlock: the tensor's end), are zero on every rank, and so is its own block if there
  /// is no sum. Makes them +0 in the output if they are not.
  void end_round(BlockIndex current, BlockIndex next, bool has_sum) {
    const BlockIndex zeros = has_sum ? geometry_.following(current) : current;
    const bool is_zero_there =
        device_ ? !device_->wants_zeros() : is_in_place() && !nonzero_.saw_negative_zero();
    if (zeros < next && !is_zero_there) write_zeros(zeros, next);
    if (device_ && !device_->wants_zeros()) end_on_device(current, next);
  }
  /// All rounds of all columns have ended.
  void finish() {
    if (device_) device_->finish();
  }

  OpStatistics statistics;
  std::uint16_t streams_left = 0;
  bool begun = false;  ///< on some stream; kept while begun ops are reported

 private:
  void write_zeros(BlockIndex begin, BlockIndex end);
  void end_on_device(BlockIndex begin, BlockIndex end);
  /// The bytes of an element in the tensor.
  std::size_t element_size() const { return element_bytes(request_.type); }
  std::uint64_t first_element(BlockIndex b) const {
    return std::uint64_t{b.value} * geometry_.block_elements;
  }
  void copy(std::byte* out, const std::byte* in, std::size_t size) const;
  /// Calls f(address in the output, first, count) for the elements of block b that are wanted;
  /// `first` is the number of the first one.
  template <class F>
  void for_each_wanted(BlockIndex b, F&& f) const;

  /// Whether the output of blocks that are zero everywhere holds zeros already.
  bool is_in_place() const {
    if (request_.input != request_.output) return false;
    if (request_.wanted) return request_.wanted->size() == 1 && request_.wanted->front() == held_;
    return held_ == ElementRange{0, geometry_.element_count};
  }

  OpRequest request_;
  Geometry geometry_;
  bool is_large_;
  ElementRange held_;
  std::vector<std::uint64_t>
      output_offsets_;  ///< of each range wanted: its first element's in the output
  wire::Descriptor descriptor_;
  Rank rank_{};
  OpNumber op_ = 0;
  NonZeroMap nonzero_;
  std::unique_ptr<KeyedOperation> keyed_;
  std::unique_ptr<DeviceSide> device_;  // null: the tensors lie in host memory
};

}  // namespace sluice::worker
