// The messages that one rank of a job sends to another: a job of these two, joined the same way, in
// which a message is a broadcast by rank 0, the sender.
//
// It begins with the first call and lives as long as the job that it belongs to. Until the other
// rank is there, too, calls queue up: whoever comes first waits without bound, and joins again when
// an aggregator ends the wait. That the other is lost, or the job over, is noticed by the job: its
// communicator ends the channel then.
//
// A message that is not done within its time-out ends the job, as what the other side has of it is
// unknown.
//
// Messages are numbered by their order, which is the order of the channel's ops.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/protocol/abort_info.hpp"
#include "common/protocol/session.hpp"
#include "worker/loop/progress.hpp"
#include "worker/loop/work.hpp"

namespace sluice {

/// From one rank of a job to another.
struct Route {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

/// The side of a channel that one rank has. All calls with the turn held.
class Channel final : public Member {
 public:
  /// The job that it belongs to, which is active.
  struct Parent {
    Membership& membership;
    const worker::KnownAs& known_as;
    JobTimeline& timeline;
  };

  /// Begins to join. Throws kUnavailable where there are too few packet buffers.
  Channel(Progress& progress, Route route, const Parent& parent, Time now);
  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Starts a message, or fails it if the channel has failed. `request` is a broadcast as this side
  /// of a job of two has it.
  void post(const worker::OpRequest& request, std::shared_ptr<Work::State> state, Time now);

  /// The aggregator did not want to wait for the other side any longer: rejoin() is due.
  bool waits_in_vain() const;
  void rejoin(const Parent& parent, Time now);

  /// A message was not done within its time-out: the job is to end with this. Until end() its
  /// messages stay pending.
  const std::optional<AbortInfo>& overdue() const { return overdue_; }

  /// The other side, if messages wait for it, as far as is known.
  std::optional<Rank> straggler() const;
  std::size_t pending_messages() const { return works_.size(); }
  const worker::Counters& counters() const { return membership_->counters(); }

  bool pending() const { return !works_.empty(); }
  bool over() const { return membership_->over(); }
  /// Begins to leave. No message may be pending.
  void leave(Time now, Departure departure) { membership_->leave(now, departure); }
  /// The other side is told, and pending messages fail with `why`, some of them later: once nobody
  /// can reach their tensors any more.
  void end(const Error& why, Departure departure, Time now);

 private:
  Membership& membership() override { return *membership_; }
  bool after_turn(Time now) override;
  std::vector<std::uint16_t> stragglers(OpNumber op) const override;
  double progress(OpNumber op) const override {
    return op < submitted_ ? membership_->progress(op) : 0;
  }
  void set_timeout(OpNumber op, const worker::OpTimeout& timeout) override;

  Membership::Pair pair(const Parent& parent) const;
  bool is_joining() const;
  std::optional<AbortInfo> find_overdue(Time now);
  bool finish_ended();

  Progress& progress_;
  const Route route_;
  const bool sends_;
  std::unique_ptr<Membership> membership_;
  std::deque<worker::OpRequest> queue_;  // of messages that wait for the other side
  Time next_overdue_ = kNever;           // none of them is overdue before
  std::optional<AbortInfo> overdue_;
  std::optional<Error> ended_;  // why the job ended
  OpNumber submitted_ = 0;
  JobTimeline& timeline_;
  OpenWorks works_{timeline_};
};

}  // namespace sluice
