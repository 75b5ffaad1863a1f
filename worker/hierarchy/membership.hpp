// A membership in a job of which some ranks are on the same host. They sum among themselves in
// memory, and the hosts through the aggregators (steps.hpp tells how an op goes).
//
// It is made of several memberships, each in a job of its own:
//
//   whole    all ranks, at the aggregators. It tells the others of a failure, by their numbers in
//            this job, notices ranks that are gone, and sums what cannot be summed by hosts
//   gather   the ranks of this host, for the first step of each op
//   spread   the same for the last one, so that neither waits for the other
//   rail     of each host the rank that carries the same share as this one, at the aggregators
//
// A job that is all on one host has no rails: its ops are those of `gather` as they are.
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

class Membership final : public sluice::Membership {
 public:
  /// `whole` is active, and no op of it is pending.
  Membership(KnownAs known_as, Placement placement, std::unique_ptr<sluice::Membership> whole,
             Parts parts, std::uint64_t min_chunk_of_rail = kMinChunkOfRail);
  ~Membership() override = default;

  /// For the loop, which gives each of them its turns as if it were alone, and then calls
  /// advance().
  const std::vector<sluice::Membership*>& parts() const { return all_parts_; }
  /// Takes what the parts have done, and gives them what follows. Whether there was anything.
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
  /// By the host's memory where both ranks are on it.
  std::unique_ptr<sluice::Membership> join_pair(const Pair& pair, Time now) override;

  OpNumber submit(const OpRequest& request, std::span<const std::uint64_t> counts,
                  Time now) override;
  void set_timeout(OpNumber op, const OpTimeout& timeout) override;
  std::vector<Completion> take_completions() override;
  bool has_completions() const override { return !completions_.empty(); }
  void tell_begun(bool is_told) override;
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
    std::optional<OpNumber> of_whole = {};  ///< by which it is summed, until that is done
    std::optional<Error> error = {};
    OpStatistics statistics = {};
  };
  /// What the parts know as an op. They number them alike, in the order in which they begin.
  struct ChunkOfOp {
    OpNumber op = 0;
    Chunk place = {};
    std::unique_ptr<Steps> steps = {};  ///< none of a job on one host
    enum class At { kGather, kBetween, kSpread } at = At::kGather;
    bool has_result = false;  ///< of its rail, as far as there is one
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

  const KnownAs known_as_;
  const Placement placement_;
  const std::uint64_t min_chunk_of_rail_;
  const std::shared_ptr<host::PairPool> pairs_ = std::make_shared<host::PairPool>();
  const std::unique_ptr<sluice::Membership> whole_;
  const Parts parts_;
  const std::vector<sluice::Membership*> all_parts_;  // those that there are

  std::deque<Op> ops_;      ///< that are not complete
  OpNumber first_op_ = 0;   ///< of these, as its caller numbers it
  OpNumber begun_ops_ = 0;  ///< the next one of which `gather` is given the chunks
  std::deque<ChunkOfOp> chunks_;
  OpNumber first_chunk_ = 0;    ///< of these, as the parts number it
  OpNumber spread_chunks_ = 0;  ///< the next one that `spread` is given
  std::vector<Completion> completions_;
  bool tells_begun_ = false;
  std::vector<OpNumber> begun_;

  bool has_joined_ = false;
  bool is_leaving_ = false;
  bool is_over_ = false;
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  Time cause_due_ = kNever;  ///< until then `whole` tells why a mate has ended a rail
  mutable Counters counters_;
  std::uint64_t ops_completed_ = 0, ops_failed_ = 0;
};

}  // namespace sluice::worker::hierarchy
