// Retransmission time-out after RFC 6298, for one path. Back-off is per stream and not kept here.
#pragma once

#include <algorithm>

#include "common/base/limits.hpp"
#include "common/base/time.hpp"

namespace sluice::rounds {

class RetransmissionTimeout {
 public:
  struct Limits {
    Duration min = defaults::kRetransmitTimeoutMin;
    Duration max = std::chrono::seconds(2);             // at least the floor
    Duration initial = std::chrono::milliseconds(200);  // until the first sample
  };

  explicit RetransmissionTimeout(Limits limits) : limits_(limits) {
    limits_.max = std::max(limits_.max, limits_.min);
    value_ = std::clamp(limits_.initial, limits_.min, limits_.max);
  }

  /// A round-trip time measured on a packet that was sent once (Karn's rule).
  void sample(Duration rtt) {
    if (rtt < Duration::zero()) return;
    rtt = std::min(rtt, limits_.max);  // longer ones tell no more, and could overflow
    if (!measured_) {
      measured_ = true;
      smoothed_ = rtt;
      variation_ = rtt / 2;
    } else {
      const Duration error = smoothed_ > rtt ? smoothed_ - rtt : rtt - smoothed_;
      variation_ += (error - variation_) / 4;
      smoothed_ += (rtt - smoothed_) / 8;
    }
    value_ = std::clamp(smoothed_ + 4 * variation_, limits_.min, limits_.max);
  }

  Duration value() const { return value_; }
  Duration smoothed() const { return smoothed_; }

  /// By how much packets may overtake each other (RFC 8985, section 6.2).
  Duration reordering() const { return std::max(limits_.min, smoothed_) / 4; }

  /// The time-out after `backoffs` expiries without progress.
  Duration backed_off(unsigned backoffs) const {
    const Duration::rep factor = Duration::rep{1} << std::min(backoffs, 62u);
    return value_ > limits_.max / factor ? limits_.max : value_ * factor;
  }

 private:
  Limits limits_;
  Duration value_{};
  Duration smoothed_{};
  Duration variation_{};
  bool measured_ = false;
};

}  // namespace sluice::rounds
