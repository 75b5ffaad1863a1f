// One run of sluice-pktgen: it joins, offers its load for a while, and ends in order. This is the
// loop around the generator of one lane; Io is the generator's port.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "bench/pktgen/generator.hpp"
#include "bench/pktgen/lockstep.hpp"
#include "bench/pktgen/memory_lane.hpp"
#include "bench/pktgen/pacer.hpp"
#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/window.hpp"
#include "common/base/idle.hpp"

namespace sluice::pktgen {

/// The other end, if it is in this process.
struct FarEnd {
  std::function<void(Time)> turn;  ///< called before each turn of the generator
  std::function<std::optional<LaneReading>()> reading;
};

/// The result of a lane's run, without the windows of its trials, which Lockstep has.
struct LaneRun {
  Session session;
  Geometry geometry;
  Reading total;  ///< from the first packet to the last
};

struct Supervision {
  /// Called about once a second on each lane's thread, with what has happened there since the last
  /// call; may be empty.
  std::function<void(std::uint16_t lane, const Window&)> live;
  std::function<bool()> stopped;  ///< true: the user wants the report now
};

template <class Io>
class Run {
 public:
  Run(const Options& options, const GeneratorOptions& generator, Io& io, const Endpoint& aggregator,
      FarEnd far_end, const Supervision& supervision, Lockstep& lockstep);

  /// Throws Error if the job does not form or ends early, or if another lane has failed.
  LaneRun execute();

 private:
  static constexpr Duration kNoLimit = Duration::max();
  static constexpr Duration kPause = std::chrono::milliseconds(100);  // of this thread, at least
  static constexpr std::size_t kSendBatch = 8;  // between two looks at the clock
  static constexpr std::size_t kSendMost = 32;  // in one turn; as many as are received in one

  LaneRun go_through();
  void join();
  void end();
  Window measure(double rate);
  void await_others(std::optional<Window> trial = {});
  template <class Until>
  bool drive(Duration at_most, Until until);
  void pass(Duration time);
  std::size_t turn();
  std::size_t send_ready(Time now);
  Reading read();
  void tell_live();

  const Options& options_;
  const std::uint16_t lane_;
  Io& io_;
  Generator generator_;
  FarEnd far_end_;
  const Supervision& supervision_;
  Lockstep& lockstep_;
  Pacer pacer_;
  Idle idle_;
  std::uint64_t busy_cycles_ = 0;
  std::optional<Reading> last_live_;  // nothing until it has joined
};

}  // namespace sluice::pktgen

#include "bench/pktgen/run-inl.hpp"
