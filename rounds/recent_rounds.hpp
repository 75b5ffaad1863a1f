// Tells a late round from one that waits in a queue (rule 10 of docs/protocol.md, after RACK, RFC
// 8985). One per shard.
//
//  - Links mostly keep the order of packets. So however long their queues are, a round is late only
//    when one that this rank began clearly after it has ended, or when no round has ended for a
//    time-out.
//  - Where a result that was asked for after a time-out comes twice, nothing was lost: its packet
//    has waited in a longer queue than others'. So time-outs allow for more while that happens.
//  - A late round may mean that another rank is late, or has lost something: each loss makes all
//    ranks ask. The more often that proves so beyond this, the longer this rank is patient.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/time.hpp"

namespace sluice::rounds {

class RecentRounds {
 public:
  /// A round has ended that this rank began at `begun`.
  void ended(Time begun, Time now) {
    youngest_ = std::max(youngest_, begun);
    last_ = std::max(last_, now);
    slack_ -= slack_ / kRoundsToForget;
  }

  struct Waits {
    Duration timeout{};         ///< without any round that ends
    Duration reordering{};      ///< by how much later rounds may end sooner
    bool others_alone = false;  ///< this rank has nothing to repair
  };

  /// When a round is late about which this rank said something at `said` last: it may be sooner, if
  /// a younger one ends, and later, if an older one does.
  Time late_at(Time said, const Waits& waits) const {
    if (is_overtaken(said, waits)) return after(said, waits.reordering + patience_);
    return after(std::max(said, last_),
                 waits.timeout + slack_ + (waits.others_alone ? patience_ : Duration{}));
  }
  bool is_overtaken(Time said, const Waits& waits) const {
    return youngest_ >= after(said, waits.reordering + patience_);
  }

  /// When to look again at one that is not late before `late`: often while rounds end.
  Time next_look(Time late, const Waits& waits, Time now) const {
    const bool rounds_end = now - last_ < waits.reordering;
    return rounds_end ? std::min(late, after(now, waits.reordering)) : late;
  }

  /// After a time-out a result was asked for, and has come twice (RFC 8985, section 6.2, step 4).
  void asked_too_soon(Duration timeout) {
    slack_ = std::min(slack_ + timeout / kSlackPerExcess, kMostSlack * timeout);
  }

  /// What became of a time-out: the aggregator had all of this one of so many ranks, or a packet of
  /// it was lost.
  void in_vain(Duration timeout, std::uint16_t ranks) {
    patience_ = std::min(patience_ + timeout / (2 * ranks), kMostPatience * timeout);
  }
  void lost(Duration timeout) { patience_ = std::max(patience_ / 2 - timeout, Duration{}); }

 private:
  static constexpr int kMostPatience = 16;
  static constexpr int kSlackPerExcess = 4;
  static constexpr int kMostSlack = 4;
  static constexpr int kRoundsToForget = 1024;

  Time youngest_{};  // when it was begun, of the rounds that have ended
  Time last_{};      // when a round ended last
  Duration patience_{};
  Duration slack_{};
};

}  // namespace sluice::rounds
