// Keeps the lanes of a run in step, each on its own thread: all join one session, measure each
// trial at the same time, and stay until the last one has left. Nothing here blocks: a lane that
// waits for the others continues polling, as their frames may come to its queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/rate_search.hpp"
#include "bench/pktgen/window.hpp"
#include "common/protocol/session.hpp"

namespace sluice::pktgen {

/// Throws Error kInvalidArgument if several lanes were requested and the aggregator has fewer. If
/// one was requested, its lane 0 is measured, however many it has.
void check_lanes(const Options& options, std::size_t of_aggregator);

class Lockstep {
 public:
  /// `stopped` is as in Supervision.
  Lockstep(const Options& options, std::function<bool()> stopped);

  /// Lane 0 has joined this session, and the others must join it, too. Throws as check_lanes()
  /// does.
  void decide(const Session& session);
  /// Nothing before decide().
  std::optional<Session> decided() const;

  /// A lane has reached the next point, at which all lanes meet. `trial` is what it has measured
  /// since the last point. Returns the number of the point, for passed(). At each point, either all
  /// lanes have a trial or none has.
  unsigned arrive(std::uint16_t lane, std::optional<Window> trial);
  bool passed(unsigned point) const { return point < passed_.load(std::memory_order_acquire); }

  /// Call it when a point was passed. How many DATA packets per second all lanes together must
  /// offer in the next trial; 0: as many as possible; nothing: there is no further trial.
  std::optional<double> next_rate() const { return next_rate_; }

  /// A lane has failed, so all must end. The reason of the first one is kept.
  void fail(std::exception_ptr why);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Call it when all lanes have ended.
  void rethrow_failure() const;
  /// The measurements of each lane, by trial.
  const std::vector<std::vector<Window>>& trials() const { return trials_; }

 private:
  void choose_next_rate();

  const Options& options_;
  const std::function<bool()> stopped_;
  std::mutex mutex_;
  std::size_t arrived_ = 0;                    // lanes at the next point; guarded by mutex_
  std::vector<std::vector<Window>> trials_;    // guarded by mutex_
  std::vector<std::optional<Window>> coming_;  // by lane; guarded by mutex_
  std::optional<RateSearch> search_;           // guarded by mutex_
  std::exception_ptr failure_;                 // guarded by mutex_
  Session session_;                            // written before decided_ is set
  std::optional<double> next_rate_;            // written before passed_ grows
  std::atomic<bool> is_decided_{false};
  std::atomic<unsigned> passed_{0};  // points
  std::atomic<bool> failed_{false};
};

}  // namespace sluice::pktgen
