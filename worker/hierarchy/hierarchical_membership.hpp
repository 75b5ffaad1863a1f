// A membership in a job of which some ranks are on the same host. They sum among themselves in
// memory, and the hosts sum through the aggregators (steps.hpp shows the steps of an op).
//
// It consists of several memberships, each in a job of its own:
//
//   whole    all ranks, at the aggregators. It reports failures to all, with the numbers of ranks
//            in this job, notices lost ranks, and sums what cannot be summed by hosts
//   gather   the ranks of this host, for the first step of each op
//   spread   the ranks of this host, for the last step, so that neither step waits for the other
//   rail     at the aggregators: one rank of each host, the one that carries the same share
//
// A job whose ranks are all on one host has no rails: its ops are the ops of `gather`.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/hierarchy/parts.hpp"
#include "worker/hierarchy/placement.hpp"
#include "worker/hierarchy/steps.hpp"
#include "worker/job/membership.hpp"

namespace sluice::worker::hierarchy {

class HierarchicalMembership final : public sluice::Membership {
 public:
  /// `whole` is active and has no pending op.
  HierarchicalMembership(JobLabel label, Placement placement,
                         std::unique_ptr<sluice::Membership> whole, Parts parts,
                         std::uint64_t min_chunk_of_rail = kMinChunkOfRail);
  ~HierarchicalMembership() override = default;

  /// The loop gives each of these its turns as if it were alone, and then calls advance().
  const std::vector<sluice::Membership*>& parts() const { return all_parts_; }
  /// Takes what the parts have completed, and starts the next steps. Returns whether there was
  /// anything.
  bool advance(Time now);

  State state() const override;
  const std::optional<Error>& failure() const override { return failure_; }
  const std::optional<AbortInfo>& abort_info() const override { return abort_info_; }
  std::uint32_t job() const override { return whole_->job(); }
  Rank rank() const override { return whole_->rank(); }
  std::uint16_t ranks() const override { return whole_->ranks(); }
  const Session& session() const override { return whole_->session(); }
  std::string waits_for() const override;
  std::vector<std::string> other_builds() const override { return whole_->other_builds(); }
  /// Joins through shared memory if both ranks are on this host.
  std::unique_ptr<sluice::Membership> join_pair(const Pair& pair, Time now) override;

  OpNumber submit(const OpRequest& request, std::span<const std::uint64_t> counts,
                  Time now) override;
  void set_timeout(OpNumber op, const OpTimeout& timeout) override;
  std::vector<Completion> take_completions() override;
  bool has_completions() const override { return !completions_.empty(); }
  void notify_begun(bool is_wanted) override;
  std::vector<OpNumber> take_begun() override { return std::exchange(begun_, {}); }
  bool has_begun() const override { return !begun_.empty(); }
  RankSet awaited(OpNumber op) const override;
  RankSet awaited() const override;
  double progress(OpNumber op) const override;

  void leave(Time now, Departure departure) override;
  void abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) override;

  bool on_time(Time now) override;
  bool arm(net::RxEvents& events) override { return whole_->arm(events); }
  void receive(const Endpoint& from, Buffer payload, Time now) override {
    whole_->receive(from, std::move(payload), now);
  }
  void on_link(std::uint16_t port_id, bool up, Time now) override {
    whole_->on_link(port_id, up, now);
  }
  void excuse_pause(Duration pause, Time now) override { whole_->excuse_pause(pause, now); }
  std::size_t awaited_bytes() const override { return whole_->awaited_bytes(); }
  bool awaits_arrivals() const override;
  void for_each_group(const std::function<void(std::uint32_t group)>& f) const override {
    whole_->for_each_group(f);
  }

  const Counters& counters() const override;
  void count_on(const Counters& before) override { whole_->count_on(before); }
  std::size_t running_streams() const override;
  bool is_whole() const override;
  std::vector<JobFigures::Path> paths() const override;

 private:
  struct Op {
    OpRequest request;
    std::vector<std::uint64_t> counts;
    std::uint32_t chunks = 1;
    std::uint32_t chunks_done = 0;
    std::optional<OpNumber> of_whole = {};  ///< its number in `whole`, until it is summed there
    std::optional<Error> error = {};
    OpStatistics statistics = {};
  };
  /// A chunk of an op, which the parts see as an op. All parts number chunks in the order in which
  /// they begin.
  struct ChunkOfOp {
    OpNumber op = 0;
    Chunk place = {};
    std::unique_ptr<Steps> steps = {};  ///< null in a job on one host
    enum class At { kGather, kBetween, kSpread } at = At::kGather;
    bool has_result = false;  ///< the rail has its result, or there is no rail
    bool is_spread = false;
  };

  bool is_on_one_host() const { return placement_.hosts() == 1; }
  bool carries() const { return parts_.rail != nullptr; }
  host::Sums& gather() const { return *parts_.gather; }
  host::Sums& spread() const { return *parts_.spread; }
  sluice::Membership& rail() const { return *parts_.rail; }
  std::uint16_t rail_number() const { return placement_.local_rank_of(rank()); }

  void begin_waiting(Time now);
  void begin(OpNumber op, Time now);
  bool collect_whole();
  bool collect_gather(Time now);
  bool collect_rail();
  bool begin_spreads(Time now);
  void submit_to_whole(Op& op, Time now);
  bool collect_spread();
  void complete_first();
  double progress(OpNumber number, const ChunkOfOp& chunk) const;
  Op& op_at(OpNumber number) { return ops_[number - first_op_]; }
  const Op& op_at(OpNumber number) const { return ops_[number - first_op_]; }
  ChunkOfOp& chunk_at(OpNumber number) { return chunks_[number - first_chunk_]; }
  template <class F>
  void for_each_chunk_of(OpNumber op, F&& f) const;
  OpNumber next_op() const { return first_op_ + ops_.size(); }
  OpNumber next_chunk() const { return first_chunk_ + chunks_.size(); }

  Rank of_rail(Rank host) const;
  bool has_chunk(OpNumber number) const { return number >= first_chunk_ && number < next_chunk(); }
  void end_overdue(Time now);
  void look_at_parts(Time now);
  void fail_with(const sluice::Membership& part, Time now);
  void fail(const Error& error, const std::optional<AbortInfo>& why, Time now);
  bool end_if_over();
  void end_ops();

  const JobLabel label_;
  const Placement placement_;
  const std::uint64_t min_chunk_of_rail_;
  const std::shared_ptr<host::PairPool> pairs_ = std::make_shared<host::PairPool>();
  const std::unique_ptr<sluice::Membership> whole_;
  const Parts parts_;
  const std::vector<sluice::Membership*> all_parts_;  // without those that do not exist

  std::deque<Op> ops_;      ///< ops that are not complete
  OpNumber first_op_ = 0;   ///< the caller's number of the first of them
  OpNumber begun_ops_ = 0;  ///< the next op whose chunks are given to `gather`
  std::deque<ChunkOfOp> chunks_;
  OpNumber first_chunk_ = 0;    ///< the parts' number of the first of them
  OpNumber spread_chunks_ = 0;  ///< the next chunk that is given to `spread`
  std::vector<Completion> completions_;
  bool notifies_begun_ = false;
  std::vector<OpNumber> begun_;

  bool has_joined_ = false;
  bool is_leaving_ = false;
  bool is_over_ = false;
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  /// Until then `whole` may give the reason why another rank has ended a rail.
  Time cause_due_ = kNever;
  mutable Counters counters_;
  std::uint64_t ops_completed_ = 0, ops_failed_ = 0;
};

}  // namespace sluice::worker::hierarchy
