// One job at its aggregator: who belongs to it, the streams of this shard while it is active, and
// what goes on beside their rounds: leaving, the look for stragglers, retirement. The engine hands
// it packets of senders that it has proven.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "aggregator/engine/engine_context.hpp"
#include "aggregator/engine/job_context.hpp"
#include "aggregator/engine/job_figures.hpp"
#include "aggregator/engine/job_memory.hpp"
#include "aggregator/engine/leaving.hpp"
#include "aggregator/engine/membership.hpp"
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

  const Membership& membership() const { return membership_; }

  /// A JOIN whose incarnation is ours, and which the engine does not refuse.
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now);
  /// A packet of this member, which has proven who it is.
  DropReason on_packet(Rank rank, const Endpoint& from, const Packet& packet, Buffer buffer,
                       Time now, PacketSink& sink);

  void on_time(Time now);
  Time next_deadline() const { return std::min(membership_.next_deadline(), stragglers_.due()); }
  /// A deadline that packets of members may change; the others only pass.
  Time beacon_due() const { return membership_.members().multicast().beacon_due(); }
  void on_disconnect(std::uint16_t port_id, Time now);
  void excuse_pause(Duration pause);

  /// Tries the rounds again that lacked a buffer for their result. True if none does now.
  bool retry_stalled(Time now, PacketSink& sink);

  /// Ends the job, or its forming, and tells its ranks. `reported_by`: which of them said so.
  void abort(const AbortInfo& info, Time now, std::optional<Rank> reported_by = {});
  /// Lets an active job run so many streams of this shard at a time, 0: all.
  void limit_streams(std::uint16_t streams) { context_.window.limit(streams); }

  /// This aggregator retires: the job is to go on at the next one.
  void retire(Time now);
  void ask_who_stays() { context_.retirement.ask_who_stays(membership_, engine_.control); }
  /// Whether all members were told to go.
  bool retired() const {
    return !membership_.active() || context_.retirement.still_here(membership_.members()).empty();
  }

  JobFigures figures(Time now);  ///< of one that is forming or active

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
  Membership membership_;
  JobMemory memory_;
  JobContext context_;
  std::vector<Stream> streams_;  // those of this shard, while active; stream s at s / shards
  LeavePolls polls_;
  StragglerWatch stragglers_;
};

}  // namespace sluice::aggregator
