// A membership in a job of which some ranks are on the same host. They sum among themselves in
// memory, and the hosts through the aggregators (steps.hpp tells how an op goes).
//
// It is made of several memberships, each in a job of its own:
//
//   whole    all ranks, at the aggregators. It tells the others of a failure, by the numbers of
//   this
//            job, notices ranks that are gone, and sums what cannot be summed by hosts
//   gather   the ranks of this host, for the first step of each op
//   spread   the same for the last one, so that neither waits for the other
//   column   of each host the rank that carries the same share as this one, at the aggregators
//
// A job that is all on one host has no columns: its ops are those of `gather` as they are.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/aggregator_membership.hpp"
#include "worker/hierarchy/placement.hpp"
#include "worker/hierarchy/steps.hpp"
#include "worker/host/membership.hpp"
#include "worker/progress.hpp"

namespace sluice::worker::hierarchy {

class Membership final : public sluice::Membership {
 public:
  /// What it has of its process and its job.
  struct Surroundings {
    Progress& progress;
    std::string host;  ///< its name
    std::chrono::milliseconds join_timeout;
    std::shared_ptr<const Secret> secret;  ///< or null
  };

  /// `whole` is active, and no op of it is pending. The progress loop must outlive this object,
  /// which is destroyed with the turn held.
  Membership(Surroundings surroundings, KnownAs known_as, Placement placement,
             std::unique_ptr<AggregatorMembership> whole);
  ~Membership() override = default;

  /// Begins to join what else it is made of.
  void join(Time now);

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
  /// One of the memberships that the progress loop serves beside this one.
  class Part final : public Member {
   public:
    Part(Membership& of, std::unique_ptr<sluice::Membership> membership);
    ~Part() override;
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    sluice::Membership& membership() override { return *membership_; }
    const sluice::Membership& membership() const { return *membership_; }
    bool after_turn(Time now) override { return of_.advance(now); }
    // It has no works of its own.
    std::vector<std::uint16_t> stragglers(OpNumber) const override { return {}; }
    double progress(OpNumber) const override { return 0; }
    void set_timeout(OpNumber, const OpTimeout&) override {}

   private:
    Membership& of_;
    const std::unique_ptr<sluice::Membership> membership_;
  };

  /// The parts number their ops alike, in the order in which they were called.
  struct Op {
    OpRequest request;
    std::vector<std::uint64_t> counts;
    std::unique_ptr<Steps> steps = {};  ///< none of a job on one host, nor before it begins
    enum class At { kGather, kBetween, kSpread } at = At::kGather;
    bool has_result = false;  ///< of its column, as far as there is one
    bool is_spread = false;
    std::optional<OpNumber> of_whole = {};  ///< by which it is summed, until that is done
    std::optional<Error> error = {};
    OpStatistics statistics = {};
  };

  std::unique_ptr<host::Membership> join_host(std::uint32_t which, Time now) const;
  std::unique_ptr<AggregatorMembership> join_column(Time now) const;
  bool is_on_one_host() const { return placement_.hosts() == 1; }
  bool carries() const { return column_ != nullptr; }
  host::Membership& gather() const { return *gather_membership_; }
  host::Membership& spread() const { return *spread_membership_; }
  template <class F>
  void for_each_part(F&& f) const;

  bool advance(Time now);
  void begin_waiting(Time now);
  void begin(Op& op, Time now);
  bool collect_whole();
  bool collect_gather(Time now);
  bool collect_column();
  bool begin_spreads(Time now);
  bool collect_spread();
  void complete_first();
  OpNumber next_op() const { return first_op_ + ops_.size(); }

  void look_at_parts(Time now);
  void fail_with(const sluice::Membership& part, Time now);
  void fail(const Error& error, const std::optional<AbortInfo>& why, Time now);
  bool end_if_over();

  const Surroundings surroundings_;
  const KnownAs known_as_;
  const Placement placement_;
  const std::unique_ptr<AggregatorMembership> whole_;
  host::Membership* gather_membership_ = nullptr;
  host::Membership* spread_membership_ = nullptr;
  std::unique_ptr<Part> gather_, spread_, column_;

  std::deque<Op> ops_;       ///< that are not complete
  OpNumber first_op_ = 0;    ///< of these, as its caller numbers it, and the parts
  OpNumber begun_ops_ = 0;   ///< the next one that is given to `gather`
  OpNumber spread_ops_ = 0;  ///< and to `spread`
  std::vector<Completion> completions_;
  bool tells_begun_ = false;
  std::vector<OpNumber> begun_;

  bool has_joined_ = false;
  bool is_leaving_ = false;
  bool is_over_ = false;
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  Time cause_due_ = kNever;  ///< until then `whole` tells why a mate has ended a column
  mutable Counters counters_;
  std::uint64_t ops_completed_ = 0, ops_failed_ = 0;
};

}  // namespace sluice::worker::hierarchy
