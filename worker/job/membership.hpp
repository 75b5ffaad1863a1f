// This rank's side of one job, whichever way the job's ranks sum: through aggregators
// (aggregator_membership.hpp), or among themselves on one host (host/membership.hpp). It joins by
// itself, and is a state machine like the engines that it drives, which the progress loop gives
// its turns.
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
#include "worker/engine/known_as.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/engine/operation.hpp"
#include "worker/job/figures.hpp"

namespace sluice {

/// All calls with the turn held.
class Membership {
 public:
  enum class State {
    kJoining,  ///< until all ranks are there
    kActive,
    kLeaving,
    kLeft,    ///< over, well
    kFailed,  ///< over: see failure()
  };

  /// Two ranks of the job, which are ranks 0 and 1 of a job of their own.
  struct Pair {
    std::uint32_t job = 0;
    worker::KnownAs alias = {};
    Rank first = {}, second = {};  ///< in this job
  };

  Membership() = default;
  virtual ~Membership() = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  virtual State state() const = 0;
  bool over() const { return state() == State::kLeft || state() == State::kFailed; }
  virtual const std::optional<Error>& failure() const = 0;
  /// What there is to say of the failure beside its error, if anything.
  virtual const std::optional<AbortInfo>& abort_info() const = 0;
  virtual std::uint32_t job() const = 0;
  virtual Rank rank() const = 0;
  virtual std::uint16_t ranks() const = 0;
  virtual const Session& session() const = 0;  ///< once active
  /// "rank 1, 2 to join": for what a join waits.
  virtual std::string waits_for() const = 0;
  /// Of daemons that are of another build than this library, a text for each.
  virtual std::vector<std::string> other_builds() const { return {}; }
  /// In a job of these two, of which this rank is one. Once active.
  virtual std::unique_ptr<Membership> join_pair(const Pair& pair, Time now) = 0;

  // ------------------------------------------------------------------------------------------ ops
  /// Starts an op; in any state but kActive it completes with the failure. The request is laid out
  /// by these counts, and checked for session().
  virtual OpNumber submit(const worker::OpRequest& request, std::span<const std::uint64_t> counts,
                          Time now) = 0;
  /// Of an op that is pending; takes the place of its request's.
  virtual void set_timeout(OpNumber op, const worker::OpTimeout& timeout) = 0;
  /// Ops that ended since the last call, in the order in which they ended.
  virtual std::vector<worker::Completion> take_completions() = 0;
  virtual bool has_completions() const = 0;
  /// Ops that have begun since the last call. Nothing is told unless it is asked for.
  virtual void tell_begun(bool is_told) = 0;
  virtual std::vector<OpNumber> take_begun() = 0;
  virtual bool has_begun() const = 0;
  /// The ranks that an op, or any, waits for, as far as is known.
  virtual RankSet awaited(OpNumber op) const = 0;
  virtual RankSet awaited() const = 0;
  /// How much of an op is done, 0..1.
  virtual double progress(OpNumber op) const = 0;

  // -------------------------------------------------------------------------------------- the end
  /// Begins to leave; with ops pending, aborts.
  virtual void leave(Time now, Departure departure) = 0;
  /// Ends the job for all ranks, which are told `cause`, if any; pending ops fail with `why`.
  virtual void abort(const Error& why, const std::optional<AbortInfo>& cause, Time now) = 0;

  // ------------------------------------------------------------------------------------- the loop
  /// Every turn: what is due. Whether there was anything that others may wait for.
  virtual bool on_time(Time now) = 0;
  /// Asks to be told of what comes: adds the descriptors that become readable then. False: it
  /// cannot tell.
  virtual bool arm(net::RxEvents& events) = 0;
  virtual void receive(const Endpoint& /*from*/, Buffer /*payload*/, Time /*now*/) {}
  /// A local port's link went down or came up.
  virtual void on_link(std::uint16_t /*port_id*/, bool /*up*/, Time /*now*/) {}
  /// The loop did not run for so long until now: that is nobody's silence.
  virtual void excuse_pause(Duration /*pause*/, Time /*now*/) {}
  /// Of ops under way that are to come, at most.
  virtual std::size_t awaited_bytes() const { return 0; }
  /// Ops wait for their tensors, which a device copies: look again soon.
  virtual bool awaits_arrivals() const { return false; }
  /// Of each multicast group (IPv4, host byte order) to which results may come; some more than
  /// once.
  virtual void for_each_group(const std::function<void(std::uint32_t group)>& /*f*/) const {}

  // ------------------------------------------------------------------------------------- figures
  virtual const worker::Counters& counters() const = 0;
  /// Goes on with those of a membership that it replaces.
  virtual void count_on(const worker::Counters& before) = 0;
  virtual std::size_t running_streams() const { return 0; }
  /// Every aggregator has us as a member, as it is unless one is joined again.
  virtual bool is_whole() const { return true; }
  virtual std::vector<JobFigures::Path> paths() const { return {}; }
};

}  // namespace sluice
