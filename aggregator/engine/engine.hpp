// The aggregator engine: packets and the time come in, packets go out. No I/O, threads, clocks or
// DPDK types; the same objects serve a lane of the daemon and the simulator.
//
// receive() finds the job, proves the sender by its token and hands the packet to the job's
// membership or stream. One engine serves one shard: a daemon's lane.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aggregator/engine/config.hpp"
#include "aggregator/engine/counters.hpp"
#include "aggregator/engine/job_event.hpp"
#include "aggregator/engine/job_figures.hpp"
#include "aggregator/engine/membership.hpp"
#include "aggregator/engine/reply_budget.hpp"
#include "aggregator/engine/serials.hpp"
#include "aggregator/engine/stream.hpp"

namespace sluice::aggregator {

class Engine {
 public:
  /// `on_event` is called from within the other calls; it must not call back.
  explicit Engine(EngineConfig config, std::function<void(const JobEvent&)> on_event = {})
      : config_(std::move(config)),
        on_event_(std::move(on_event)),
        proven_replies_(config_.reply_rate_limit, config_.unique()),
        unproven_replies_(config_.reply_rate_limit, config_.unique()) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One datagram. Takes the buffer; what it keeps, it bounds by the sessions' sizes.
  void receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink);

  /// To be called at next_deadline() or later, and cheap to call always.
  void on_time(Time now, PacketSink& sink);
  Time next_deadline() const {
    return stalled_.empty() ? deadline_ : std::min(deadline_, retry_due_);
  }

  /// A local port went away: whoever was behind it is dead.
  void on_disconnect(std::uint16_t port_id, Time now, PacketSink& sink);

  /// The loop did not run for so long: what was not heard meanwhile is no silence of the workers.
  void excuse_pause(Duration pause);

  /// Takes the limits and secrets that may change while jobs live from another configuration. Jobs
  /// that live keep their secret.
  void adjust(const EngineConfig& to);

  /// Whether new jobs are refused from now on. Those that live go on, and those that lived at
  /// another aggregator of this shard may come.
  void close(bool closed) { closed_ = closed; }

  /// Takes nobody in any more, and has the members of all jobs told that they are not known here:
  /// they join again where they are. What else they send is answered as before. (Rule 26.)
  void retire(Time now, PacketSink& sink);
  /// Whether all members were told. Some may never be: of them, and of a job that some ranks have
  /// left, no more is known than after a crash.
  bool retired() const;

  /// Ends a job and tells its ranks. False: there is none of this id.
  bool kick(std::uint32_t id, Time now, PacketSink& sink);
  /// Lets an active job run so many streams of this shard at a time, 0: all, until it ends here.
  /// False: there is none of this id.
  bool limit_streams(std::uint32_t id, std::uint16_t streams);

  /// Jobs that are forming or active.
  std::size_t live_jobs() const;
  std::vector<JobFigures> figures_of_jobs(Time now);  ///< of those
  const Counters& counters() const { return counters_; }

 private:
  struct Job {
    Job(const EngineConfig& config, const Serials& serials, std::uint32_t id,
        const std::size_t& buffers_claimed)
        : membership(config, serials, id, buffers_claimed) {}
    Membership membership;
    std::vector<Stream> streams;  // those of this shard, while active; stream s at s / shards
    NarrowestWindow window;
    JobCounters counters;
    std::size_t buffers_claimed = 0;
    RankSet sent_away;            // while this aggregator retires
    Time poll_due = kNever;       // while a rank that wants to leave waits for others
    std::uint16_t poll_next = 0;  // the rank to ask next
    Time stragglers_due = kNever;
    struct Seen {
      Round round{};
      Time since{};
    };
    std::vector<std::optional<Seen>> rounds_seen;  // by stream, with contributions, at that look
  };

  Job* find(std::uint32_t id) {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? nullptr : found->second.get();
  }
  StreamScope scope_of(Job& job, Time now, PacketSink& sink) {
    Membership& m = job.membership;
    const Roster& r = m.roster();
    return {
        r.session(),   r.endpoints(), r.present(), m.record().protection.of(wire::Kind::kResult),
        m.multicast(), job.window,    sink,        counters_,
        job.counters,  now,           scratch_,
    };
  }

  JobFigures figures_of(std::uint32_t id, const Job& job, Time now) const;
  DropReason dispatch(const Endpoint& from, Packet& packet, Buffer buffer, Time now,
                      PacketSink& sink);
  DropReason on_unknown(Job* job, const Endpoint& from, const Packet& packet, Time now);
  JobProtection protection_of(std::uint32_t id);
  template <class T>
  void tell_not_authentic(const Endpoint& from, const Packet& packet,
                          const JobProtection& protection);
  void tell_versions(const Endpoint& from, std::span<const std::byte> datagram, Time now);
  DropReason on_hello(const Endpoint& from, const Packet& packet, Time now);
  DropReason on_join(const Endpoint& from, const Packet& packet, Time now);
  void on_leave(Job& job, Rank rank, const wire::Leave& leave, Time now, PacketSink& sink);
  void poll_laggards(Job& job);
  bool poll(Job& job, Rank rank);
  void send_away(Job& job, const Endpoint& from, const Packet& keep_alive);
  void ask_who_stays(Time now);
  DropReason on_stream(Job& job, Rank rank, const Packet& packet, Buffer buffer, Time now,
                       PacketSink& sink);
  Job* admit(const Endpoint& from, const wire::Join& join, const JobProtection& protection);
  std::optional<AbortInfo> no_room(const wire::Join& join) const;
  std::optional<AbortInfo> too_large(const Session& session) const;
  bool take_memory(Job& job, Time now);
  void settle(Job& job, Time now);
  void abort(Job& job, const AbortInfo& info, Time now, std::optional<Rank> reported_by = {});
  void give_back_memory(Job& job);
  void retry_stalled(Time now, PacketSink& sink);
  void look_for_stragglers(Job& job, Time now);
  void forget_idle_jobs();
  void flush(PacketSink& sink) { counters_.control_packets_lost += control_.flush(sink); }
  void tell(JobEvent event) {
    if (event.name.empty())
      if (const Job* const job = find(event.session.job))
        event.name = job->membership.record().name;
    if (on_event_) on_event_(event);
  }
  /// `name`: of the job, as far as it is known.
  void tell_refused(std::uint32_t job, const std::optional<AbortInfo>& why, std::string name = {}) {
    JobEvent event{.kind = JobEvent::Kind::kRefused, .reason = why};
    event.session.job = job;
    event.name = std::move(name);
    tell(event);
  }

  EngineConfig config_;
  const std::function<void(const JobEvent&)> on_event_;
  // Who has shown where he is, or that he knows the secret, is not kept out by those who have not.
  ReplyBudget proven_replies_;
  ReplyBudget unproven_replies_;
  Serials serials_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Job>> jobs_;
  Time deadline_ = kNever;
  std::vector<Job*> stalled_;  // a stream of theirs may wait for a buffer; retried each turn
  Time retry_due_ = kNever;    // of these
  bool closed_ = false;
  bool retiring_ = false;
  std::size_t buffers_claimed_ = 0;  // by the jobs that are active
  KeyedScratch scratch_;
  ControlPackets control_;
  Counters counters_;
};

}  // namespace sluice::aggregator
