// The sums of dense blocks, one per column: what the running round of a stream sums, and how. Who
// contributes, and when the round ends, it does not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "aggregator/stream_memory.hpp"
#include "common/base/ids.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

class BlockCombiner {
 public:
  /// Takes all the memory that it will need.
  explicit BlockCombiner(const Session& session);

  /// Runs the op that a packet with a descriptor tells of, beginning with the packet's blocks: an
  /// op's first ones, unless a stream is `resumed` amidst it. False, and nothing changes, if this
  /// session cannot have such an op, or such blocks, on this stream.
  bool begin(const Packet& packet, StreamId stream, const Session& session, bool resumed);

  const wire::Shape& shape() const { return shape_; }
  const Geometry& geometry() const { return geometry_; }
  /// The blocks that the round sums, by column.
  std::span<const BlockIndex> current() const { return {current_.data(), geometry_.columns}; }

  /// Whether a contribution is about the round's blocks. `next`: what its rank told last; empty
  /// where any block may be present.
  bool fits(const Packet& packet, std::span<const BlockIndex> next) const;
  /// Whether a packet of the same shape is about other blocks.
  bool contradicts(const Packet& packet) const;

  void add(Rank w, const Packet& packet);

  bool is_empty(std::uint8_t column) const { return owners_[column] == 0; }
  bool is_empty() const;
  bool is_of_one(std::uint8_t column, Rank w) const {
    return owners_[column] == 1 && last_owner_[column] == w;
  }

  /// Bytes of the sums as they travel.
  std::size_t sums_bytes() const;
  /// Writes the columns, but for what is wanted next, and the sums. Once a round.
  void write(std::span<wire::Column> columns, std::byte* sums, std::uint16_t ranks);

  /// The next round sums these blocks.
  void start_round(std::span<const BlockIndex> current);

 private:
  struct FreeAligned {
    void operator()(std::byte* p) const {
      ::operator delete (p, std::align_val_t{numeric::kAccumulatorAlignment});
    }
  };

  std::byte* accumulator(std::uint8_t column) {
    return accumulators_.get() + column * accumulator_stride_;
  }

  wire::Shape shape_{};
  Geometry geometry_{};
  const numeric::BlockReduction* reduction_ = nullptr;
  std::size_t accumulator_stride_ = 0;
  std::unique_ptr<std::byte, FreeAligned> accumulators_;
  std::vector<BlockIndex> current_;    // by column
  std::vector<std::uint16_t> owners_;  // by column: contributions added so far
  std::vector<Rank> last_owner_;       // by column: whose was added last, if any was
};

}  // namespace sluice::aggregator
