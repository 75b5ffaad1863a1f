// One run of sluice-pktgen: joins, offers its load for a while, ends in order. The loop around the
// generator; Io is the port that it is behind.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "bench/pktgen/generator.hpp"
#include "bench/pktgen/memory_lane.hpp"
#include "bench/pktgen/options.hpp"
#include "bench/pktgen/pacer.hpp"
#include "bench/pktgen/window.hpp"
#include "common/base/idle.hpp"

namespace sluice::pktgen {

/// What is at the other end, as far as this process has to do with it.
struct FarEnd {
  std::function<void(Time)> turn;  ///< called before each turn of the generator
  /// Called when the job has formed, before anything is measured; may wait for others, may be
  /// empty.
  std::function<void(const Session&)> joined{};
  std::function<std::optional<LaneReading>()> reading;
};

struct Report {
  Session session;
  Geometry geometry;
  Window window;               ///< with --find-rate that of the highest rate without loss
  std::vector<Window> trials;  ///< of --find-rate
  Reading total;               ///< from the first packet to the last
  /// Of several lanes, measured side by side: adds another one's.
  void add(const Report& lane);
  bool right() const { return total.tally.results_wrong == 0 && total.tally.results_missed == 0; }
};

/// Whether a trial reached the rate that was asked of it, and lost nothing.
bool sustained(const Window& trial);

/// The trial with the highest rate of those that were sustained, else the first.
const Window& best_of(const std::vector<Window>& trials);

struct Supervision {
  /// Called about once a second, with what happened since the last call; may be empty.
  std::function<void(const Window&)> live;
  std::function<bool()> stopped;  ///< true: somebody wants the report now
};

template <class Io>
class Run {
 public:
  Run(const Options& options, const GeneratorOptions& generator, Io& io, const Endpoint& aggregator,
      FarEnd far_end, Supervision supervision);

  /// Throws Error if the job does not form, or ends before its time.
  Report execute();

 private:
  static constexpr std::size_t kSendBatch = 8;  // with one look at the clock
  static constexpr std::size_t kSendMost = 32;  // in one turn: as many as are received in one

  void join();
  void end();
  Window measure(double rate);
  std::vector<Window> search();
  template <class Until>
  bool drive(Duration at_most, Until until);
  void pass(Duration time);
  std::size_t turn();
  std::size_t send_ready(Time now);
  Reading read();
  void tell_live();

  const Options& options_;
  Io& io_;
  Generator generator_;
  FarEnd far_end_;
  const Supervision supervision_;
  Pacer pacer_;
  Idle idle_;
  std::uint64_t busy_cycles_ = 0;
  Reading last_live_;
};

}  // namespace sluice::pktgen

#include "bench/pktgen/run-inl.hpp"
