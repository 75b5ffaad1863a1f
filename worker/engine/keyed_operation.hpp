// One keyed call on this rank: its pairs, cut into the runs that are sent, and the sums that come
// back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/types.hpp>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/numeric/encoding.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/wire.hpp"
#include "worker/engine/keyed_sums.hpp"

namespace sluice::worker {

/// What the caller asks for. The memory stays the engine's until the op's Completion.
struct KeyedRequest {
  std::span<const std::uint64_t> keys = {};  ///< rising strictly, less than key_bound
  const std::byte* rows = nullptr;           ///< row_elements elements per key
  std::uint64_t key_bound = 1;               ///< 1..2^64 - 2
  std::uint16_t row_elements = 1;            ///< 1 at least
  double threshold = 0;                      ///< 0: all sums; else those of at least this magnitude
  std::size_t result_bytes = 0;              ///< that keys and rows of `sums` may take
  KeyedSums* sums = nullptr;                 ///< where they go: all, when the op has ended well
};

/// The error of an op with more sums than `result_bytes` has room for.
Error too_many_sums(std::uint64_t keys, const KeyedRequest& request, std::size_t row_bytes);

class KeyedOperation {
 public:
  /// `type`: of the caller's rows.
  KeyedOperation(const KeyedRequest& request, ElementType type, const KeyedGeometry& geometry,
                 std::shared_ptr<ResultMemory> memory);

  const KeyedGeometry& geometry() const { return geometry_; }

  /// Some of this rank's chunks of one stream, in ascending order, as they fit one packet or slot.
  struct Run {
    std::size_t begin = 0;  ///< of the stream's chunks
    std::size_t end = 0;
    std::size_t bytes = 0;
    std::uint64_t following = kNoChunk;  ///< this rank's next chunk on the stream
  };
  Run run_from(StreamId s, std::size_t begin, std::size_t room) const;
  /// `out` has run.bytes bytes.
  void write(StreamId s, const Run& run, const numeric::Rounder& rounder,
             std::span<std::byte> out) const;

  /// Keeps a result's run: see KeyedSums::add().
  std::optional<std::size_t> store(StreamId s, std::span<const std::byte> run, std::uint64_t begin,
                                   std::uint64_t end);
  void add_rejected(std::span<const wire::U32, wire::kRejectedClasses> counts);
  /// All streams are done. Returns the op's error if there are too many sums.
  std::optional<Error> finish() const;

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
  std::span<const Chunk> chunks_of(StreamId s) const;
  std::uint64_t number_of(const Chunk& chunk) const {
    return geometry_.chunk_of(request_.keys[chunk.first()]);
  }

  KeyedRequest request_;
  KeyedGeometry geometry_;
  std::size_t row_bytes_;  // of the caller's
  bool is_encoded_;
  std::unique_ptr<Chunk[]> chunks_;        // stream by stream, each one's in ascending order
  std::vector<std::size_t> stream_begin_;  // of each stream's chunks, in the order of their places
  std::uint64_t keys_received_ = 0;
};

}  // namespace sluice::worker
