// The aggregator engine: packets and the time come in, packets go out. It has no I/O, threads,
// clocks or DPDK types; the same objects serve a lane of the daemon and the simulator.
//
// receive() finds the job, checks the sender's token and passes the packet to the job. Packets of
// other senders go to admission. One engine serves one shard: a daemon's lane.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "aggregator/engine/admission.hpp"
#include "aggregator/engine/engine_context.hpp"
#include "aggregator/engine/job_table.hpp"

namespace sluice::aggregator {

class Engine {
 public:
  /// `on_event` is called from within the other calls; it must not call back.
  explicit Engine(EngineConfig config, std::function<void(const JobEvent&)> on_event = {})
      : context_{.config = std::move(config), .on_event = std::move(on_event)} {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Handles one datagram and takes its buffer. The sessions' sizes bound what it keeps.
  void receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink);

  /// Must be called at next_deadline() or soon after. An early call is cheap.
  void on_time(Time now, PacketSink& sink);
  Time next_deadline() const { return std::min(deadline_, context_.stalled.due()); }

  /// A local port was removed: the process behind it has ended.
  void on_disconnect(std::uint16_t port_id, Time now, PacketSink& sink);

  /// The loop did not run for so long. This time does not count as silence of the workers.
  void excuse_pause(Duration pause);

  /// Copies the settings that may change while jobs live, limits and secrets, from another
  /// configuration. Live jobs keep their secret.
  void adjust(const EngineConfig& to);

  /// Whether new jobs are refused from now on. Live jobs go on, and jobs that lived at another
  /// aggregator of this shard may join.
  void close(bool closed) { admission_.close(closed); }

  /// Admits no rank any more, and answers the KEEPALIVEs of all members as those of unknown
  /// senders, so that they join the next aggregator (rule 26). Other packets are answered as
  /// before.
  void retire(Time now, PacketSink& sink);
  /// Whether all members were sent away. This may never become true: a member may send no
  /// KEEPALIVE, and a job that some ranks have left is not sent away. Their ranks find out as after
  /// a crash.
  bool retired() const;

  /// Ends a job and tells its ranks. Returns false if there is no job of this id.
  bool kick(std::uint32_t id, Time now, PacketSink& sink);
  /// Limits how many streams of this shard an active job runs at a time, until it ends here; 0: no
  /// limit. Returns false if there is no active job of this id.
  bool limit_streams(std::uint32_t id, std::uint16_t streams);

  std::size_t live_jobs() const { return jobs_.live(); }  ///< forming or active
  std::vector<JobFigures> figures_of_jobs(Time now);      ///< of those
  const Counters& counters() const { return context_.counters; }

 private:
  DropReason dispatch(const Endpoint& from, Packet& packet, Buffer buffer, Time now,
                      PacketSink& sink);
  DropReason on_joiner(const Endpoint& from, const Packet& packet, Time now);
  void ask_who_stays(Time now);
  void flush(PacketSink& sink) {
    context_.counters.control_packets_lost += context_.control.flush(sink);
  }

  EngineContext context_;
  JobTable jobs_{context_};
  Admission admission_{context_, jobs_};
  Time deadline_ = kNever;
};

}  // namespace sluice::aggregator
