// A sum of keyed pairs among the ranks of a host, in two halves. The first few ranks have a range
// of keys each:
//   merge    each of them adds all ranks' pairs of its range;
//   spread   all ranks get the sums, one range behind the other.
//
// The ranks publish where their pairs lie, and read them there. Pairs in memory that other ranks
// cannot access are first copied to memory that they can access. Where there is no such memory,
// pairs are moved.
//
// The ranges are of equal size and are cut at chunks (common/protocol/keyed.hpp), so that the bits
// are those that an aggregator computes: encoded rows are rounded chunk by chunk. Where other hosts
// have pairs, too, the merged pairs are no result yet: they go through the aggregators before they
// are spread (worker/hierarchy).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>

#include "common/base/ids.hpp"
#include "common/numeric/encoding.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/session.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/host/engine/board.hpp"
#include "worker/host/engine/move_sequence.hpp"
#include "worker/host/pair_memory.hpp"

namespace sluice::worker::host {

/// The ranks that sum.
struct KeyedRanks {
  std::vector<Rank> all;  ///< of this host, ascending, as errors name them
  LocalRank self = 0;
  std::uint16_t ranges = 1;  ///< how many of them have a range
  std::uint16_t of_job = 1;  ///< ranks of the job, by which an average divides
  std::shared_ptr<PairPool> memory = std::make_shared<PairPool>();  ///< may belong to the job

  /// Whether other hosts' pairs are added later. Then the sums made here are neither encoded nor
  /// rejected.
  bool has_other_hosts() const { return of_job != all.size(); }
};

/// The sums of one range of keys.
struct KeyedRange {
  PairMemory pairs = {};  ///< ascending
  std::uint64_t size = 0;
  std::array<std::uint64_t, wire::kRejectedClasses> rejected = {};

  std::span<const std::uint64_t> keys() const { return {pairs.keys(), size}; }
};

/// What both halves have in common.
class KeyedHalf : public MoveSequence {
 public:
  void reach(PeerAccess& peers) override { peers_ = &peers; }
  void set_timeout(const OpTimeout& timeout) override { request_.timeout = timeout; }
  const OpRequest& request() const override { return request_; }
  std::optional<Error> finish() override { return std::nullopt; }
  OpStatistics statistics() const override { return {}; }

 protected:
  /// `request` has been checked for the session.
  KeyedHalf(const OpRequest& request, const Session& session, KeyedRanks ranks);
  KeyedHalf(const KeyedHalf&) = delete;
  KeyedHalf& operator=(const KeyedHalf&) = delete;

  /// Pairs where they lie.
  struct PairsAt {
    const std::uint64_t* keys = nullptr;
    const std::byte* rows = nullptr;
  };
  /// What a rank publishes of its pairs: whether peers can access them, and where keys and rows
  /// lie.
  static constexpr std::size_t kPlaced = 5;
  using Placed = std::array<std::uint64_t, kPlaced>;

  std::size_t ranks() const { return ranks_.all.size(); }
  std::size_t row_bytes() const;  // as the caller has them
  std::uint64_t first_key_of(std::size_t rank) const;
  static std::uint64_t total(std::span<const std::uint64_t> counts);
  Move move_of(wire::Collective collective, ElementType type, const void* input, void* output,
               std::vector<std::uint64_t> counts) const;
  std::vector<std::uint64_t> elements_of(std::vector<std::uint64_t> keys) const;
  PairMemory take_memory(std::uint64_t pairs) const { return {ranks_.memory, pairs, row_bytes()}; }
  void put_own(const std::vector<std::uint64_t>& own, std::vector<std::uint64_t>& all) const;
  Placed placed(const PairsAt& own, std::uint64_t pairs) const;
  bool are_all_reached(std::span<const std::uint64_t> counts, std::size_t at) const;
  std::optional<PairsAt> read(LocalRank peer, std::span<const std::uint64_t> placed,
                              std::uint64_t first, std::uint64_t pairs) const;
  AbortInfo broken(std::size_t rank) const;

  OpRequest request_;
  const KeyedRequest& keyed_;
  const KeyedRanks ranks_;
  const KeyedGeometry geometry_;
  PeerAccess* peers_ = nullptr;
};

class KeyedMerge final : public KeyedHalf {
 public:
  KeyedMerge(const OpRequest& request, const Session& session, KeyedRanks ranks)
      : KeyedHalf(request, session, std::move(ranks)) {}

  const Move& next(OpNumber number) override;
  std::optional<AbortInfo> end_move() override;
  bool is_first() const override { return phase_ == Phase::kDescribe; }
  bool is_done() const override { return phase_ == Phase::kDone; }

  /// The sums of our range, if we have one; call it once the op is done.
  KeyedRange take_range() { return std::move(range_); }

 private:
  enum class Phase {
    kDescribe,  ///< what each rank asks for, its pairs per range, and where they lie
    kKeys,      ///< only where some rank's pairs cannot be accessed
    kRows,
    kDone,
  };

  /// The pairs of one rank in our range.
  struct Run {
    std::span<const std::uint64_t> keys;
    const std::byte* rows = nullptr;
  };

  Placed place_own();
  std::vector<std::uint64_t> description();
  std::optional<AbortInfo> disagreement() const;
  std::span<const std::uint64_t> counts_of_ranges(std::size_t rank) const;
  std::optional<AbortInfo> end_describe();
  std::optional<AbortInfo> merge_where_they_lie();
  std::optional<AbortInfo> merge_moved();
  std::optional<AbortInfo> merge(std::vector<Run> runs);

  OpNumber number_ = 0;
  Phase phase_ = Phase::kDescribe;
  Move move_;
  std::vector<std::uint64_t> own_;        // what we describe
  std::vector<std::uint64_t> of_all_;     // what all ranks describe
  std::vector<std::uint64_t> keys_from_;  // by rank: how many pairs of our range it has
  PairMemory copy_;                       // of our pairs, which peers read until the op has ended
  PairMemory came_;                       // of our range, by rank, if pairs were moved
  KeyedRange range_;
};

class KeyedSpread final : public KeyedHalf {
 public:
  KeyedSpread(const OpRequest& request, const Session& session, KeyedRanks ranks)
      : KeyedHalf(request, session, std::move(ranks)) {}

  /// Sets the sums of our range. A rank without a range need not call it.
  void begin_with(KeyedRange range) { range_ = std::move(range); }

  const Move& next(OpNumber number) override;
  std::optional<AbortInfo> end_move() override;
  bool is_first() const override { return phase_ == Phase::kCount; }
  bool is_done() const override { return phase_ == Phase::kDone; }

  /// Gives the sums to the caller. Returns an error if they are too many for its memory.
  std::optional<Error> finish() override;
  OpStatistics statistics() const override;

 private:
  enum class Phase {
    kCount,  ///< how many sums each range has, how many were rejected, and where the sums lie
    kRead,   ///< all ranks have read them, or they are moved:
    kKeys,
    kRows,
    kDone,
  };

  std::optional<AbortInfo> read_sums();
  std::optional<AbortInfo> check_sums() const;
  bool are_in_range(LocalRank rank, std::span<const std::uint64_t> keys) const;
  std::vector<std::uint64_t> sizes() const;

  Phase phase_ = Phase::kCount;
  Move move_;
  KeyedRange range_;
  std::vector<std::uint64_t> own_;     // our counts
  std::vector<std::uint64_t> counts_;  // the counts of all ranks
  PairMemory sums_;                    // of all ranges
  std::uint64_t size_ = 0;
};

/// Both halves, for a job whose ranks are all on one host.
class KeyedSum final : public MoveSequence {
 public:
  KeyedSum(const OpRequest& request, const Session& session, const KeyedRanks& ranks)
      : merge_(request, session, ranks), spread_(request, session, ranks) {}

  const Move& next(OpNumber number) override { return half().next(number); }
  void reach(PeerAccess& peers) override;
  std::optional<AbortInfo> end_move() override;
  bool is_first() const override { return merge_.is_first(); }
  bool is_done() const override { return spread_.is_done(); }
  void set_timeout(const OpTimeout& timeout) override;
  const OpRequest& request() const override { return merge_.request(); }
  std::optional<Error> finish() override { return spread_.finish(); }
  OpStatistics statistics() const override { return spread_.statistics(); }

 private:
  MoveSequence& half() {
    if (merge_.is_done()) return spread_;
    return merge_;
  }

  KeyedMerge merge_;
  KeyedSpread spread_;
};

}  // namespace sluice::worker::host
