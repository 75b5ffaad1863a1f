// A sum of keyed pairs among the ranks of a host, made of ops of the engine that only move
// elements: each rank gets all ranks' pairs of its range of keys, adds them, and gives the sums to
// all. The ranges are cut evenly, at chunks (common/protocol/keyed.hpp), so that the bits are those
// of an aggregator: what is encoded is rounded chunk by chunk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sluice/error.hpp>
#include <sluice/statistics.hpp>

#include "common/base/ids.hpp"
#include "common/numeric/encoding.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/keyed.hpp"
#include "common/protocol/session.hpp"
#include "worker/op_request.hpp"

namespace sluice::worker::host {

class KeyedSum {
 public:
  /// The next of its ops, and the counts by which it is laid out.
  struct Step {
    OpRequest request;
    std::vector<std::uint64_t> counts;
  };

  /// `request` is checked for the session.
  KeyedSum(const OpRequest& request, const Session& session, RankOf self);

  /// Of the op known by this number. Valid until the next call.
  const Step& next(OpNumber number);
  /// The step is done. Something: the ranks disagree.
  std::optional<AbortInfo> end_step();
  bool is_first() const { return phase_ == Phase::kDescribe; }
  bool is_done() const { return phase_ == Phase::kDone; }
  /// Of the steps to come.
  void set_timeout(const OpTimeout& timeout) { request_.timeout = timeout; }

  /// Once done: gives the sums to the caller. An error: they are too many.
  std::optional<Error> finish();
  OpStatistics statistics() const;

 private:
  enum class Phase {
    kDescribe,  ///< what each rank asks for, and how many pairs it has of each range
    kKeys,
    kRows,
    kCount,  ///< how many sums each range has
    kSumKeys,
    kSumRows,
    kDone,
  };
  /// From memory that mates can reach, where there is some: what is there is not copied.
  struct Deallocate {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Deallocate>;
  static Memory allocate(std::size_t bytes);

  std::size_t ranks() const { return self_.ranks; }
  std::size_t row_bytes() const;  // of the caller's
  std::uint64_t first_key_of(std::size_t range) const;
  std::uint64_t total(std::span<const std::uint64_t> counts) const;
  std::vector<std::uint64_t> description() const;
  std::optional<AbortInfo> disagreement() const;
  OpRequest moves(wire::Collective collective, ElementType type, const std::byte* input,
                  std::byte* output) const;
  std::span<const std::uint64_t> counts_of_ranges(std::size_t rank) const;
  static AbortInfo broken(std::size_t rank);
  std::optional<AbortInfo> merge();
  std::optional<AbortInfo> check_sums() const;

  OpRequest request_;
  const KeyedRequest& keyed_;
  const RankOf self_;
  const KeyedGeometry geometry_;
  OpNumber number_ = 0;
  Phase phase_ = Phase::kDescribe;
  Step step_;
  std::vector<std::uint64_t> own_;        // what we say in a step
  std::vector<std::uint64_t> of_all_;     // what all have described
  std::vector<std::uint64_t> sums_told_;  // and counted
  std::vector<std::uint64_t> keys_from_;  // by rank: how many pairs of our range came from it
  Memory keys_, rows_;                    // of our range, by rank
  Memory range_keys_, range_rows_;        // their sums
  std::uint64_t range_size_ = 0;
  std::array<std::uint64_t, wire::kRejectedClasses> rejected_{};
  Memory sum_keys_, sum_rows_;  // of all
  std::uint64_t size_ = 0;
};

}  // namespace sluice::worker::host
