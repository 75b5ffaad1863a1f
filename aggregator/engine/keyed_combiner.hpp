// The sums of keyed pairs: what the running round of a stream merges, and how. This class does not
// know which ranks contribute, nor when the round ends.
//
// It holds one run of each rank, which may last several rounds. A round sums the chunks below the
// lowest chunk that some rank still has to send, as many as fit in a RESULT, lowest rank first.
// Rejected sums take no room in a RESULT, so the number of chunks has a limit, too. The sums, and
// the place where the next round begins, depend only on the runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/numeric/encoding.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// What is left of a rank's run.
struct KeyedCursor {
  PackedChunk chunk;  ///< the next chunk; its number is kNoChunk if none is left
  ChunkReader rest;   ///< the chunks behind it

  /// Moves to the next chunk at or above `lowest`. Returns false if the run is malformed.
  bool seek(std::uint64_t lowest);
};

/// Memory that a merge needs while it runs. All streams of an engine share one.
class KeyedScratch {
 public:
  KeyedScratch();

  /// Memory for the run of sums that a round puts into a packet.
  std::span<std::byte> run() { return {run_.get(), limits::kMaxPayload}; }

 private:
  friend class KeyedCombiner;
  static constexpr std::size_t kRowsBytes =
      limits::kMaxPayload > limits::kChunkBytes ? limits::kMaxPayload : limits::kChunkBytes;

  struct FreeAligned {
    void operator()(std::byte* p) const {
      ::operator delete (p, std::align_val_t{numeric::kAccumulatorAlignment});
    }
  };
  std::unique_ptr<std::byte, FreeAligned> sums_;  // by offset in the chunk; zero between chunks
  // Sums in the form in which they travel or will be scaled. Some of them are then rejected.
  std::unique_ptr<std::byte[]> rows_;
  std::unique_ptr<std::byte[]> widened_;  // rows of 16-bit floats, or scaled rows, as fp32
  std::unique_ptr<std::byte[]> run_;
  std::array<KeyedCursor, limits::kMaxRanks> cursors_;  // by rank: behind the merged chunks
};

class KeyedCombiner {
 public:
  explicit KeyedCombiner(const Session& session) : runs_(session.ranks) {}

  /// Begins the op that the packet's descriptor names. Returns false and changes nothing if this
  /// session cannot have such an op on this stream.
  bool begin(const Packet& packet, StreamId stream, const Session& session, bool resumed);

  const wire::Shape& shape() const { return shape_; }
  std::uint64_t horizon() const { return horizon_; }

  /// Whether a contribution is about the running round and has only chunks of this stream.
  bool fits(const Packet& packet) const;
  /// Whether a packet of the same shape has another horizon.
  bool contradicts(const Packet& packet) const;

  /// Takes a rank's run, and holds the packet.
  void take(Rank w, const Packet& packet, Buffer buffer);

  /// The result of a round.
  struct Merged {
    std::span<const std::byte> run = {};
    std::uint64_t next = kNoChunk;  ///< where the next round begins
    std::array<std::uint32_t, wire::kRejectedClasses> rejected = {};
  };
  /// Writes as many sums of the running round as fit in `out`. It may be called again: nothing
  /// changes until the next round starts.
  Merged merge(std::span<std::byte> out, KeyedScratch& scratch) const;

  /// The next round begins where the merge ended. Returns the ranks whose runs are used up.
  RankSet start_round(const Merged& merged, const KeyedScratch& scratch);

 private:
  struct Run {
    Buffer buffer;
    KeyedCursor left;
    std::uint64_t following = kNoChunk;
  };

  bool is_of_stream(std::uint64_t chunk) const { return geometry_.stream_of(chunk) == stream_; }
  struct Summed;
  void sum_chunk(std::uint64_t number, KeyedScratch& scratch, Summed& chunk) const;
  void add(const KeyedChunk& chunk, const ChunkKeys& has, std::byte* sums) const;
  void store(std::byte* rows, std::byte* sums, std::span<const std::uint8_t> offsets) const;
  void clear(std::byte* sums) const { std::memset(sums, 0, sum_bytes_ << geometry_.chunk_bits); }
  bool write(const Summed& sum, ChunkWriter& writer, KeyedScratch& scratch, Merged& merged) const;
  std::size_t drop_rejected(std::span<std::uint8_t> offsets, KeyedScratch& scratch,
                            Merged& merged) const;

  wire::Shape shape_{};
  KeyedGeometry geometry_;
  ChunkFormat format_;
  StreamId stream_{};
  numeric::Rounder rounder_;
  const numeric::BlockReduction* reduction_ = nullptr;
  bool begins_with_zero_ = false;  // sums do: a key's first row is added to zero
  std::size_t sum_bytes_ = 0;      // of a row
  double threshold_ = 0;
  std::uint64_t horizon_ = 0;
  std::vector<Run> runs_;  // by rank

 public:
  static constexpr std::size_t kBytesOfRank = sizeof(Run);
};

}  // namespace sluice::aggregator
