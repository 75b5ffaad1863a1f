// A process's own clock: off by an offset, fast or slow, never backwards.
#pragma once

#include "common/base/time.hpp"

namespace sluice::sim {

class Clock {
 public:
  Clock(Duration offset, double drift) : offset_(offset), drift_(drift) {}

  Time local(Time real) const {
    const double error = static_cast<double>(real.time_since_epoch().count()) * drift_;
    return real + offset_ + Duration{static_cast<Duration::rep>(error)};
  }

  /// The first real time at which this clock shows at least `shown`.
  Time real(Time shown) const {
    const auto since = static_cast<double>((shown - offset_).time_since_epoch().count());
    Time guess{Duration{static_cast<Duration::rep>(since / (1 + drift_))} - Duration{2}};
    while (local(guess) < shown) guess += Duration{1};
    return guess;
  }

 private:
  Duration offset_;
  double drift_;
};

}  // namespace sluice::sim
