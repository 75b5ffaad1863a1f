// Limits the rate of packets per second: a token bucket.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "common/base/time.hpp"

namespace sluice::pktgen {

class Pacer {
 public:
  /// 0: without a limit.
  void set_rate(double per_second, Time now) {
    per_second_ = per_second;
    tokens_ = 0;
    last_ = now;
  }
  double rate() const { return per_second_; }

  /// How many may go now.
  std::size_t allowance(Time now) {
    if (per_second_ == 0) return std::numeric_limits<std::size_t>::max();
    const std::chrono::duration<double> passed = now - last_;
    last_ = now;
    tokens_ = std::min(tokens_ + passed.count() * per_second_, most());
    return static_cast<std::size_t>(tokens_);
  }
  void spend(std::size_t packets) { tokens_ -= static_cast<double>(packets); }

 private:
  /// For how long a pause of the generator can be made up: a scheduler's tick, so that other
  /// processes on its core do not reduce the rate.
  double most() const { return std::max(32.0, per_second_ * 0.01); }

  double per_second_ = 0;
  double tokens_ = 0;
  Time last_{};
};

}  // namespace sluice::pktgen
