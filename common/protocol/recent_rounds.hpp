// Tells a late round from one that waits in a queue (rule 10 of docs/protocol.md, after RACK, RFC
// 8985). One per shard.
//
//  - Links mostly keep the order of packets. So however long their queues are, a round is late only
//    when one that this rank began a time-out after it has ended, or when no round has ended for a
//    time-out.
//  - Where this rank has nothing to repair, a time-out mostly means that another rank is late. The
//    more often that proves so, the longer it is patient.
#pragma once

#include <algorithm>

#include "common/base/time.hpp"

namespace sluice {

class RecentRounds {
 public:
  /// A round has ended that this rank began at `begun`.
  void ended(Time begun, Time now) {
    youngest_ = std::max(youngest_, begun);
    last_ = std::max(last_, now);
  }

  /// When a round is late about which this rank said something at `said` last: it may be sooner, if
  /// a younger one ends, and later, if an older one does. `patient`: it may be others' alone.
  Time late_at(Time said, Duration timeout, bool patient) const {
    const Duration wait = patient ? timeout + patience_ : timeout;
    const Time at = after(said, wait);
    return youngest_ >= at ? at : after(std::max(said, last_), wait);
  }

  /// What became of a time-out: the aggregator had all of this rank, or lacked a packet.
  void in_vain(Duration timeout) {
    patience_ = std::min(patience_ + timeout / kVainPerLost, kMostPatience * timeout);
  }
  void lost(Duration timeout) { patience_ = std::max(patience_ - timeout, Duration{}); }

 private:
  static constexpr int kVainPerLost = 8;
  static constexpr int kMostPatience = 16;

  Time youngest_{};  // when it was begun, of the rounds that have ended
  Time last_{};      // when a round ended last
  Duration patience_{};
};

}  // namespace sluice
