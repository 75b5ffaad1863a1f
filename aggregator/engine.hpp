// The aggregator engine: packets and the time come in, packets go out. No I/O, threads, clocks or
// DPDK types; the same objects serve a lane of the daemon and the simulator.
//
// receive() finds the job, proves the sender by its token and hands the packet to the job's
// membership or stream. One engine serves one shard: a daemon's lane.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aggregator/config.hpp"
#include "aggregator/counters.hpp"
#include "aggregator/membership.hpp"
#include "aggregator/stream.hpp"

namespace sluice::aggregator {

/// Something an operator wants to read of; made in the control plane only.
struct JobEvent {
  enum class Kind { kFormed, kResumed, kLeft, kAborted, kRefused } kind = Kind::kFormed;
  Session session{};                  ///< job always; the rest where formed
  std::optional<AbortInfo> reason{};  ///< of an abort or a refusal
};

template <PacketSink Sink>
class Engine {
 public:
  using Buffer = typename Sink::Buffer;

  /// `on_event` is called from within the other calls; it must not call back.
  explicit Engine(EngineConfig config, std::function<void(const JobEvent&)> on_event = {})
      : config_(std::move(config)), on_event_(std::move(on_event)) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One datagram. Takes the buffer; what it keeps, it bounds by the sessions' sizes.
  void receive(const Endpoint& from, Buffer buffer, Time now, Sink& sink);

  /// To be called at next_deadline() or later, and cheap to call always.
  void on_time(Time now, Sink& sink);
  Time next_deadline() const { return deadline_; }

  /// A local port went away: whoever was behind it is dead.
  void on_hang_up(std::uint16_t port_id, Time now, Sink& sink);

  /// The loop did not run for so long: what was not heard meanwhile is no silence of the workers.
  void excuse_pause(Duration pause);

  /// Refuses new jobs from now on; those that live go on.
  void close() { closed_ = true; }

  /// Ends every job and tells its ranks.
  void shut_down(Time now, Sink& sink);

  /// Jobs that are forming or active.
  std::size_t live_jobs() const;
  const Counters& counters() const { return counters_; }

 private:
  struct Job {
    Job(const EngineConfig& config, std::uint32_t id) : membership(config, id) {}
    Membership membership;
    std::vector<Stream<Sink>> streams;  // those of this shard, while active; stream s at s / shards
    std::size_t buffers_claimed = 0;
    bool stalled = false;    // a stream may wait for a buffer
    Time poll_due = kNever;  // while a rank that wants to leave waits for others
  };

  Job* find(std::uint32_t id) {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? nullptr : found->second.get();
  }
  StreamScope<Sink> scope_of(Job& job, Sink& sink) {
    return {job.membership.session(), job.membership.endpoints(), job.membership.present(), sink,
            counters_};
  }

  DropReason dispatch(const Endpoint& from, const Packet& packet, Buffer buffer, Time now,
                      Sink& sink);
  void on_hello(const Endpoint& from, const wire::Hello& hello);
  DropReason on_join(const Endpoint& from, const wire::Join& join, Time now);
  void on_leave(Job& job, Rank rank, const wire::Leave& leave, Time now);
  void poll_laggards(Job& job);
  DropReason on_stream(Job& job, Rank rank, const Packet& packet, Buffer buffer, Time now,
                       Sink& sink);
  Job* admit(const Endpoint& from, const wire::Join& join);
  std::optional<AbortInfo> no_room() const;
  std::optional<AbortInfo> too_large(const Session& session) const;
  void formed(Job& job);
  void abort(Job& job, const AbortInfo& info);
  void ended(Job& job);
  void retry_stalled(Job& job, Sink& sink);
  void forget_idle_jobs();
  void flush(Sink& sink) { counters_.control_packets_lost += control_.flush(sink); }
  void tell(JobEvent event) {
    if (on_event_) on_event_(event);
  }

  const EngineConfig config_;
  const std::function<void(const JobEvent&)> on_event_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Job>> jobs_;
  std::uint64_t serial_ = 0;  // last one handed out
  std::uint64_t mark_ = 0;    // serials void for jobs that were forgotten
  Time deadline_ = kNever;
  bool any_stalled_ = false;
  bool closed_ = false;
  std::size_t buffers_claimed_ = 0;  // by the jobs that are active
  ControlPackets control_;
  Counters counters_;
};

}  // namespace sluice::aggregator

#include "aggregator/engine-inl.hpp"
