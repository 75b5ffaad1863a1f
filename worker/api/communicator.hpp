// A membership in one job, behind the public Communicator.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/protocol/secret.hpp"
#include "worker/api/channel.hpp"
#include "worker/api/split.hpp"
#include "worker/loop/progress.hpp"
#include "worker/loop/work.hpp"

namespace sluice {

struct Communicator::Impl final : private LoopClient {
  Impl(std::shared_ptr<Progress> progress, const JobOptions& options);
  /// Joins this rank's part of a split. The op is done, and the color is not negative.
  Impl(std::shared_ptr<Progress> progress, const Split& split);
  ~Impl() override;

  /// `counts` are as in worker::lay_out; `root` is 0 for a collective without one.
  Work start(worker::OpRequest request, std::span<const std::uint64_t> counts,
             std::int32_t root = 0);
  SparseWork start(const SparseTensor& tensor, std::uint64_t key_bound,
                   const SparseOptions& options);
  SplitWork split(SplitKind kind, std::int32_t color, std::int32_t key);
  /// Sends a message to another rank, or receives one. `request` is a broadcast.
  Work post(bool sends, std::int32_t peer, worker::OpRequest request, std::uint64_t count);
  /// Leaves, or aborts if ops are pending, and waits for the end. Returns an error if that failed.
  std::optional<Error> leave();
  void abort(std::string_view why);
  void note_exception() { leaves_by_exception_.store(true, std::memory_order_relaxed); }
  std::optional<Error> failure() const;
  const std::vector<std::uint16_t>& hosts() const { return hosts_; }
  std::vector<std::uint16_t> stragglers() const;
  JobStatistics statistics() const;
  std::uint32_t block_elements(ElementType type, std::uint16_t wanted);
  const JobOptions options;  ///< without the secret

 private:
  Membership& membership() override { return *membership_; }
  bool after_turn(Time now) override;
  std::vector<std::uint16_t> stragglers(OpNumber op) const override;
  double progress(OpNumber op) const override { return membership_->progress(op); }
  std::optional<JobFigures> figures() const override;
  void set_timeout(OpNumber op, const worker::OpTimeout& timeout) override {
    membership_->set_timeout(op, timeout);
  }

  template <class Done, class Says>
  bool await(Done&& done, Time deadline, Says&& waits_for);
  void tell_wait(Time now);
  std::unique_ptr<Membership> begin_to_join(Attachment& attachment, Time now);
  const std::string& host_name() const;
  void join();
  void await_active();
  void join_hosts();
  void tell_builds();
  void start(worker::OpRequest request, std::span<const std::uint64_t> counts, std::int32_t root,
             const std::shared_ptr<Work::State>& state);
  std::shared_ptr<Work::State> new_work() const;
  worker::OpTimeout timeout_of(const Work::State& state) const {
    return worker::OpTimeout::of(state.started, options.op_timeout);
  }
  void submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
              const std::shared_ptr<Work::State>& state, Time now);
  Channel& channel_of(Route route, Time now);
  Channel::Parent as_parent() { return {*membership_, label_, timeline_}; }
  bool is_over() const;
  Departure departure() const {
    return leaves_by_exception_.load(std::memory_order_relaxed) ? Departure::kByException
                                                                : Departure::kByChoice;
  }
  std::optional<AbortInfo> cause_of_abort() const;
  void publish_failure(Time now);
  void record_recovery(Time now);

  /// A wait of ops for other ranks. It begins when results stop coming.
  struct Wait {
    Time look_due{};
    Time since = kNever;
    std::uint64_t results = 0;
    bool is_told = false;
  };

  const worker::JobLabel label_;
  const std::shared_ptr<Progress> progress_;
  std::shared_ptr<const Secret> secret_;

  // These are read and written only by a thread that holds the loop's lock.
  std::unique_ptr<Membership> membership_;
  std::vector<std::unique_ptr<LoopClient>> parts_;  // the parts of a hierarchical membership
  JobTimeline timeline_;
  OpenWorks works_{timeline_};
  std::map<Route, std::unique_ptr<Channel>> channels_;
  std::uint64_t rejoins_recorded_ = 0;
  Wait wait_;
  bool has_left_ = false;
  bool is_recovering_ = false;  // as it is recorded

  Session session_;                   // const once joined
  std::vector<std::uint16_t> hosts_;  // of each rank, in the same way
  const int exceptions_at_start_ = std::uncaught_exceptions();
  std::atomic<bool> leaves_by_exception_{false};
  std::atomic<bool> has_failed_{false};
  std::optional<Error> failure_;  // of the membership: written before has_failed_, const afterwards
};

/// The same error with more to say.
Error with(const Error& error, const std::string& more);

}  // namespace sluice
