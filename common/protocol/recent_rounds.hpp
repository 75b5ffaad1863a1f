// Tells a late round from one that waits in a queue (rule 10 of docs/protocol.md, after RACK, RFC
// 8985). One per shard.
//
//  - Links mostly keep the order of packets. So however long their queues are, a round is late only
//    when one that this rank began a time-out after it has ended, or when no round has ended for a
//    time-out.
//  - Where a result that was asked for comes twice, nothing was lost: its packet has waited in a
//    longer queue than others'. So time-outs allow for more, as long as that happens.
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
    slack_ -= slack_ / kRoundsToForget;
  }

  /// After a time-out a result was asked for, and has come twice (RFC 8985, section 6.2, step 4).
  void asked_too_soon(Duration timeout) {
    slack_ = std::min(slack_ + timeout / kSlackPerExcess, kMostSlack * timeout);
  }

  /// When a round is late about which this rank said something at `said` last: it may be sooner, if
  /// a younger one ends, and later, if an older one does. `patient`: it may be others' alone.
  Time late_at(Time said, Duration timeout, bool patient) const {
    const Duration wait = timeout + slack_ + (patient ? patience_ : Duration{});
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
  static constexpr int kSlackPerExcess = 4;
  static constexpr int kMostSlack = 4;
  static constexpr int kRoundsToForget = 1024;

  Time youngest_{};  // when it was begun, of the rounds that have ended
  Time last_{};      // when a round ended last
  Duration patience_{};
  Duration slack_{};
};

}  // namespace sluice
