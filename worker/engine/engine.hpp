// The worker engine: this rank's side of one job. Calls, packets and the time come in; packets and
// completions go out. No I/O, threads, clocks or DPDK types; the same objects serve a Communicator
// and the simulator.
//
// It joins shard 0, which decides the generation and the session's parameters, then the other
// shards with these. From then on every stream is a small machine of its own
// (worker/engine/stream.hpp), and the ops stand in one queue (worker/engine/op_queue.hpp). This
// class keeps the memberships: it passes each packet to the stream or to the membership that it is
// for.
//
// If an aggregator does not know us any more, or sends nothing, this rank joins again. If it starts
// a new epoch, each stream tells it its position (SYNC). Rounds whose results some rank lacks are
// replayed with the contributions that were kept; ops continue as if nothing had happened.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/packet_buffer.hpp"
#include "common/protocol/abort_info.hpp"
#include "common/protocol/build.hpp"
#include "common/protocol/control_packets.hpp"
#include "common/protocol/packet.hpp"
#include "common/protocol/session.hpp"
#include "worker/engine/config.hpp"
#include "worker/engine/counters.hpp"
#include "worker/engine/op_queue.hpp"
#include "worker/engine/shard_membership.hpp"
#include "worker/engine/stream.hpp"

namespace sluice::worker {

class Engine {
 public:
  enum class State {
    kJoining,  ///< until every aggregator has welcomed us
    kActive,
    kLeaving,
    kLeft,    ///< over, well
    kFailed,  ///< over: see failure()
  };

  /// `aggregators`: where each one's lane 0 listens, in order. How many lanes they have, and so
  /// how many shards there are, the first one tells.
  Engine(EngineConfig config, std::span<const Endpoint> aggregators);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void start(Time now, KeepingSink& sink);  ///< begins to join; call once

  /// Starts an op; valid while active. In any other state the op completes with the failure. One
  /// that is too_long() for this session ends the job: another session may be the one in which it
  /// was checked, and the other ranks must not wait for this one. In all else the request must have
  /// passed check() for session().
  OpNumber submit(const OpRequest& request, Time now, KeepingSink& sink);

  /// Replaces the time-out of an op that is pending.
  void set_timeout(OpNumber op, const OpTimeout& timeout);

  void receive(const Endpoint& from, Buffer buffer, Time now, KeepingSink& sink);

  /// To be called at next_deadline() or later, and cheap to call always.
  void on_time(Time now, KeepingSink& sink);
  Time next_deadline() const { return deadline_; }

  /// How often the engine looks whether a tensor has come from a device.
  static constexpr Duration kArrivalLook = std::chrono::microseconds(20);
  /// Shorter pauses of the loop need not be excused.
  static constexpr Duration kLongTurn = std::chrono::milliseconds(1);
  /// The loop did not run for so long until now: that is no silence of the aggregators, and no
  /// delay of the path.
  void excuse_pause(Duration pause, Time now) {
    for (auto& membership : memberships_) membership->excuse_pause(pause, now);
  }

  /// A local port's link went down or came up: so the engine need not wait for a time-out.
  void on_link(std::uint16_t port_id, bool up, Time now);

  /// Ops wait for their tensors, which a device copies: see on_time().
  bool awaits_arrivals() const { return ops_.ready_end() != ops_.end(); }

  /// Begins to leave; with ops pending, aborts.
  void leave(Time now, KeepingSink& sink, Departure departure = Departure::kByChoice);
  /// Ends the job for all ranks, which are told `cause`, if any; pending ops fail with `why`.
  void abort(const Error& why, KeepingSink& sink,
             const std::optional<AbortInfo>& cause = std::nullopt);

  std::uint32_t job() const { return config_.job; }
  Rank rank() const { return config_.rank; }
  std::uint16_t ranks() const { return config_.ranks; }
  State state() const { return state_; }
  bool over() const { return state_ == State::kLeft || state_ == State::kFailed; }
  const std::optional<Error>& failure() const { return failure_; }
  /// What there is to say of the failure beside its error, if anything.
  const std::optional<AbortInfo>& abort_info() const { return abort_info_; }
  const Session& session() const { return memberships_[0]->agreed(); }  ///< once active
  /// "rank 1, 2 to join": for what a join waits.
  std::string waits_for() const;
  /// A text for each aggregator that is of another build than this library.
  std::vector<std::string> other_builds() const;
  /// The block size of an op that wants so many elements at most; 0: that of the session.
  std::uint32_t block_elements(ElementType type, std::uint16_t wanted = 0) const {
    return fitting_block_elements(session(), wanted, type);
  }

  /// Ops that ended since the last call, in the order in which they ended.
  std::vector<Completion> take_completions() { return ops_.take_completions(); }
  bool has_completions() const { return ops_.has_completions(); }
  /// Ops that have begun since the last call: see OpQueue. None are reported unless asked for.
  void notify_begun(bool is_wanted) { ops_.notify_begun(is_wanted); }
  std::vector<OpNumber> take_begun() { return ops_.take_begun(); }
  bool has_begun() const { return ops_.has_begun(); }
  /// Every aggregator has us as a member, as it is unless one is joined again.
  bool is_whole() const { return all_memberships(ShardMembership::State::kIn); }
  std::size_t pending_ops() const { return ops_.pending(); }
  std::size_t running_streams() const { return ops_.running_streams(); }  ///< each awaits a result
  std::size_t awaited_bytes() const { return ops_.awaited_bytes(); }  ///< of these, if none is zero
  /// The ranks that aggregators wait for, by their last packets about it, if no result came since.
  RankSet awaited(OpNumber op) const;
  RankSet awaited() const;  ///< for any op
  /// How much of an op is done, 0..1: of its blocks, or of the streams of a keyed one.
  double progress(OpNumber op) const;
  /// Calls f(group) for each multicast group (IPv4, host byte order) to which results may come;
  /// more than once for the same. The caller receives what comes to these, and to no others.
  template <class F>
  void for_each_group(F&& f) const {
    if (over()) return;
    for (const auto& membership : memberships_)
      if (const std::uint32_t group = membership->agreed().group; group != 0) f(group);
  }
  const Counters& counters() const { return counters_; }
  /// Goes on with those of an engine that it replaces.
  void count_on(const Counters& before) { counters_ = before; }
  /// Calls f(const rounds::RetransmissionTimeout&, const rounds::CongestionWindow&) for each shard.
  template <class F>
  void for_each_path(F&& f) const {
    for (const auto& membership : memberships_) f(membership->path.rto, membership->path.window);
  }

 private:
  ShardMembership& shard_of(StreamId s) { return *memberships_[s.value % memberships_.size()]; }
  Stream* stream_at(StreamId s) { return s.value < streams_.size() ? &streams_[s.value] : nullptr; }

  // Membership.
  DropReason dispatch(const Endpoint& from, Packet& packet, Buffer buffer, Time now,
                      KeepingSink& sink);
  template <class Wants>
  DropReason for_membership(Wants&& wants);
  void welcomed(ShardMembership& membership, Time now, KeepingSink& sink);
  void add_membership();
  void join_others(Time now);
  bool start_epoch(ShardMembership& membership);
  void advance_streams(ShardMembership& membership, Time now, KeepingSink& sink);
  bool all_memberships(ShardMembership::State state) const;
  bool membership_ended(ShardMembership& membership);
  void rejoin(ShardMembership& membership, bool refused_at_home, Time now);
  bool has_no_progress(std::uint16_t shard) const;
  void fail(const Error& error, const std::optional<AbortInfo>& why,
            const ShardMembership* reported_by);
  void fail_protocol(const std::string& what);
  void end_overdue(OpNumber op, KeepingSink& sink);
  bool is_authentic(const Packet& packet) const;

  // Streams.
  DropReason on_stream(Packet& packet, Buffer buffer, Time now, KeepingSink& sink);
  bool begin_ops_again(KeepingSink& sink);
  Operation& add(const OpRequest& request);
  Operation& add_blocks(const OpRequest& request);
  Operation& add_keyed(const OpRequest& request);
  DropReason on_poll(StreamId first, const wire::Poll& poll, Time now, KeepingSink& sink);
  StreamScope scope_of(StreamId s, Time now, KeepingSink& sink) {
    return {config_, shard_of(s), ops_, counters_, sink, deadline_, now};
  }
  void begin_ready(OpNumber first, Time now, KeepingSink& sink);
  void look_for_arrivals(Time now, KeepingSink& sink);
  void let_run(ShardMembership& membership, Time now, KeepingSink& sink);
  void flush(KeepingSink& sink) { control_.flush(sink); }

  const EngineConfig config_;
  const std::vector<Endpoint> aggregators_;
  std::vector<std::unique_ptr<ShardMembership>> memberships_;  // by shard
  std::vector<Stream> streams_;
  Counters counters_;
  OpQueue ops_{counters_};
  State state_ = State::kJoining;
  std::uint64_t generation_ = 0;
  std::optional<Error> failure_;
  std::optional<AbortInfo> abort_info_;
  Time deadline_ = kNever;
  std::vector<rounds::RunOrder> run_orders_;  // of let_run(), which allocates nothing
  ControlPackets control_;
};

}  // namespace sluice::worker
