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

  /// A place among this rank's pairs of one stream.
  struct At {
    std::size_t segment = 0;  ///< of the stream's
    std::size_t key = 0;      ///< of the segment's
  };
  /// Some of this rank's pairs of one stream, in ascending order, as they fit one packet.
  struct Run {
    At begin = {};
    At end = {};
    RunPlan plan = {};
    std::uint64_t following = kNoKey;  ///< the round that begins there wants the next run
  };
  Run run_from(StreamId s, const At& begin, std::size_t room);
  /// From `begin` on, the first pair whose local key is no less than `key`.
  struct Found {
    At at;
    std::size_t passed;  ///< pairs before it
  };
  Found find(StreamId s, const At& begin, std::uint64_t key) const;
  /// `out` has run.plan.bytes bytes.
  void write(StreamId s, const Run& run, const numeric::Rounder& rounder, std::span<std::byte> out);

  /// Keeps a result's run: see KeyedSums::add().
  std::optional<std::size_t> store(StreamId s, std::span<const std::byte> run, std::uint64_t begin,
                                   std::uint64_t end);
  void add_rejected(std::span<const wire::U32, wire::kRejectedClasses> counts);
  /// All streams are done. Returns the op's error if there are too many sums.
  std::optional<Error> finish() const;

 private:
  /// Some neighbouring pairs of the caller's, in one stripe.
  class Segment {
   public:
    static constexpr unsigned kCountBits = kMostChunkBits + limits::kStripeChunkBits;
    Segment() = default;
    Segment(std::uint64_t first, std::size_t count) : bits_((first << kCountBits) | (count - 1)) {}
    std::uint64_t first() const { return bits_ >> kCountBits; }
    std::size_t count() const { return (bits_ & ((1u << kCountBits) - 1)) + 1; }

   private:
    std::uint64_t bits_ = 0;
  };

  bool is_too_much() const;
  std::span<const Segment> segments_of(StreamId s) const;
  void prefetch(const Segment& segment) const;
  At gather(std::span<const Segment> segments, At at, std::size_t most);
  template <class F>
  void for_each_part(std::span<const Segment> segments, const At& begin, std::size_t count,
                     const F& f) const;
  std::byte* encode(std::byte* out, std::uint64_t first, std::size_t count,
                    const numeric::Rounder& rounder) const;

  KeyedRequest request_;
  KeyedGeometry geometry_;
  std::size_t row_bytes_;  // of the caller's
  bool is_encoded_;
  RunFormat format_;
  std::unique_ptr<Segment[]> segments_;    // stream by stream, each one's in ascending order
  std::vector<std::size_t> stream_begin_;  // of each stream's segments, in the order of places
  // The local keys of the run that was planned last, which is mostly written next.
  std::vector<std::uint64_t> local_keys_;
  std::size_t gathered_ = 0;
  const Segment* gathered_from_ = nullptr;
  std::size_t gathered_at_ = 0;
  std::uint64_t keys_received_ = 0;
};

}  // namespace sluice::worker
