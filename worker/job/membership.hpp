// This rank's side of one job, whether the job's ranks sum through aggregators
// (aggregator_membership.hpp) or among themselves on one host (host_membership.hpp). It joins by
// itself. It is a state machine, as are the engines that it drives; the progress loop gives it its
// turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/base/endpoint.hpp"
#include "common/base/packet_buffer.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/net/rx_events.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/session.hpp"
#include "worker/engine/counters.hpp"
#include "worker/engine/job_label.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/engine/operation.hpp"
#include "worker/job/process_figures.hpp"

namespace sluice {

/// The caller of each function holds the loop's lock.
class Membership {
 public:
  enum class State {
    kJoining,  ///< until all ranks have joined
    kActive,
    kLeaving,
    kLeft,    ///< over, without a failure
    kFailed,  ///< over, see failure()
  };

  /// Two ranks of the job. They are ranks 0 and 1 of a derived job.
  struct Pair {
    std::uint32_t job = 0;
    worker::JobLabel alias = {};
    Rank first = {}, second = {};  ///< in this job
  };

  Membership() = default;
  virtual ~Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  virtual State state() const = 0;
  bool over() const { return state() == State::kLeft || state() == State::kFailed; }
  virtual const std::optional<Error>& failure() const = 0;
  /// More about the failure than its error says, if anything.
  virtual const std::optional<AbortInfo>& abort_info() const = 0;
  virtual std::uint32_t job() const = 0;
  virtual Rank rank() const = 0;
  virtual std::uint16_t ranks() const = 0;
  virtual const Session& session() const = 0;  ///< once active
  /// What a join waits for, such as "rank 1, 2 to join".
  virtual std::string waits_for() const = 0;
  /// A text for each daemon whose build differs from that of this library.
  virtual std::vector<std::string> other_builds() const { return {}; }
  /// Joins a derived job of these two ranks; this rank is one of them. Call it once active.
  virtual std::unique_ptr<Membership> join_pair(const Pair& pair, Time now) = 0;

  // ------------------------------------------------------------------------------------------ ops
  /// Starts an op; in any state except kActive it completes with the failure. The request is laid
  /// out by these counts, and checked for session().
  virtual OpNumber submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
                          Time now) = 0;
  /// Replaces the time-out of a pending op's request.
  virtual void set_timeout(OpNumber op, const worker::OpTimeout& timeout) = 0;
  /// Ops that ended since the last call, in the order in which they ended.
  virtual std::vector<worker::Completion> take_completions() = 0;
  virtual bool has_completions() const = 0;
  /// Ops that have begun since the last call. They are collected only when this is switched on.
  virtual void notify_begun(bool is_wanted) = 0;
  virtual std::vector<OpNumber> take_begun() = 0;
  virtual bool has_begun() const = 0;
  /// The ranks that an op, or any op, waits for, as far as is known.
  virtual RankSet awaited(OpNumber op) const = 0;
  virtual RankSet awaited() const = 0;
  /// Which share of an op is done, 0..1.
  virtual double progress(OpNumber op) const = 0;

  // -------------------------------------------------------------------------------------- the end
  /// Begins to leave; with ops pending, aborts.
  virtual void leave(Time now, Departure departure) = 0;
  /// Ends the job for all ranks, with `cause`, if any; pending ops fail with `why`.
  virtual void abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) = 0;

  // ------------------------------------------------------------------------------------- the loop
  /// Does what is due; called in every turn. Returns whether anything happened for which others may
  /// wait.
  virtual bool on_time(Time now) = 0;
  /// Asks for a signal when something comes: adds the descriptors that become readable then.
  /// Returns false if there is no such signal.
  virtual bool arm(net::RxEvents& events) = 0;
  virtual void receive(const Endpoint& /*from*/, Buffer /*payload*/, Time /*now*/) {}
  /// The link of a local port went down or came up.
  virtual void on_link(std::uint16_t /*port_id*/, bool /*up*/, Time /*now*/) {}
  /// The loop did not run for so long until now. This does not count as silence of another process.
  virtual void excuse_pause(Duration /*pause*/, Time /*now*/) {}
  /// An upper bound of the bytes that are still to come for ops under way.
  virtual std::size_t awaited_bytes() const { return 0; }
  /// Whether ops wait for tensors that a device copies: then look again soon.
  virtual bool awaits_arrivals() const { return false; }
  /// Calls f for each multicast group (IPv4, host byte order) to which results may come, for some
  /// more than once.
  virtual void for_each_group(const std::function<void(std::uint32_t group)>& /*f*/) const {}

  // ------------------------------------------------------------------------------------- figures
  virtual const worker::Counters& counters() const = 0;
  /// Continues the counters of a membership that this one replaces.
  virtual void count_on(const worker::Counters& before) = 0;
  virtual std::size_t running_streams() const { return 0; }
  /// Whether every aggregator has this rank as a member. That is so unless one is joined again.
  virtual bool is_whole() const { return true; }
  virtual std::vector<JobFigures::Path> paths() const { return {}; }
};

}  // namespace sluice
