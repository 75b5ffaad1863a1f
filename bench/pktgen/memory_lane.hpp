// A lane of an aggregator in this process, behind a MemoryLink: the daemon's loop around the same
// engine, with a clock for its stages. Its caller makes its turns, or it has a thread.
#pragma once

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include <pthread.h>

#include "aggregator/engine/engine.hpp"
#include "bench/pktgen/stage_clock.hpp"
#include "common/net/datagram_io.hpp"
#include "common/net/memory_link.hpp"

namespace sluice::pktgen {

/// Sums since the start.
struct LaneReading {
  aggregator::Counters engine;
  net::IoCounters io;
  StageCycles cycles;
};

class MemoryLane {
 public:
  static constexpr std::uint16_t kUdpPort = 4747;  ///< of lane 0

  MemoryLane(std::uint16_t lane, aggregator::EngineConfig config, const net::MemoryLink& link,
             net::BufferPool& payloads, net::BufferPool& headers, const net::FaultPlan& faults);
  ~MemoryLane();
  MemoryLane(const MemoryLane&) = delete;
  MemoryLane& operator=(const MemoryLane&) = delete;

  /// Polls once. Not to be called once it has a thread.
  void turn(Time now);

  /// From now on it runs on a thread of its own, on this core.
  void start_thread(int cpu);

  LaneReading reading();

 private:
  void run();
  void excuse_pause(Time now);
  LaneReading read() const { return {engine_.counters(), io_.counters(), clock_.sums()}; }

  StageClock clock_;
  const Duration long_turn_;
  std::optional<Time> last_turn_;
  net::DatagramIo io_;
  aggregator::Engine engine_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<std::promise<LaneReading>*> asked_{nullptr};  // to be answered between two turns
};

/// Lets a thread run only on this core. Throws Error kInvalidArgument.
void pin(pthread_t thread, int cpu);

}  // namespace sluice::pktgen
