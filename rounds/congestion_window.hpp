// On how many of a shard's streams a rank contributes at a time (rule 8 of docs/protocol.md). One
// per shard and rank.
//
// N ranks send to one aggregator at a time, and queues on the way may overflow. So a session begins
// with few streams, and each round that ends adds one more until all run (slow start, RFC 5681).
// The window shrinks when many DATA are lost. Any link loses some at random; these do not matter.
// The window also shrinks while packets wait in queues for longer than a link needs to stay busy
// (after Swift, SIGCOMM'20). So jobs that share a link get equal shares of it, with any number of
// streams. All ranks of a job use the minimum of their windows, which the aggregator announces.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"

namespace sluice::rounds {

/// A round of an op on a stream, as it is ordered. Ranks let the lowest rounds of a shard run. The
/// lowest of all runs on every rank, with any width of window, so it ends. So all streams of an op
/// advance together, and as many run as the window allows until it ends. Its first stream comes
/// first: there the aggregator sees whether all ranks mean the same op.
struct RunOrder {
  OpNumber op = 0;
  std::uint64_t round = 0;  // of the op on the stream
  std::uint16_t place = 0;  // of the stream, counted from the op's first one
  std::uint16_t stream = 0;
  auto operator<=>(const RunOrder&) const = default;
};

class CongestionWindow {
 public:
  /// A session of so many ranks begins, whose shard has so many streams; packets may take
  /// `round_trip_max` there and back.
  void begin(unsigned streams, unsigned ranks, Duration round_trip_max) {
    *this = {};
    most_ = streams;
    round_trip_max_ = round_trip_max;
    const unsigned few = std::max(kFewOfAll / ranks, 1u);
    least_ = std::min(few, kLeast);
    first_ = std::min(few, kFirst);
    by_loss_ = by_delay_ = std::min(streams, first_);
    is_open_ = width() == most_;
    starts_by_loss_ = starts_by_delay_ = !is_open_;
  }

  unsigned width() const { return std::min<unsigned>(own(), narrowest_); }
  /// The window of this rank, without the limit that other ranks set.
  std::uint16_t own() const { return static_cast<std::uint16_t>(std::min(by_loss_, by_delay_)); }
  /// Nothing is held back.
  bool is_open() const { return is_open_; }
  bool lets_run(RunOrder order) const { return is_open_ || order <= last_; }
  /// All rounds up to this one may run; `all`: there is none behind it.
  void let_run(RunOrder last, bool all) {
    last_ = last;
    is_open_ = all && width() == most_;
  }

  /// A round to which this rank contributed has ended.
  void arrived() {
    ++rounds_since_verdict_;
    if (starts_by_delay_ || may_try_one_more()) {
      by_delay_ = std::min(by_delay_ + 1, most_);
      rounds_since_verdict_ = 0;
    }
    if (++arrived_ < kEpoch && !starts_by_loss_) return;
    if (lost_ == 0) {
      by_loss_ = std::min(by_loss_ + 1, most_);
    } else if (lost_ >= kManyLost && by_loss_ > least_) {
      --by_loss_;
      is_open_ = false;
    }
    starts_by_loss_ = starts_by_loss_ && by_loss_ < most_;
    arrived_ = lost_ = 0;
  }
  /// A packet that was sent at `at` did not arrive. True: too many are lost, and the window shrank.
  bool lost(Time at, Time now) {
    if (at <= narrowed_) return false;  // it was sent before the window shrank
    if (++lost_ < kMostLost) return false;
    narrowed_ = now;
    arrived_ = lost_ = 0;
    if (by_loss_ <= least_) return false;
    by_loss_ = std::max(width() / 2, least_);
    is_open_ = starts_by_loss_ = false;
    return true;
  }

  /// DATA and its answer took so long together, and only because of the path. True: packets wait
  /// too long there, and the window shrank.
  bool round_trip(Duration took, Time now) {
    if (now - took < watched_from_) return false;
    nearest_ = std::min(nearest_, took);
    shortest_ = std::min(shortest_, took);
    const Duration most = this->most();
    starts_by_delay_ = starts_by_delay_ && took <= most;
    if (++round_trips_ < kRoundTrips) return false;
    const Duration shortest = shortest_;
    rounds_since_verdict_ = 0;
    watch_from(now);
    if (shortest <= most) {
      by_delay_ = std::min(by_delay_ + 1, most_);
      return false;
    }
    if (width() <= first_) return false;
    const double excess =
        static_cast<double>((shortest - most).count()) / static_cast<double>(shortest.count());
    const double less = std::max(excess / 2, kLeastCut) * width();
    by_delay_ = std::max(width() - static_cast<unsigned>(std::ceil(less)), first_);
    is_open_ = false;
    return true;
  }
  /// The minimum of all ranks' windows, as the aggregator announces it, or 0. If this rank let more
  /// streams run, their packets would only wait there.
  void on_narrowest(std::uint16_t width, Time now) {
    if (width == 0) return;
    if (width < this->width()) watch_from(now);
    narrowest_ = width;
    is_open_ = is_open_ && width >= most_;
  }
  /// The loop received no packets for a while before `now`. So the round-trip times of the packets
  /// that are on their way cannot be known.
  void watch_from(Time now) {
    watched_from_ = now;
    shortest_ = kLongest;
    round_trips_ = 0;
  }

  /// An aggregator has taken this rank in again. It may be another one, on another path.
  void path_changed(Time now) {
    nearest_ = kLongest;
    narrowest_ = std::numeric_limits<std::uint16_t>::max();
    watch_from(now);
  }

 private:
  Duration most() const { return std::max(round_trip_max_, kMostOfNearest * nearest_); }
  /// Other ranks complete nearly all rounds, so this rank cannot measure; and the times that it did
  /// measure are not too long.
  bool may_try_one_more() const {
    return rounds_since_verdict_ >= kEpoch && (round_trips_ == 0 || shortest_ <= most());
  }

  static constexpr unsigned kFirst = 8;
  static constexpr unsigned kLeast = 4;
  static constexpr unsigned kFewOfAll = 512;  // DATA of all ranks: most queues hold so many
  static constexpr unsigned kEpoch = 128;     // DATA, over which losses are counted
  static constexpr unsigned kManyLost = 6;    // of them
  static constexpr unsigned kMostLost = 10;
  static constexpr unsigned kRoundTrips = 8;  // the shortest of them tells how long queues are
  static constexpr double kLeastCut = 0.125;  // in proportion: so windows become equal
  static constexpr int kMostOfNearest = 2;    // times the shortest of the session: for a long path
  static constexpr Duration kLongest = Duration::max() / 4;

  unsigned most_ = 0;
  Duration round_trip_max_{};
  bool is_open_ = true;
  RunOrder last_;

  unsigned by_loss_ = 0;
  unsigned least_ = 0;
  unsigned first_ = 0;
  bool starts_by_loss_ = false;  // slow start: nothing was lost yet
  unsigned arrived_ = 0;
  unsigned lost_ = 0;
  Time narrowed_{};

  std::uint16_t narrowest_ = std::numeric_limits<std::uint16_t>::max();

  unsigned by_delay_ = 0;
  bool starts_by_delay_ = false;  // slow start: no packet has waited too long yet
  Duration nearest_ = kLongest;
  Duration shortest_ = kLongest;  // of those since watched_from_
  unsigned round_trips_ = 0;
  unsigned rounds_since_verdict_ = 0;  // or since one more stream was tried
  Time watched_from_{};
};

}  // namespace sluice::rounds
