// The ranks of one host sum among themselves: this rank's side. Calls, the time and the ends of
// other ranks come in; completions come out. The ranks exchange data through the Board. There are
// no I/O, clocks, threads or locks, so a rank that dies or stops holds nothing.
//
// A rank publishes an op by a Call. Once all ranks have called it and agree, its tensor is cut into
// pieces. Pieces are counted over all ops, and local rank p mod L sums piece p: it adds all ranks'
// tensors where they lie, lowest rank first, and stores the sums into all of them. So each tensor
// is read once and written once. If a rank's tensor lies in no shared memory, the rank that sums a
// piece copies it from that rank's process, and copies the sums back (remote_pieces.hpp). Where
// other ranks cannot access a process, the tensor passes through the rank's slots, piece by piece.
// A small tensor travels in the calls, and every rank adds it for itself.
//
// The op is done once all its pieces are. When a rank fails, or finds that another one has ended,
// it stops accessing the tensors of others, publishes that, and waits for a limited time until all
// others have done the same. The Board takes the memory away from those that are stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "worker/engine/job_label.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/engine/operation.hpp"
#include "worker/host/engine/board.hpp"
#include "worker/host/engine/peer_access.hpp"
#include "worker/host/engine/remote_pieces.hpp"
#include "worker/host/engine/shares.hpp"

namespace sluice::worker::host {

struct Config {
  JobLabel alias;           ///< for messages
  std::vector<Rank> ranks;  ///< of this host, ascending
  LocalRank self = 0;
  std::uint16_t divisor = 0;  ///< of averages: how many ranks the job has; 0: all are here
  BoardSizes sizes;
  std::size_t least_piece_bytes = std::size_t{4} << 10;
  /// Elements of a block: the unit of an op's encoding, and of the bits of a caller's bitmap. The
  /// op asks for `wanted` of them, or, with 0, for no number. A block fits into a slot.
  std::function<std::uint32_t(ElementType type, std::uint16_t wanted)> block_elements;
  /// How long a rank that has failed waits for the others to end.
  Duration part_limit = std::chrono::milliseconds(200);
  /// Where a tensor lies in this rank's shared memory; nothing if it does not lie there.
  std::function<std::optional<Place>(std::span<const std::byte> tensor)> place_of;
  /// From this size on, other ranks read and write tensors that lie in no shared memory in the
  /// process of this rank; smaller ones pass through its slots.
  std::uint64_t least_remote_bytes = kNotReached;
  static constexpr std::uint64_t kNotReached = std::numeric_limits<std::uint64_t>::max();
};

class Engine final : public PeerAccess {
 public:
  enum class State {
    kActive,
    kEnding,  ///< the job has failed; ops complete once no other rank can access their tensors
    kOver,
  };

  Engine(Config config, Board& board);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts an op that is laid out and checked. It has no keyed pairs, and its tensors are in host
  /// memory. `parts` has an entry for each local rank; it is empty where all hold and want the
  /// whole tensor. In any state except kActive the op completes with the failure. Ops are numbered.
  /// An op can share the number of the one before it, on all ranks alike, if both make one op of
  /// the caller.
  OpNumber submit(const OpRequest& request, std::vector<Part> parts, bool belongs_to_last = false);
  /// Replaces the time-out of a pending op's request.
  void set_timeout(OpNumber op, const OpTimeout& timeout);

  /// Does what can be done now, a limited number of pieces. Returns whether there was anything to
  /// do.
  bool turn(Time now);
  /// Nothing is due before, unless another rank publishes something new.
  Time next_deadline() const;

  /// The process of a peer has ended: it cannot write any more.
  void lost(LocalRank peer, Time now);
  /// Leaves the job; with ops pending, ends it.
  void leave(Time now, Departure departure = Departure::kByChoice);
  /// Ends the job for all ranks, with `cause`.
  void abort(const Error& why, const AbortInfo& cause, Time now);
  /// Ends the job for a fault of a peer, unless a rank has ended, whose reason says more.
  void end_for(const AbortInfo& what, Time now);

  std::optional<Place> place_of(std::span<const std::byte> bytes) override {
    return config_.place_of(bytes);
  }
  const std::byte* read_at(LocalRank peer, const Place& place, std::uint64_t bytes) override {
    return board_.bytes_at(peer, place, bytes);
  }

  State state() const { return state_; }
  const std::optional<Error>& failure() const { return failure_; }
  const std::optional<AbortInfo>& abort_info() const { return abort_info_; }
  std::size_t pending_ops() const { return ops_.size(); }
  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  bool has_completions() const { return !completions_.empty(); }
  /// Ops that all ranks have called since the last time. They are collected only when this is
  /// switched on.
  void notify_begun(bool is_wanted);
  std::vector<OpNumber> take_begun() { return std::exchange(begun_, {}); }
  bool has_begun() const { return !begun_.empty(); }
  /// The ranks of the job for which its first op waits now.
  RankSet awaited() const;
  /// The same for any pending op: for a later one, those that have not called it.
  RankSet awaited(OpNumber op) const;
  /// Which share of a pending op is done here, 0..1.
  double progress(OpNumber op) const;

 private:
  struct Op {
    OpRequest request;
    Shares shares;
    OpNumber number = 0;  ///< the caller's number for it
    OpStatistics statistics = {};
    // True once all ranks have called it. Pieces are counted from the beginning of the job.
    bool has_begun = false;
    std::vector<Elements> of_rank = {};  ///< of a piece (is_piece) in slots, or remote
    std::vector<std::optional<RemoteTensor>> remote = {};  ///< by rank; never our own
    std::vector<bool> tells_blocks = {};
    bool zeros_are_there = false;  ///< our output holds zeros where all ranks' blocks are zero
    /// A block of ours that is zero contains -0, as far as we have searched.
    bool has_negative_zero = false;
    std::uint64_t first_piece = 0;
    std::uint64_t pieces = 0;     ///< 0 for a small tensor
    std::uint64_t own_piece = 0;  ///< the next one that we sum
    std::uint64_t given = 0;      ///< our first piece that nobody can read yet
    std::uint64_t taken = 0;      ///< our first piece whose sums we have not taken

    std::uint64_t end_piece() const { return first_piece + pieces; }
  };

  std::size_t local_ranks() const { return config_.ranks.size(); }  // including ourselves
  std::uint32_t block_elements(const OpRequest& request) const;
  std::deque<Op>::const_iterator find(OpNumber number) const;
  static bool is_inline(const Op& op);
  static ElementRange range_of(const Op& op, std::uint64_t piece);

  bool call_next();
  bool is_sparse(const Op& op) const;
  std::uint64_t blocks_of(const Op& op, const ElementRange& range, bool& has_negative_zero) const;
  void tell_places(const Op& op, Call& call) const;
  bool begin(Op& op, Time now);
  std::optional<AbortInfo> disagreement(const std::vector<Call>& calls) const;
  void sum_inline(Op& op, const std::vector<Call>& calls);
  void place(Op& op, const std::vector<Call>& calls, Time now);
  bool place(Op& op, LocalRank rank, const Call& call);
  /// Its number in errors.
  static OpNumber named(const Op& op) { return op.request.number_in_errors.value_or(op.number); }
  bool uses_slots(const Op& op) const {
    return op.pieces != 0 && op.of_rank[config_.self].is_piece;
  }
  /// Whether the sums of each piece are needed here: they are copied out of a slot, or the op
  /// reports to its caller which of their blocks are not zero.
  bool takes_sums(const Op& op) const {
    return uses_slots(op) || (op.pieces != 0 && op.request.found_blocks);
  }
  bool may_give(const Op& op) const;
  bool give(Op& op);
  bool take(Op& op);
  void take_blocks(const Op& op, const ElementRange& range, std::uint64_t blocks) const;
  bool sum_next(Op& op, Time now);
  static bool has_remote(const Op& op);
  void tell_counts(const Op& op);
  bool fetch(Op& op, std::uint64_t piece, Time now);
  std::byte* own_sums(const Op& op, std::uint64_t piece) const;
  bool store(Op& op, std::uint64_t piece, std::uint64_t blocks, std::byte* sums, Time now);
  bool check_copied(LocalRank peer, Copied copied, Time now);
  bool is_summed(const Op& op, std::uint64_t piece) const;
  bool is_done(const Op& op) const;
  bool has_all_of(const Op& op, LocalRank peer) const;
  void complete(Op& op);
  void count(Op& op);

  void look_at_peers(Time now);
  void end_overdue(Time now);
  void fail(const AbortInfo& why, Time now);
  void fail(const Error& error, const AbortInfo& why, Time now);
  bool end_if_alone(Time now);
  void end();

  const Config config_;
  Board& board_;
  RemotePieces remote_;
  State state_ = State::kActive;
  std::deque<Op> ops_;
  OpNumber next_number_ = 0;
  OpNumber first_op_ = 0;           // counted as ops are published, as are the next two
  OpNumber called_ = 0;             // ops that we have published
  OpNumber call_limit_ = 0;         // calls below it replace no call that is still needed
  std::uint64_t pieces_ended_ = 0;  // of the ops before the first one
  /// Blocks that were not zero in what we have summed: by rank, and in the last place of the sums.
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> negative_zeros_;         // pieces with some, by rank
  std::uint64_t counted_own_ = 0, counted_sums_ = 0;  // as counted by all, in ops that are complete
  std::uint64_t counted_negative_zeros_ = 0;          // of our own
  std::vector<Completion> completions_;
  bool notifies_begun_ = false;
  std::vector<OpNumber> begun_;
  RankSet lost_;  // local ranks
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  Time part_due_ = kNever;
};

}  // namespace sluice::worker::host
