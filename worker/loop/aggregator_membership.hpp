// A membership in a job whose ranks sum through aggregators. It finds the aggregators and drives
// the worker engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/secret.hpp"
#include "worker/engine/engine.hpp"
#include "worker/job/membership.hpp"
#include "worker/loop/attachment.hpp"
#include "worker/loop/progress.hpp"

namespace sluice {

class AggregatorMembership final : public Membership {
 public:
  /// Begins to join. `options` are validated; `secret` may be null; for `host` see Join. The
  /// progress loop and its attachment must outlive this object.
  AggregatorMembership(Progress& progress, Attachment& attachment, const JobOptions& options,
                       worker::JobLabel label, std::shared_ptr<const Secret> secret,
                       std::uint64_t host, Time now);
  ~AggregatorMembership() override;

  State state() const override;
  const std::optional<Error>& failure() const override {
    return engine_ ? engine_->failure() : failure_;
  }
  const std::optional<AbortInfo>& abort_info() const override;
  std::uint32_t job() const override { return config_.job; }
  Rank rank() const override { return config_.rank; }
  std::uint16_t ranks() const override { return config_.ranks; }
  const Session& session() const override { return engine_->session(); }
  std::string waits_for() const override;
  std::vector<std::string> other_builds() const override { return engine_->other_builds(); }
  /// Some of the job's ranks, by their numbers in it.
  struct SomeRanks {
    std::uint32_t job = 0;
    worker::JobLabel alias = {};
    Rank rank = {};
    std::uint16_t ranks = 1;
  };
  /// Begins to join a job of these ranks, with the settings of this job and at the same
  /// aggregators. Call it once active.
  std::unique_ptr<AggregatorMembership> join_beside(const SomeRanks& some, Time now) const;
  /// Throws kUnavailable if there are too few packet buffers.
  std::unique_ptr<Membership> join_pair(const Pair& pair, Time now) override;

  OpNumber submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
                  Time now) override;
  void set_timeout(OpNumber op, const worker::OpTimeout& timeout) override {
    engine_->set_timeout(op, timeout);
  }
  std::vector<worker::Completion> take_completions() override {
    return engine_->take_completions();
  }
  bool has_completions() const override { return engine_ && engine_->has_completions(); }
  void notify_begun(bool is_wanted) override;
  std::vector<OpNumber> take_begun() override { return engine_->take_begun(); }
  bool has_begun() const override { return engine_ && engine_->has_begun(); }
  RankSet awaited(OpNumber op) const override { return engine_->awaited(op); }
  RankSet awaited() const override { return engine_ ? engine_->awaited() : RankSet{}; }
  double progress(OpNumber op) const override { return engine_->progress(op); }

  void leave(Time now, Departure departure) override;
  void abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) override;

  bool on_time(Time now) override;
  bool arm(net::RxEvents&) override { return true; }  // the ports give the signal
  void receive(const Endpoint& from, Buffer payload, Time now) override;
  void on_link(std::uint16_t port_id, bool up, Time now) override;
  void excuse_pause(Duration pause, Time now) override;
  std::size_t awaited_bytes() const override;
  bool awaits_arrivals() const override { return engine_ && engine_->awaits_arrivals(); }
  void for_each_group(const std::function<void(std::uint32_t group)>& f) const override {
    if (engine_) engine_->for_each_group(f);
  }

  const worker::Counters& counters() const override;
  void count_on(const worker::Counters& before) override { engine_->count_on(before); }
  std::size_t running_streams() const override { return engine_ ? engine_->running_streams() : 0; }
  bool is_whole() const override { return engine_->is_whole(); }
  std::vector<JobFigures::Path> paths() const override;

 private:
  AggregatorMembership(const AggregatorMembership& of, worker::EngineConfig config);

  worker::EngineConfig config_of_job() const;
  worker::EngineConfig config_of(const SomeRanks& some) const;
  void find_aggregators(Time now);
  void join(Time now);
  void reserve(const std::string& whose);
  void fail(const Error& error);

  Progress& progress_;
  Attachment& attachment_;
  const JobOptions options_;
  const worker::JobLabel label_;
  const std::shared_ptr<const Secret> secret_;
  const std::uint64_t host_ = 0;
  worker::EngineConfig config_;
  std::vector<Endpoint> aggregators_;  // those that are found
  Time deadline_;                      // for finding them
  Time next_look_{};
  bool notifies_begun_ = false;
  std::optional<Error> failure_;  // of the time before there is an engine
  bool has_left_ = false;         // of the time before there is an engine
  std::optional<std::size_t> reserved_;
  std::unique_ptr<worker::Engine> engine_;
};

}  // namespace sluice
