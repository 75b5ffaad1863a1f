// The aggregator engine: packets and the time come in, packets go out. No I/O, threads, clocks or
// DPDK types; the same objects serve a lane of the daemon and the simulator.
//
// receive() finds the job, proves the sender by its token and hands the packet to the job; packets
// of others go to admission. One engine serves one shard: a daemon's lane.
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

  /// One datagram. Takes the buffer; what it keeps, it bounds by the sessions' sizes.
  void receive(const Endpoint& from, Buffer buffer, Time now, PacketSink& sink);

  /// To be called at next_deadline() or later, and cheap to call always.
  void on_time(Time now, PacketSink& sink);
  Time next_deadline() const { return std::min(deadline_, context_.stalled.due()); }

  /// A local port went away: whoever was behind it is dead.
  void on_disconnect(std::uint16_t port_id, Time now, PacketSink& sink);

  /// The loop did not run for so long: what was not heard meanwhile is no silence of the workers.
  void excuse_pause(Duration pause);

  /// Takes the limits and secrets that may change while jobs live from another configuration. Jobs
  /// that live keep their secret.
  void adjust(const EngineConfig& to);

  /// Whether new jobs are refused from now on. Those that live go on, and those that lived at
  /// another aggregator of this shard may come.
  void close(bool closed) { admission_.close(closed); }

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
