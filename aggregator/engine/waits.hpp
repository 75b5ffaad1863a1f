// What the streams of a job wait for, and for how long. A stream waits for one thing at any moment.
// When that changes, the time is charged to the old cause, so the times of all causes add up to the
// time of all streams.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/time.hpp"

namespace sluice::aggregator {

enum class WaitCause : std::uint8_t {
  kNoOp,             ///< no rank has begun an op
  kNextRound,        ///< an op runs, and no rank has contributed since the last result
  kContribution,     ///< some ranks have contributed, and others have not
  kRetransmission,   ///< the last contribution, or the result before it, was sent again
  kAcknowledgement,  ///< a rank is as far behind as the history is long
  kPacketMemory,     ///< there is no buffer for the result
  kRecovery,         ///< ranks go on with progress that they made at another aggregator
  kRetirement,       ///< this aggregator sends the ranks away
  kPause,            ///< the lane did not run
};
inline constexpr std::array<std::string_view, 9> kWaitCauseNames{
    "no_op",         "next_round", "contribution", "retransmission", "acknowledgement",
    "packet_memory", "recovery",   "retirement",   "pause",
};

class WaitTimes {
 public:
  Duration& operator[](WaitCause cause) { return times_[static_cast<std::size_t>(cause)]; }
  Duration operator[](WaitCause cause) const { return times_[static_cast<std::size_t>(cause)]; }

  WaitTimes& operator+=(const WaitTimes& other) {
    for (std::size_t i = 0; i < times_.size(); ++i) times_[i] += other.times_[i];
    return *this;
  }

  /// Calls f(name, time) for each cause.
  template <class F>
  void for_each(F&& f) const {
    for (std::size_t i = 0; i < times_.size(); ++i) f(kWaitCauseNames[i], times_[i]);
  }

 private:
  std::array<Duration, kWaitCauseNames.size()> times_{};
};

}  // namespace sluice::aggregator
