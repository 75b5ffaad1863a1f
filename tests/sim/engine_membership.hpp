// A membership in a job at the simulated aggregators: it drives the worker engine as the library's
// AggregatorMembership does.
#pragma once

#include <span>

#include "tests/sim/sink.hpp"
#include "worker/engine/engine.hpp"
#include "worker/job/membership.hpp"

namespace sluice::sim {

class EngineMembership final : public Membership {
 public:
  /// Begins to join.
  EngineMembership(worker::EngineConfig config, std::span<const Endpoint> aggregators, Sink& sink,
                   Time now)
      : sink_(sink), engine_(std::move(config), aggregators) {
    engine_.start(now, sink_);
  }

  const worker::Engine& engine() const { return engine_; }

  State state() const override { return static_cast<State>(engine_.state()); }
  const std::optional<Error>& failure() const override { return engine_.failure(); }
  const std::optional<AbortInfo>& abort_info() const override { return engine_.abort_info(); }
  std::uint32_t job() const override { return engine_.job(); }
  Rank rank() const override { return engine_.rank(); }
  std::uint16_t ranks() const override { return engine_.ranks(); }
  const Session& session() const override { return engine_.session(); }
  std::string waits_for() const override { return engine_.waits_for(); }
  std::unique_ptr<Membership> join_pair(const Pair&, Time) override { return nullptr; }

  OpNumber submit(const worker::OpRequest& request, std::span<const std::uint64_t>,
                  Time now) override {
    return engine_.submit(request, now, sink_);
  }
  void set_timeout(OpNumber op, const worker::OpTimeout& timeout) override {
    engine_.set_timeout(op, timeout);
  }
  std::vector<worker::Completion> take_completions() override { return engine_.take_completions(); }
  bool has_completions() const override { return engine_.has_completions(); }
  void notify_begun(bool is_wanted) override { engine_.notify_begun(is_wanted); }
  std::vector<OpNumber> take_begun() override { return engine_.take_begun(); }
  bool has_begun() const override { return engine_.has_begun(); }
  RankSet awaited(OpNumber op) const override { return engine_.awaited(op); }
  RankSet awaited() const override { return engine_.awaited(); }
  double progress(OpNumber op) const override { return engine_.progress(op); }

  void leave(Time now, Departure departure) override { engine_.leave(now, sink_, departure); }
  void abort(const Error& why, const std::optional<AbortInfo>& cause, Time) override {
    engine_.abort(why, sink_, cause);
  }

  bool on_time(Time now) override {
    engine_.on_time(now, sink_);
    return false;
  }
  bool arm(net::RxEvents&) override { return true; }
  void receive(const Endpoint& from, Buffer payload, Time now) override {
    engine_.receive(from, std::move(payload), now, sink_);
  }
  void excuse_pause(Duration pause, Time now) override {
    if (pause > worker::Engine::kLongTurn) engine_.excuse_pause(pause, now);
  }
  bool awaits_arrivals() const override { return engine_.awaits_arrivals(); }
  void for_each_group(const std::function<void(std::uint32_t group)>& f) const override {
    engine_.for_each_group(f);
  }

  const worker::Counters& counters() const override { return engine_.counters(); }
  void count_on(const worker::Counters& before) override { engine_.count_on(before); }

 private:
  Sink& sink_;
  worker::Engine engine_;
};

// Both have the same states.
static_assert(static_cast<int>(Membership::State::kActive) ==
              static_cast<int>(worker::Engine::State::kActive));
static_assert(static_cast<int>(Membership::State::kFailed) ==
              static_cast<int>(worker::Engine::State::kFailed));

}  // namespace sluice::sim
