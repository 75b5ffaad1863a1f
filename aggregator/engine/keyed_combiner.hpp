// The sums of keyed pairs: what the running round of a stream merges, and how. This class does not
// know which ranks contribute, nor when the round ends.
//
// It holds one run of each rank, which may last several rounds. A round sums the keys below the
// lowest key that some rank still has to send, as many as fit in a RESULT, lowest rank first; if
// rows are scaled, whole chunks. Rejected sums take no room in a RESULT, so their number has a
// limit, too. The sums, and the place where the next round begins, depend only on the runs. Keys
// are local keys of the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "aggregator/engine/key_window.hpp"
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
  KeyReader keys;
  std::span<const std::byte> rows = {};  ///< from that of the next key on
};

/// Memory that a merge needs while it runs. All streams of an engine share one.
class KeyedScratch {
 public:
  KeyedScratch();

  /// Takes the memory that sums of a job with this session need: 4 bytes for each key that the runs
  /// of all ranks may have.
  void reserve(const Session& session);

  /// Memory for the run of sums that a round puts into a packet.
  std::span<std::byte> run() { return {run_.get(), limits::kMaxPayload}; }

 private:
  friend class KeyedCombiner;
  // An accumulator's element is at most 8 times larger than on the wire, where 4 bits are least.
  static constexpr std::size_t kMostKeys = 2 * std::size_t{limits::kMaxPayload};
  static constexpr std::size_t kRowsBytes = 8 * std::size_t{limits::kMaxPayload};

  struct FreeAligned {
    void operator()(std::byte* p) const {
      ::operator delete (p, std::align_val_t{numeric::kAccumulatorAlignment});
    }
  };
  struct Rejected {
    std::uint64_t key;
    std::size_t in_class;
  };

  /// Room for the keys of a run, and one more.
  static std::uint32_t* grown(std::vector<std::uint32_t>& memory, std::size_t keys) {
    if (memory.size() <= keys) memory.resize(keys + 1);
    return memory.data();
  }

  KeyWindow window_;
  std::vector<std::uint32_t> offsets_;            // in the window, of all ranks
  std::vector<std::uint32_t> places_;             // among the sums, of one rank's
  std::unique_ptr<std::uint64_t[]> keys_;         // of the sums
  std::unique_ptr<std::byte, FreeAligned> sums_;  // of these; zero behind them
  std::vector<std::uint8_t> has_sum_;             // of those that do not begin with zero
  std::unique_ptr<std::byte[]> rows_;     // sums as they travel, or as they are before scaling
  std::unique_ptr<std::byte[]> widened_;  // rows of 16-bit floats, or scaled rows, as fp32
  std::unique_ptr<std::byte[]> run_;
  std::vector<Rejected> rejected_;
  std::array<KeyedCursor, limits::kMaxRanks> cursors_;        // by rank: behind what is merged
  std::array<KeyedCursor, limits::kMaxRanks> before_;         // the same, before the last window
  std::array<std::uint32_t, limits::kMaxRanks> in_window_{};  // keys by rank
};

class KeyedCombiner {
 public:
  explicit KeyedCombiner(const Session& session) : runs_(session.ranks) {}

  /// Begins the op that the packet's descriptor names. Returns false and changes nothing if this
  /// session cannot have such an op on this stream.
  bool begin(const Packet& packet, StreamId stream, const Session& session, bool resumed);

  const wire::Shape& shape() const { return shape_; }
  std::uint64_t horizon() const { return horizon_; }

  /// Whether a contribution is about the running round and has only keys of this stream.
  bool fits(const Packet& packet) const;
  /// Whether a packet of the same shape has another horizon.
  bool contradicts(const Packet& packet) const;

  /// Takes a rank's run, and holds the packet. It must fit: its rows are not checked again.
  void take(Rank w, const Packet& packet, Buffer buffer, KeyedScratch& scratch);

  /// The result of a round.
  struct Merged {
    std::span<const std::byte> run = {};
    std::size_t sums = 0;         ///< in it
    std::uint64_t next = kNoKey;  ///< where the next round begins
    bool is_full = false;         ///< there is another sum, which does not fit
    std::array<std::uint32_t, wire::kRejectedClasses> rejected = {};
  };
  /// Writes as many sums of the running round as fit in `out`. It may be called again: nothing
  /// changes until the next round starts.
  Merged merge(std::span<std::byte> out, KeyedScratch& scratch) const;

  /// The next round begins where the merge ended, whose result had `room` bytes for its run.
  /// Returns the ranks that contribute to it: their runs are used up, or nearly so (see
  /// renewal_bound()).
  RankSet start_round(const Merged& merged, std::size_t room, const KeyedScratch& scratch);

 private:
  struct Run {
    Buffer buffer;
    KeyedCursor left;
    std::uint64_t following = kNoKey;
  };
  struct Window;

  std::size_t ranks() const { return runs_.size(); }
  /// The first key of its chunk, if rows are scaled: then no round ends within a chunk.
  std::uint64_t chunk_begin(std::uint64_t key) const {
    return format_.is_scaled() ? key & ~(geometry_.chunk_keys() - 1) : key;
  }

  std::uint64_t window_for(std::size_t kept, std::uint64_t reached) const;
  void skip(KeyedCursor& cursor, std::uint64_t to, KeyedScratch& scratch) const;
  const std::byte* take_rows(KeyedCursor& cursor, std::span<const std::uint32_t> offsets,
                             std::byte* widened) const;
  void read_window(const Window& window, KeyedScratch& scratch) const;
  std::size_t unite(Window& window, std::size_t first, std::span<std::uint64_t> out,
                    KeyedScratch& scratch) const;
  std::uint64_t least_left(const KeyedScratch& scratch) const;
  void add_window(const Window& window, KeyedScratch& scratch) const;
  void add(std::span<const std::uint32_t> places, const std::byte* rows,
           KeyedScratch& scratch) const;
  void store(std::byte* rows, std::size_t count, KeyedScratch& scratch) const;
  void clear(std::size_t count, KeyedScratch& scratch) const;
  std::uint64_t keep_what_reaches(std::size_t& kept, std::size_t most, std::size_t count,
                                  std::uint64_t end, KeyedScratch& scratch) const;
  void write(const RunPlan& plan, std::span<std::byte> out, KeyedScratch& scratch) const;
  void leave_from(std::uint64_t next, const Window& last, KeyedScratch& scratch) const;

  wire::Shape shape_{};
  KeyedGeometry geometry_;
  RunFormat format_;
  StreamId stream_{};
  numeric::Rounder rounder_;
  const numeric::BlockReduction* reduction_ = nullptr;
  bool begins_with_zero_ = false;  // sums do: a key's first row is added to zero
  std::size_t sum_bytes_ = 0;      // of a row
  double threshold_ = 0;
  std::uint64_t horizon_ = 0;
  /// Of the last full result: how many sums it had, and the mean distance of their keys.
  struct Fill {
    std::size_t sums = 64;
    std::uint64_t distance = 64;
  } fill_;
  std::vector<Run> runs_;  // by rank

 public:
  static constexpr std::size_t kBytesOfRank = sizeof(Run);
};

}  // namespace sluice::aggregator
