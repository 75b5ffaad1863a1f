// One keyed call on this rank: its pairs, cut into the runs that are sent, and the sums that come
// back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::worker {

/// Leaves new elements as they are: all are written next, and to zero them costs time.
template <class T>
struct Uninitialized : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = Uninitialized<U>;
  };
  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
};

/// The sums of a keyed op.
struct KeyedSums {
  std::vector<std::uint64_t, Uninitialized<std::uint64_t>> keys;  ///< rising
  std::vector<std::byte, Uninitialized<std::byte>> rows;  ///< one per key, in the same order
  /// Sums that did not reach the threshold: at least a half, a quarter, an eighth of it, and less.
  std::array<std::uint64_t, wire::kRejectedClasses> rejected = {};
};

/// What the caller asks for. The memory stays the engine's until the op's Completion.
struct KeyedRequest {
  std::span<const std::uint64_t> keys = {};  ///< rising strictly, less than key_bound
  const std::byte* rows = nullptr;           ///< row_elements elements per key
  std::uint64_t key_bound = 1;               ///< 1..2^64 - 2
  std::uint16_t row_elements = 1;            ///< 1 at least
  double threshold = 0;                      ///< 0: all sums; else those of at least this magnitude
  std::size_t result_bytes = 0;              ///< that keys and rows of `sums` may take
  KeyedSums* sums = nullptr;                 ///< where they go when the op ends well
};

/// Memory for results that are received: it goes from op to op, as pages that are touched for the
/// first time cost more than what is copied to them.
class ResultMemory {
 public:
  using Block = std::unique_ptr<std::byte[]>;
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
  static_assert(kBlockBytes >= limits::kReferencedRoundBytes);

  Block take();
  void give_back(std::vector<Block> blocks);  ///< keeps limits::kSpareResultBlocks at most

 private:
  std::vector<Block> spare_;
};

class KeyedOperation {
 public:
  KeyedOperation(const KeyedRequest& request, const KeyedGeometry& geometry, ResultMemory& memory);

  const KeyedGeometry& geometry() const { return geometry_; }
  double threshold() const { return request_.threshold; }

  /// Some of this rank's chunks of one stream, in ascending order, as they fit one packet or slot.
  struct Run {
    std::size_t begin = 0;  ///< of the stream's chunks
    std::size_t end = 0;
    std::size_t bytes = 0;
    std::uint64_t following = kNoChunk;  ///< this rank's next chunk on the stream
  };
  Run run_from(StreamId s, std::size_t begin, std::size_t room) const;
  /// `out` has run.bytes bytes.
  void write(StreamId s, const Run& run, std::span<std::byte> out) const;

  /// Keeps a result's run, of chunks from `begin` to before `end`. How many keys it has; nothing,
  /// and nothing is kept, if it is not a run of such chunks of this stream.
  std::optional<std::size_t> store(StreamId s, std::span<const std::byte> run, std::uint64_t begin,
                                   std::uint64_t end);
  void add_rejected(std::span<const wire::U32, wire::kRejectedClasses> counts);
  /// All streams are done. The error that the op ends with, if so: the sums are too many, or have
  /// keys that cannot be.
  std::optional<Error> finish();

 private:
  /// Some keys of one chunk, by their place among the caller's.
  class Chunk {
   public:
    Chunk() = default;
    Chunk(std::uint64_t first, std::size_t count) : bits_((first << 8) | (count - 1)) {}
    std::uint64_t first() const { return bits_ >> 8; }
    std::size_t count() const { return (bits_ & 0xFF) + 1; }

   private:
    std::uint64_t bits_ = 0;
  };

  bool is_too_much() const;
  std::optional<Error> write_sums();
  std::span<const Chunk> chunks_of(StreamId s) const;
  std::uint64_t number_of(const Chunk& chunk) const {
    return geometry_.chunk_of(request_.keys[chunk.first()]);
  }
  std::size_t turn_of(StreamId s) const {
    return (std::size_t{s.value} + geometry_.streams - geometry_.first_stream) % geometry_.streams;
  }

  KeyedRequest request_;
  KeyedGeometry geometry_;
  ResultMemory& memory_;
  std::vector<Chunk> chunks_;              // stream by stream, each one's in ascending order
  std::vector<std::size_t> stream_begin_;  // of each stream's chunks, in the order of their turns
  std::vector<ResultMemory::Block> received_;   // runs of results, one behind the other, and
  std::size_t last_used_ = 0;                   // bytes of the last block
  std::vector<std::vector<PackedChunk>> sums_;  // their chunks, by turn: numbers rise
  std::array<std::uint64_t, wire::kRejectedClasses> rejected_{};
  std::uint64_t keys_received_ = 0;
};

}  // namespace sluice::worker
