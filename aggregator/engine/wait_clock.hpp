// Charges the time of one stream: each moment once, to what the stream waits for.
#pragma once

#include "aggregator/engine/waits.hpp"
#include "common/base/time.hpp"

namespace sluice::aggregator {

class WaitClock {
 public:
  explicit WaitClock(Time now) : since_(now) {}

  /// The stream has waited for `cause` since the last charge.
  void charge(WaitCause cause, Time now, WaitTimes& times) {
    if (now <= since_) return;
    times[cause] += now - since_;
    since_ = now;
  }
  /// The lane did not run for so long: charges this time to the pause.
  void excuse_pause(Duration pause, WaitTimes& times) {
    times[WaitCause::kPause] += pause;
    since_ += pause;
  }

 private:
  Time since_;
};

}  // namespace sluice::aggregator
