// What a process runs on: its address, clock, buffers, receive ring and loop. The loop turns when a
// packet comes or when the engine's deadline is reached; not while the process is paused.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "tests/sim/clock.hpp"
#include "tests/sim/outages.hpp"
#include "tests/sim/sink.hpp"

namespace sluice::sim {

/// What all processes of a simulation share.
struct World {
  Events& events;
  Network& network;
  const Scenario& scenario;
  Random& random;
  Outages outages;
  Coverage coverage;
  bool tracing = false;
};

/// A process that runs on a host. Times are those of the host's clock.
class Process {
 public:
  virtual ~Process() = default;
  virtual void on_packet(const Arrival& arrival, Buffer buffer) = 0;
  /// A turn of the loop without packets, at its deadline or later.
  virtual void on_turn() = 0;
  /// It has not run for so long; `take_packets` passes the packets that came meanwhile.
  virtual void on_pause_over(Duration pause, const std::function<void()>& take_packets) = 0;
};

class Host {
 public:
  Host(World& world, Process& process, Endpoint self);

  void start();  ///< a new life of the process
  void stop();   ///< the process was killed, or has ended
  bool running() const { return running_; }

  Time now() const { return clock_.local(world_.events.now()); }
  /// Makes a turn no later than at this local time.
  void wake(Time deadline);
  /// Runs `what` after the delay, unless the process has ended. A pause delays it further.
  void later(Duration delay, std::function<void()> what);

  void pause(Duration length);
  bool paused() const { return paused_; }

  Sink& sink() { return sink_; }
  const Endpoint& self() const { return sink_.self(); }
  void add_to(Coverage& coverage) const;

 private:
  void arrive(const Arrival& arrival);
  void take(const Arrival& arrival);
  void resume(std::uint64_t incarnation, Time since);

  World& world_;
  Process& process_;
  Sink sink_;
  Clock clock_;
  bool running_ = false;
  std::uint64_t incarnation_ = 0;
  Time wake_at_ = kNever;  // in real time
  bool paused_ = false;
  std::deque<Arrival> ring_;
  std::deque<std::function<void()>> put_off_;
  std::uint64_t pauses_ = 0;
  std::uint64_t ring_overflows_ = 0;
};

}  // namespace sluice::sim
