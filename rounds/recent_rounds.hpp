// Tells a late round from one that waits in a queue (rule 10 of docs/protocol.md, after RACK, RFC
// 8985). One per shard.
//
//  - Links mostly keep the order of packets. So however long their queues are, a round is late only
//    when one that this rank began clearly after it has ended, or when no round has ended for a
//    time-out.
//  - If a result comes twice after a time-out asked for it, nothing was lost: its packet waited in
//    a longer queue than others. So time-outs are longer while that happens.
//  - A late round may mean that another rank is late, or that another rank lost a packet: each loss
//    makes all ranks ask. The more often that is the reason, the longer this rank waits.
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
    Duration timeout{};         ///< how long no round may end
    Duration reordering{};      ///< how much earlier a later round may end
    bool others_alone = false;  ///< this rank has nothing to repair
  };

  /// When a round is late for which this rank sent a packet at `said` last. The time may become
  /// earlier, when a younger round ends, and later, when an older one does.
  Time late_at(Time said, const Waits& waits) const {
    if (is_overtaken(said, waits)) return after(said, waits.reordering + patience_);
    return after(std::max(said, last_),
                 waits.timeout + slack_ + (waits.others_alone ? patience_ : Duration{}));
  }
  bool is_overtaken(Time said, const Waits& waits) const {
    return youngest_ >= after(said, waits.reordering + patience_);
  }

  /// When to look again at a round that is not late before `late`: often while rounds end.
  Time next_look(Time late, const Waits& waits, Time now) const {
    const bool rounds_end = now - last_ < waits.reordering;
    return rounds_end ? std::min(late, after(now, waits.reordering)) : late;
  }

  /// A result came twice after a time-out asked for it (RFC 8985, section 6.2, step 4).
  void asked_too_soon(Duration timeout) {
    slack_ = std::min(slack_ + timeout / kSlackPerExcess, kMostSlack * timeout);
  }

  /// The outcome of a time-out. in_vain(): the aggregator had everything of this rank, one of so
  /// many. lost(): a packet of this rank was lost.
  void in_vain(Duration timeout, std::uint16_t ranks) {
    patience_ = std::min(patience_ + timeout / (2 * ranks), kMostPatience * timeout);
  }
  void lost(Duration timeout) { patience_ = std::max(patience_ / 2 - timeout, Duration{}); }

 private:
  static constexpr int kMostPatience = 16;
  static constexpr int kSlackPerExcess = 4;
  static constexpr int kMostSlack = 4;
  static constexpr int kRoundsToForget = 1024;

  Time youngest_{};  // the latest begin of the rounds that have ended
  Time last_{};      // when a round ended last
  Duration patience_{};
  Duration slack_{};
};

}  // namespace sluice::rounds
