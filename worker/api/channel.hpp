// The messages that one rank of a job sends to another. A channel is a job of these two ranks,
// joined as any job is. A message is a broadcast by its rank 0, the sender.
//
// A channel begins with the first call and lives as long as the job that it belongs to. Until the
// other rank has joined, calls queue up: the first side waits without a bound, and joins again when
// an aggregator ends the wait. The job notices when the other rank is lost, or when the job is
// over; its communicator then ends the channel.
//
// A message that is not done within its time-out ends the job, as it is unknown how much of it the
// other side has.
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

/// The direction of messages, by ranks of the job.
struct Route {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

/// One rank's side of a channel. The caller of each function holds the loop's lock.
class Channel final : public LoopClient {
 public:
  /// The job that it belongs to. It is active.
  struct Parent {
    Membership& membership;
    const worker::JobLabel& label;
    JobTimeline& timeline;
  };

  /// Begins to join. Throws kUnavailable if there are too few packet buffers.
  Channel(Progress& progress, Route route, const Parent& parent, Time now);
  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Starts a message, or fails it if the channel has failed. `request` is a broadcast in a job of
  /// two ranks, as this side sees it.
  void post(const worker::OpRequest& request, std::shared_ptr<Work::State> state, Time now);

  /// Whether the aggregator has ended the wait for the other side: rejoin() is due.
  bool waits_in_vain() const;
  void rejoin(const Parent& parent, Time now);

  /// Set when a message was not done within its time-out: the reason with which the job must end.
  /// Messages stay pending until end().
  const std::optional<AbortInfo>& overdue() const { return overdue_; }

  /// The other side, if messages wait for it and that is known.
  std::optional<Rank> straggler() const;
  std::size_t pending_messages() const { return works_.size(); }
  const worker::Counters& counters() const { return membership_->counters(); }

  bool pending() const { return !works_.empty(); }
  bool over() const { return membership_->over(); }
  /// Begins to leave. No message may be pending.
  void leave(Time now, Departure departure) { membership_->leave(now, departure); }
  /// Ends the channel and informs the other side. Pending messages fail with `why`, some of them
  /// later: once nobody can access their tensors any more.
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
  std::deque<worker::OpRequest> queue_;  // messages that wait for the other side
  Time next_overdue_ = kNever;           // when the next of them is overdue, at the earliest
  std::optional<AbortInfo> overdue_;
  std::optional<Error> ended_;  // the error with which the job ended
  OpNumber submitted_ = 0;
  JobTimeline& timeline_;
  OpenWorks works_{timeline_};
};

}  // namespace sluice
