// One job at its aggregator: its members, the streams of this shard while it is active, and what
// happens beside their rounds: leaving, the search for stragglers, retirement. The engine passes it
// packets only of senders whose tokens are right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "aggregator/engine/engine_context.hpp"
#include "aggregator/engine/job_context.hpp"
#include "aggregator/engine/job_figures.hpp"
#include "aggregator/engine/job_membership.hpp"
#include "aggregator/engine/job_memory.hpp"
#include "aggregator/engine/leaving.hpp"
#include "aggregator/engine/stragglers.hpp"
#include "aggregator/engine/stream.hpp"

namespace sluice::aggregator {

class Job {
 public:
  Job(EngineContext& engine, std::uint32_t id)
      : engine_(engine),
        membership_(engine.config, engine.serials, id, engine.buffers_claimed),
        memory_(engine.config, engine.buffers_claimed),
        context_{engine, membership_} {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const JobMembership& membership() const { return membership_; }

  /// Handles a JOIN whose incarnation is ours and that admission has not refused.
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now);
  /// Handles a packet of this member, which has proven its identity.
  DropReason on_packet(Rank rank, const Endpoint& from, const Packet& packet, Buffer buffer,
                       Time now, PacketSink& sink);

  void on_time(Time now);
  Time next_deadline() const { return std::min(membership_.next_deadline(), stragglers_.due()); }
  /// The only deadline that a member's packet may make earlier.
  Time beacon_due() const { return membership_.members().multicast().beacon_due(); }
  void on_disconnect(std::uint16_t port_id, Time now);
  void excuse_pause(Duration pause);

  /// Retries the rounds that lacked a buffer for their result. Returns true if none does now.
  bool retry_stalled(Time now, PacketSink& sink);

  /// Ends the job or its formation, and tells its ranks. `reported_by` is the rank that reported
  /// it, if one did.
  void abort(const AbortInfo& info, Time now, std::optional<Rank> reported_by = {});
  /// Limits how many streams of this shard an active job runs at a time; 0: no limit.
  void limit_streams(std::uint16_t streams) { context_.window.limit(streams); }

  /// This aggregator retires: the job must go on at the next one.
  void retire(Time now);
  void ask_who_stays() { context_.retirement.ask_who_stays(membership_, engine_.control); }
  /// Whether all members were sent away.
  bool retired() const {
    return !membership_.active() || context_.retirement.still_here(membership_.members()).empty();
  }

  JobFigures figures(Time now);  ///< while the job is forming or active

 private:
  void on_keep_alive(Rank rank, const Endpoint& from, const Packet& packet, Time now);
  DropReason on_leave(Rank rank, const wire::Leave& leave, Time now, PacketSink& sink);
  void let_leave(Rank rank, const wire::Leave& leave, Time now, PacketSink& sink);
  DropReason on_stream(Rank rank, const Packet& packet, Buffer buffer, Time now, PacketSink& sink);
  void settle(Time now);
  bool happened(const JobEvent& event, Time now);
  bool begin_streams(Time now);
  void end_streams();
  void look_for_stragglers(Time now);
  void report(JobEvent event) const;

  EngineContext& engine_;
  JobMembership membership_;
  JobMemory memory_;
  JobContext context_;
  std::vector<Stream> streams_;  // those of this shard, while active; stream s at s / shards
  LeavePolls polls_;
  StragglerWatch stragglers_;
};

}  // namespace sluice::aggregator
