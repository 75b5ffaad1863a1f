#include "rounds/waiting_end.hpp"

#include <algorithm>

namespace sluice::rounds {

WaitingEnd::Came WaitingEnd::on_result(Round round, const WaitingScope& scope) {
  if (round < position_) {
    if (round == timed_out_) {  // it has come twice
      timed_out_ = kNoRound;
      if (!overtaken_) scope.recent.asked_too_soon(scope.rto.value());
      scope.recent.in_vain(scope.rto.value(), scope.ranks);
    }
    return Came::kStale;
  }
  const std::uint64_t ahead = round - position_;
  if (ahead >= history_) return Came::kFuture;
  if (ahead == 0) {
    scope.recent.ended(begun_, scope.now);
    return Came::kAwaited;
  }
  const std::uint64_t bit = std::uint64_t{1} << (ahead - 1);
  if ((early_ & bit) != 0) return Came::kTwice;
  early_ |= bit;
  if (gap_probed_ == position_) return Came::kEarly;
  gap_probed_ = position_;
  return Came::kNewGap;
}

bool WaitingEnd::next() {
  ++position_;
  held_ = has_asked_ = false;
  backoffs_ = contributions_ = probes_ = 0;
  const bool is_here = (early_ & 1) != 0;
  early_ >>= 1;
  return is_here;
}

WaitingEnd::Say WaitingEnd::on_status(bool awaits_us, bool owes, bool opens,
                                      const WaitingScope& scope) {
  probes_ = 0;
  if (!awaits_us) {
    held_ = true;
    if (!opens) scope.recent.in_vain(scope.rto.value(), scope.ranks);
    return Say::kNothing;
  }
  if (!owes) return Say::kAcknowledgement;
  held_ = false;
  scope.recent.lost(scope.rto.value());
  return Say::kContribution;
}

void WaitingEnd::contributed(Time now) {
  ++contributions_;
  contributed_at_ = now;
  acknowledged_ = position_;
}

void WaitingEnd::probed(Time now) {
  ++probes_;
  has_asked_ = true;
  probed_at_ = now;
  acknowledged_ = position_;
}

/// A packet to a group may be lost for all ranks, so they ask at different times.
RecentRounds::Waits WaitingEnd::waits(bool owes, const WaitingScope& scope) const {
  const Duration timeout = scope.rto.backed_off(backoffs_);
  const Duration reordering =
      std::min(scope.rto.reordering() * (1 << std::min(backoffs_, 8u)), timeout);
  const Duration own = scope.by_group ? timeout * scope.rank.value / (4 * scope.ranks) : Duration{};
  return {.timeout = timeout + own, .reordering = reordering + own, .others_alone = held_ || !owes};
}

void WaitingEnd::await(bool owes, const WaitingScope& scope) {
  said_ = scope.now;
  const RecentRounds::Waits waits = this->waits(owes, scope);
  due_ = after(scope.now, std::min(waits.timeout, waits.reordering));
}

WaitingEnd::Say WaitingEnd::on_timer(bool owes, const WaitingScope& scope) {
  const RecentRounds::Waits waits = this->waits(owes, scope);
  if (const Time late = scope.recent.late_at(said_, waits); scope.now < late) {
    due_ = scope.recent.next_look(late, waits, scope.now);
    return Say::kNothing;
  }
  timed_out_ = position_;
  overtaken_ = scope.recent.is_overtaken(said_, waits);
  back_off();
  if (unanswered_++ == 0) unanswered_since_ = scope.now;
  return owes && !held_ && backoffs_ > 1 ? Say::kContribution : Say::kProbe;
}

void WaitingEnd::forget_what_was_said() {
  held_ = has_asked_ = false;
  gap_probed_ = kNoRound;
  backoffs_ = contributions_ = probes_ = unanswered_ = 0;
  early_ = 0;
}

void WaitingEnd::resume_at(Round position) {
  position_ = acknowledged_ = position;
  backoffs_ = 0;
}

}  // namespace sluice::rounds
