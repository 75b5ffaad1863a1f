// Keeps the lanes of a run in step, each on a thread of its own: all join one session, measure each
// trial at the same time, and stay until the last one has left. Nothing here blocks: a lane that
// waits for the others goes on polling, because their frames may come to its queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "bench/pktgen/options.hpp"
#include "bench/pktgen/rate_search.hpp"
#include "bench/pktgen/window.hpp"
#include "common/protocol/session.hpp"

namespace sluice::pktgen {

/// Throws Error kInvalidArgument if several lanes were asked for, and the aggregator has not as
/// many. Where one was, its lane 0 is measured, however many it has.
void check_lanes(const Options& options, std::size_t of_aggregator);

class Lockstep {
 public:
  /// `stopped` as in Supervision.
  Lockstep(const Options& options, std::function<bool()> stopped);

  /// Lane 0 has joined this session: the others are to join it, too. Throws as check_lanes().
  void decide(const Session& session);
  /// Nothing until then.
  std::optional<Session> decided() const;

  /// A lane is at the next point at which all meet; `trial`: what it has measured since the last
  /// one. Returns the point, for passed(). Either all lanes come with a trial to a point, or none.
  unsigned arrive(std::uint16_t lane, std::optional<Window> trial);
  bool passed(unsigned point) const { return point < passed_.load(std::memory_order_acquire); }

  /// At a point that was passed: DATA packets a second that all lanes together are to offer in the
  /// next trial, 0: as many as possible; nothing: there is none.
  std::optional<double> next_rate() const { return next_rate_; }

  /// A lane cannot go on, so none can. The first one's reason is kept.
  void fail(std::exception_ptr why);
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // When all lanes have ended.
  void rethrow_failure() const;
  /// What each lane measured, by trial.
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
  Session session_;                            // once it is decided, which is set after it
  std::optional<double> next_rate_;            // likewise passed_
  std::atomic<bool> is_decided_{false};
  std::atomic<unsigned> passed_{0};  // points
  std::atomic<bool> failed_{false};
};

}  // namespace sluice::pktgen
