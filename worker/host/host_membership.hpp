// A membership in a job whose ranks are all on one host; or the part of a larger job that the ranks
// of one host have (worker/hierarchy). The ranks find each other (group.hpp) and sum among
// themselves (engine.hpp), without an aggregator.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/log/logger.hpp"
#include "common/protocol/secret.hpp"
#include "worker/host/engine/engine.hpp"
#include "worker/host/engine/host_op_queue.hpp"
#include "worker/host/group.hpp"
#include "worker/host/mapped_board.hpp"
#include "worker/host/pair_memory.hpp"
#include "worker/host/sums.hpp"

namespace sluice::worker::host {

class HostMembership final : public Sums {
 public:
  /// What it needs of its process.
  struct Surroundings {
    std::string host;                        ///< its name
    bool uses_processes = true;              ///< see GroupConfig
    std::uint16_t payload_bytes = 0;         ///< a block must fit into a payload of this size
    std::shared_ptr<spdlog::logger> logger;  ///< never null
  };

  /// The ranks that sum here, and their job.
  struct Ranks {
    std::uint32_t job = 0;  ///< its id, unique among this user's jobs on this host
    std::vector<Rank> all;  ///< ascending, with the numbers that errors use
    LocalRank self = 0;
    std::uint16_t of_job = 1;  ///< how many ranks the whole job has, by which an average divides
    std::uint16_t block_elements = 0;
    std::chrono::milliseconds join_timeout;
    std::string advice;  ///< for the error where ranks do not find each other: what else to do
  };

  /// Begins to join a job whose ranks are all on this host. `options` are validated; `secret` may
  /// be null.
  HostMembership(Surroundings surroundings, const JobOptions& options, JobLabel label,
                 std::shared_ptr<const Secret> secret, Time now);
  /// Begins to join some ranks of a job.
  HostMembership(Surroundings surroundings, Ranks ranks, JobLabel label,
                 std::shared_ptr<const Secret> secret, Time now);
  ~HostMembership() override = default;

  State state() const override;
  const std::optional<Error>& failure() const override {
    return engine_ ? engine_->failure() : failure_;
  }
  const std::optional<AbortInfo>& abort_info() const override {
    return engine_ ? engine_->abort_info() : abort_info_;
  }
  std::uint32_t job() const override { return session_.job; }
  Rank rank() const override { return ranks_.all[ranks_.self]; }
  std::uint16_t ranks() const override { return session_.ranks; }
  const Session& session() const override { return session_; }
  std::string waits_for() const override;
  std::unique_ptr<sluice::Membership> join_pair(const Pair& pair, Time now) override;

  OpNumber submit(const OpRequest& request, std::span<const std::uint64_t> counts,
                  Time now) override;
  OpNumber submit(const OpRequest& request, std::vector<Part> parts, Time now) override;
  OpNumber submit(MoveSequence& moves, Time now) override;
  void set_timeout(OpNumber op, const OpTimeout& timeout) override;
  std::vector<Completion> take_completions() override;
  bool has_completions() const override {
    return ops_ ? ops_->has_completions() : !completions_.empty();
  }
  void notify_begun(bool is_wanted) override;
  std::vector<OpNumber> take_begun() override { return engine_->take_begun(); }
  bool has_begun() const override { return engine_ && engine_->has_begun(); }
  RankSet awaited(OpNumber op) const override { return engine_->awaited(op); }
  RankSet awaited() const override { return engine_ ? engine_->awaited() : RankSet{}; }
  double progress(OpNumber op) const override { return engine_->progress(op); }

  void leave(Time now, Departure departure) override;
  void abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) override;

  bool on_time(Time now) override;
  bool arm(net::RxEvents& events) override;
  bool awaits_arrivals() const override { return ops_ && ops_->awaits_arrivals(); }

  const Counters& counters() const override { return counters_; }
  void count_on(const Counters& before) override { counters_ = before; }

 private:
  static Ranks ranks_of(const JobOptions& options);
  HostMembership(const HostMembership& of, const Pair& pair, Time now);

  OpNumber submit(HostOpQueue::Call&& call, Time now);
  void form(Time now);
  void start();
  bool is_reached() const;
  void fail(const Error& error, const std::optional<AbortInfo>& why = std::nullopt);
  void look_at_group(Time now);
  void close_if_over();
  void tell_stopped() const;
  GroupConfig group_config() const;

  const Surroundings surroundings_;
  const JobLabel label_;
  const std::shared_ptr<const Secret> secret_;
  const Ranks ranks_;
  Session session_;
  Time deadline_;  // for the join
  bool has_left_ = false;
  std::optional<Error> failure_;  // of the time before there is an engine
  std::optional<AbortInfo> abort_info_;
  bool notifies_begun_ = false;
  Counters counters_;
  const std::shared_ptr<PairPool> pairs_ = std::make_shared<PairPool>();
  Time look_due_{};         // when to look at the group's sockets
  bool is_asleep_ = false;  ///< peers see this
  // Each of these depends on those before it.
  std::unique_ptr<Group> group_;
  std::optional<MappedBoard> board_;
  std::unique_ptr<Engine> engine_;
  std::optional<HostOpQueue> ops_;

  OpNumber next_op_ = 0;                 // of ops that are called after the join has failed
  std::vector<Completion> completions_;  // of these ops
};

}  // namespace sluice::worker::host
