// One aggregator of the simulation: the engine, and its lives one after the other.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "aggregator/engine.hpp"
#include "tests/sim/counting.hpp"
#include "tests/sim/random.hpp"
#include "tests/sim/sink.hpp"

namespace sluice::sim {

/// What all processes of a simulation share.
struct World {
  Events& events;
  Network& network;
  const Scenario& scenario;
  Random& random;
  bool tracing = false;
};

class AggregatorProcess {
 public:
  AggregatorProcess(World& world, unsigned shard);

  void boot();
  void shut_down();  ///< for good
  void hang_up(std::uint16_t port_id);
  void set_dry(bool dry) { sink_.pool().dry = dry; }

  Endpoint endpoint() const { return sink_.self(); }
  bool up() const { return engine_ != nullptr; }
  bool idle() const { return !up() || engine_->live_jobs() == 0; }
  std::size_t buffers_in_use() { return sink_.pool().live; }
  unsigned crashes() const { return crashes_; }
  bool ended() const { return ended_; }
  /// When the newest KEEPALIVE of the rank that says something new came in.
  Time last_sign(std::uint32_t job, unsigned rank) const;
  /// Counters of all its lives.
  const Coverage& totals();

 private:
  void receive(const Endpoint& from, const Bytes& datagram);
  void note_sign(const Bytes& datagram);
  void on_event(const aggregator::JobEvent& event);
  void settle();
  void check() const;
  void wake(Time at);
  void on_wake(std::uint64_t life);
  void crash();

  World& world_;
  const unsigned shard_;
  Sink sink_;
  Random ids_;
  std::unique_ptr<aggregator::Engine<Sink>> engine_;
  std::deque<Crash> crashes_to_come_;
  unsigned crashes_ = 0;
  std::uint64_t life_ = 0;
  bool ended_ = false;
  Time wake_at_ = kNever;
  std::unordered_map<std::uint32_t, std::size_t> bounds_;  // job -> most buffers it may hold
  struct Sign {
    std::uint64_t token = 0;
    std::uint64_t number = 0;
    Time at{};
  };
  std::unordered_map<std::uint64_t, Sign> signs_;  // by job and rank
  Coverage totals_;
};

}  // namespace sluice::sim
