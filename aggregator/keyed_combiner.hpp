// The sums of keyed pairs: what the running round of a stream merges, and how. Who contributes, and
// when the round ends, it does not know.
//
// Of each rank it holds one run, which may last several rounds. A round sums the chunks below the
// least chunk that some rank has yet to send, as many as a RESULT has room for, lowest rank first;
// and no more than a bound, as nothing takes room whose sums are rejected. So the sums, and where
// the next round begins, depend on the runs alone.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// A rank's run: what is left of it.
struct KeyedCursor {
  ChunkReader rest;
  std::uint64_t number = kNoChunk;  ///< of the next chunk; kNoChunk: none is left
};

/// Some keys of one chunk.
class KeyedSet {
 public:
  void insert(std::uint8_t offset) { words_[offset / 64] |= std::uint64_t{1} << offset % 64; }
  bool contains(std::uint8_t offset) const { return (words_[offset / 64] >> offset % 64 & 1) != 0; }
  /// Rising. Returns how many there are.
  std::size_t write(std::span<std::uint8_t> offsets) const {
    std::size_t count = 0;
    for (std::size_t word = 0; word < words_.size(); ++word)
      for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1)
        offsets[count++] =
            static_cast<std::uint8_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
    return count;
  }

 private:
  std::array<std::uint64_t, 4> words_{};
};

/// What a merge needs for its own length: one for all streams of an engine.
class KeyedScratch {
 public:
  KeyedScratch();

  /// For the sums of a round that go in a packet.
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
  std::unique_ptr<std::byte, FreeAligned> sums_;    // by offset in the chunk; else zero
  std::unique_ptr<std::byte, FreeAligned> packed_;  // one behind the other
  std::unique_ptr<std::byte[]> rows_;               // as they travel
  std::unique_ptr<std::byte[]> run_;
  std::array<KeyedCursor, limits::kMaxRanks> cursors_;  // by rank: after what was merged so far
  std::array<KeyedCursor, limits::kMaxRanks> behind_;   // and after the chunk that is merged
};

class KeyedCombiner {
 public:
  explicit KeyedCombiner(const Session& session) : runs_(session.ranks) {}

  /// Runs the op that a packet with a descriptor tells of. False, and nothing changes, if this
  /// session cannot have such an op on this stream.
  bool begin(const Packet& packet, StreamId stream, const Session& session, bool resumed);

  const wire::Shape& shape() const { return shape_; }
  std::uint64_t horizon() const { return horizon_; }

  /// Whether a contribution is about the running round, and of this stream's chunks.
  bool fits(const Packet& packet) const;
  /// Whether a packet of the same shape is about a round that begins elsewhere.
  bool contradicts(const Packet& packet) const;

  /// Takes a rank's run: in the packet, which is held, or in its slot.
  void take(Rank w, const Packet& packet, Buffer buffer);
  void refer(Rank w, const Packet& packet, std::span<const std::byte> slot);

  /// What a round comes to.
  struct Merged {
    std::span<const std::byte> run = {};
    std::uint64_t next = kNoChunk;  ///< where the next round begins
    std::array<std::uint32_t, wire::kRejectedClasses> rejected = {};
    std::optional<Rank> malformed = {};  ///< whose run in shared memory cannot be read
  };
  /// Writes the sums of the running round, as many as `out` has room for. May be called again:
  /// nothing changes until the next round starts.
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
  void hold(Rank w, const Packet& packet, std::span<const std::byte> run);
  std::size_t sum_chunk(std::uint64_t number, KeyedScratch& scratch,
                        std::span<std::uint8_t> offsets, std::optional<Rank>& malformed) const;
  void clear(std::byte* sums, std::span<const std::uint8_t> offsets) const;
  void add(const KeyedChunk& chunk, const KeyedSet& has, std::byte* sums) const;
  std::size_t drop_rejected(std::span<std::uint8_t> offsets, KeyedScratch& scratch,
                            Merged& merged) const;

  wire::Shape shape_{};
  KeyedGeometry geometry_;
  StreamId stream_{};
  const numeric::BlockReduction* reduction_ = nullptr;
  bool begins_with_zero_ = false;  // sums do: a key's first row is added as the others are
  std::size_t sum_bytes_ = 0;      // of a row
  double threshold_ = 0;
  std::uint64_t horizon_ = 0;
  std::vector<Run> runs_;  // by rank

 public:
  static constexpr std::size_t kBytesOfRank = sizeof(Run);
};

}  // namespace sluice::aggregator
