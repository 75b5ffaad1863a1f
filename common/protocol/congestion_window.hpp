// On how many of a shard's streams a rank contributes at a time (rule 8 of docs/protocol.md). One
// per shard and rank.
//
// N ranks send to one aggregator at a time, and queues on the way may overflow. So a session begins
// with few streams, each round that ends brings one more until all run (slow start, RFC 5681), and
// when many DATA are lost there are fewer. Some are lost at random on any link, and slow nobody.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"

namespace sluice {

/// An op on a stream. Ranks let the lowest of a shard run: the lowest of all runs on every rank,
/// however wide their windows are, and comes to its end.
struct Turn {
  OpNumber op = 0;
  std::uint16_t stream = 0;
  auto operator<=>(const Turn&) const = default;
};

class CongestionWindow {
 public:
  /// A session begins with so many streams; `at_once`: there are no queues on the way.
  void begin(unsigned streams, bool at_once) {
    most_ = streams;
    width_ = at_once ? streams : std::min(streams, kFirst);
    is_open_ = width_ == most_;
    starts_ = !is_open_;
    last_ = {};
    arrived_ = lost_ = 0;
  }

  unsigned width() const { return width_; }
  /// Nothing is held back.
  bool is_open() const { return is_open_; }
  bool lets_run(Turn turn) const { return is_open_ || turn <= last_; }
  /// All up to this one may run; `all`: there is none behind it.
  void let_run(Turn last, bool all) {
    last_ = last;
    is_open_ = all && width_ == most_;
  }

  /// A round to which this rank contributed has ended.
  void arrived() {
    if (++arrived_ < kEpoch && !starts_) return;
    if (lost_ == 0) {
      width_ = std::min(width_ + 1, most_);
    } else if (lost_ >= kManyLost && width_ > kLeast) {
      --width_;
      is_open_ = false;
    }
    starts_ = starts_ && width_ < most_;
    arrived_ = lost_ = 0;
  }
  /// One that went out at `at` did not arrive. True: too many, and the window is narrower now.
  bool lost(Time at, Time now) {
    if (at <= narrowed_) return false;  // what was sent before says nothing of the width now
    if (++lost_ < kMostLost) return false;
    narrowed_ = now;
    arrived_ = lost_ = 0;
    if (width_ <= kLeast) return false;
    width_ = std::max(width_ / 2, kLeast);
    is_open_ = starts_ = false;
    return true;
  }

 private:
  static constexpr unsigned kFirst = 8;
  static constexpr unsigned kEpoch = 128;   // DATA, over which losses are counted
  static constexpr unsigned kManyLost = 6;  // of them
  static constexpr unsigned kMostLost = 10;
  static constexpr unsigned kLeast = 4;

  unsigned most_ = 0;
  unsigned width_ = 0;
  bool is_open_ = true;
  bool starts_ = false;
  Turn last_;
  unsigned arrived_ = 0;
  unsigned lost_ = 0;
  Time narrowed_{};
};

}  // namespace sluice
