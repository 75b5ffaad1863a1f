// The end of a stream that waits for the results of its rounds, one after the other. It knows which
// round it awaits, which results came early, what it sent for that round, and when it must send
// again (rules 7 to 11 of docs/protocol.md). It has no packets: its owner sends what it asks for,
// and reports that. The other end is RoundLog with Contributions.
//
//  - If a round takes too long, a PROBE asks about it. That costs little: mostly another rank is
//    late. The contribution is sent again only after that.
//  - Once a result comes ahead of the one awaited, a PROBE asks for the gap, once.
//  - A timer runs while a round is awaited; an end that rests has none.
#pragma once

#include <cassert>
#include <cstdint>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/base/time.hpp"
#include "rounds/recent_rounds.hpp"
#include "rounds/rto.hpp"

namespace sluice::rounds {

inline constexpr Round kNoRound{~std::uint64_t{0}};

/// What an end needs for the length of one call.
struct WaitingScope {
  const RetransmissionTimeout& rto;  ///< of the path to the other end
  RecentRounds& recent;              ///< of all streams on that path
  Rank rank;                         ///< whose end it is
  std::uint16_t ranks;               ///< of the job
  bool by_group;                     ///< results come by multicast
  Time now;
};

class WaitingEnd {
 public:
  /// `history`: how many results the other end keeps; limits::kMinHistory to kMaxHistory.
  explicit WaitingEnd(std::uint8_t history) : history_(history) {
    assert(history >= limits::kMinHistory && history <= limits::kMaxHistory);
  }

  Round position() const { return position_; }                   ///< the round awaited
  Round acknowledged_position() const { return acknowledged_; }  ///< as sent last
  std::uint8_t history() const { return history_; }
  /// Whether this end has contributed to the round awaited.
  bool has_contributed() const { return contributions_ > 0; }
  bool has_contributed_once() const { return contributions_ == 1; }
  /// Whether the time from contributed_at() to the result is a round trip. After a time-out it is
  /// not: the packet may have been lost before (Karn's rule).
  bool measures_round_trip() const { return contributions_ == 1 && !has_asked_; }
  Time contributed_at() const { return contributed_at_; }  ///< last
  /// One PROBE was sent since the last progress, so its answer measures a round trip.
  bool has_probed_once() const { return probes_ == 1; }
  Time probed_at() const { return probed_at_; }
  /// Bit i: the result of round position() + 1 + i is here.
  std::uint64_t early() const { return early_; }

  // ------------------------------------------------------------------------------ what arrives
  enum class Came {
    kAwaited,
    kEarly,   ///< the caller keeps it: it is one of early() now
    kNewGap,  ///< the same, and it is the first that shows a gap: the caller sends a PROBE
    kTwice,   ///< it is early, and came before
    kStale,
    kFuture,  ///< its round cannot have ended
  };
  Came on_result(Round round, const WaitingScope& scope);
  /// The round awaited has ended: awaits the next one. Returns whether its result is here.
  bool next();
  /// The round awaited begins here.
  void begin(Time now) { begun_ = now; }
  /// The round awaited is the first one of an op: nothing was sent for it.
  void begin_op() {
    held_ = has_asked_ = false;
    backoffs_ = contributions_ = probes_ = 0;
  }

  enum class Say { kNothing, kContribution, kAcknowledgement, kProbe };
  /// The other end says that the round awaited is late, and whether it waits for us. `owes`: this
  /// round needs a contribution of ours; `opens`: it is an op's first.
  Say on_status(bool awaits_us, bool owes, bool opens, const WaitingScope& scope);

  // ---------------------------------------------------------------------------- what was said
  void contributed(Time now);
  void acknowledged() { acknowledged_ = position_; }
  void probed(Time now);
  /// So many rounds ended without a packet of ours that the other end may need the position.
  bool owes_acknowledgement() const { return position_ - acknowledged_ >= history_ / 2u; }

  // ------------------------------------------------------------------------------------- time
  Time due() const { return due_; }
  void rest() { due_ = kNever; }
  void look_at(Time due) { due_ = due; }
  /// A packet was sent for the round awaited, or none is needed: starts the timer.
  void await(bool owes, const WaitingScope& scope);
  /// To be called at due() or later. Returns what to send; kNothing: the round is not late yet. An
  /// op's contribution that could not be sent, or waited for the window, is sent without this call.
  Say on_timer(bool owes, const WaitingScope& scope);
  /// Nothing answered: the next time-out is twice as long.
  void back_off() { ++backoffs_; }

  /// A packet came from the other end.
  void answered() { unanswered_ = 0; }
  /// Whether nothing was answered for so long, and after several attempts. (With many streams, one
  /// of them may lose so much by chance.)
  bool is_unanswered(Duration since, Time now) const {
    return unanswered_ >= kMany && now - unanswered_since_ >= since;
  }

  // ---------------------------------------------------------------------------- another epoch
  /// The other end is a new one. It knows nothing of what was sent, and will tell where it begins.
  void forget_what_was_said();
  void resume_at(Round position);

 private:
  static constexpr unsigned kMany = 8;

  RecentRounds::Waits waits(bool owes, const WaitingScope& scope) const;

  std::uint8_t history_;
  bool held_ = false;       // the other end has our contribution: others are late
  bool has_asked_ = false;  // a PROBE asked about the round awaited
  bool overtaken_ = false;  // the last time-out came as a younger round had ended
  unsigned backoffs_ = 0;
  unsigned contributions_ = 0;  // to the round awaited; all except the first are repeats
  unsigned probes_ = 0;         // since the last progress
  unsigned unanswered_ = 0;     // requests since the other end answered last
  Round position_{};
  Round acknowledged_{};
  std::uint64_t early_ = 0;
  Round gap_probed_ = kNoRound;  // the position when a PROBE asked for a gap
  Round timed_out_ = kNoRound;   // the last that did, until it is known to be too soon
  Time due_ = kNever;
  Time begun_{};  // when the round awaited began
  Time said_{};   // when a packet was sent for it last
  Time contributed_at_{};
  Time probed_at_{};
  Time unanswered_since_{};
};

}  // namespace sluice::rounds
