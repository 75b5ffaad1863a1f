// The end of a stream that waits for the results of its rounds, one after the other: which round it
// awaits, which results came early, what it has said of the round awaited, and when it has to say
// something again (rules 7 to 11 of docs/protocol.md). It has no packets: whoever owns it sends
// what it asks for, and says so. The other end is RoundLog with Contributions.
//
//  - A round that takes too long is asked about with a PROBE, which costs little: mostly another
//    rank is late. Only then is the contribution sent again.
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
  /// `history`: so many results are kept at the other end; limits::kMinHistory to kMaxHistory.
  explicit WaitingEnd(std::uint8_t history) : history_(history) {
    assert(history >= limits::kMinHistory && history <= limits::kMaxHistory);
  }

  Round position() const { return position_; }                   ///< the round awaited
  Round acknowledged_position() const { return acknowledged_; }  ///< as the other end was told last
  std::uint8_t history() const { return history_; }
  /// Of the round awaited.
  bool has_contributed() const { return contributions_ > 0; }
  bool has_contributed_once() const { return contributions_ == 1; }
  /// Whether the time from contributed_at() to its result is a round trip: what was asked for after
  /// a time-out may have been lost before (Karn's rule).
  bool measures_round_trip() const { return contributions_ == 1 && !has_asked_; }
  Time contributed_at() const { return contributed_at_; }  ///< last
  /// One PROBE was sent since the last progress: its answer measures a round trip.
  bool has_probed_once() const { return probes_ == 1; }
  Time probed_at() const { return probed_at_; }
  /// Bit i: the result of round position() + 1 + i is here.
  std::uint64_t early() const { return early_; }

  // ------------------------------------------------------------------------------ what arrives
  enum class Came {
    kAwaited,
    kEarly,   ///< keep it: it is one of early() now
    kNewGap,  ///< the same, and the first that shows a gap: send a PROBE
    kTwice,   ///< early, and here before
    kStale,
    kFuture,  ///< of no round that can have ended
  };
  Came on_result(Round round, const WaitingScope& scope);
  /// The round awaited has ended: the next one is. Whether its result is here.
  bool next();
  /// The round awaited begins here.
  void begin(Time now) { begun_ = now; }
  /// It is the first one of an op, of which nothing was said.
  void begin_op() {
    held_ = has_asked_ = false;
    backoffs_ = contributions_ = probes_ = 0;
  }

  enum class Say { kNothing, kContribution, kAcknowledgement, kProbe };
  /// Of the round awaited the other end says that it is late, and whether for us. `owes`: this
  /// round needs a contribution of ours; `opens`: it is an op's first.
  Say on_status(bool awaits_us, bool owes, bool opens, const WaitingScope& scope);

  // ---------------------------------------------------------------------------- what was said
  void contributed(Time now);
  void acknowledged() { acknowledged_ = position_; }
  void probed(Time now);
  /// So many rounds ended without a word of ours that the other end may need one.
  bool owes_acknowledgement() const { return position_ - acknowledged_ >= history_ / 2u; }

  // ------------------------------------------------------------------------------------- time
  Time due() const { return due_; }
  void rest() { due_ = kNever; }
  void look_at(Time due) { due_ = due; }
  /// Something was said of the round awaited, or nothing need be.
  void await(bool owes, const WaitingScope& scope);
  /// At due() or later. What to say; kNothing: it is not late yet. An op's contribution that could
  /// not be sent, or is held back no longer, is sent without it.
  Say on_timer(bool owes, const WaitingScope& scope);
  /// It was not answered: the next time-out is twice as long.
  void back_off() { ++backoffs_; }

  /// Anything came from the other end.
  void answered() { unanswered_ = 0; }
  /// So often, and for so long, was nothing answered. (Of one stream among many so much may be lost
  /// by chance.)
  bool is_unanswered(Duration since, Time now) const {
    return unanswered_ >= kMany && now - unanswered_since_ >= since;
  }

  // ---------------------------------------------------------------------------- another epoch
  /// The other end is a new one that knows nothing of what was said, and will tell where it begins.
  void forget_what_was_said();
  void resume_at(Round position);

 private:
  static constexpr unsigned kMany = 8;

  RecentRounds::Waits waits(bool owes, const WaitingScope& scope) const;

  std::uint8_t history_;
  bool held_ = false;       // the other end has our contribution: others are late
  bool has_asked_ = false;  // of the round awaited, by a PROBE
  bool overtaken_ = false;  // the last that timed out did as a younger one had ended
  unsigned backoffs_ = 0;
  unsigned contributions_ = 0;  // to the round awaited, all but the first again
  unsigned probes_ = 0;         // since the last progress
  unsigned unanswered_ = 0;     // times that the other end was asked, since it has answered
  Round position_{};
  Round acknowledged_{};
  std::uint64_t early_ = 0;
  Round gap_probed_ = kNoRound;  // the position at which a gap was
  Round timed_out_ = kNoRound;   // the last that did, until it is known that it did so too soon
  Time due_ = kNever;
  Time begun_{};  // when the round awaited was
  Time said_{};   // when something was said of it last
  Time contributed_at_{};
  Time probed_at_{};
  Time unanswered_since_{};
};

}  // namespace sluice::rounds
