// What a stream knows of its running round, beside the contributions to it, and of the op that the
// round is of.
#pragma once

#include <cstdint>
#include <optional>

#include "aggregator/engine/waits.hpp"
#include "common/base/ids.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// An op, as its first contribution describes it.
struct RunningOp {
  enum class Sums : std::uint8_t { kBlocks, kPairs };

  OpNumber number = 0;
  Rank named_by{};
  Sums sums = Sums::kBlocks;
  wire::Descriptor descriptor{};
};

/// The state of a running round. It begins with its kind; packets bring the rest.
struct RunningRound {
  enum class Kind : std::uint8_t {
    kOpening,   ///< an op's first one
    kResumed,   ///< the one with which a stream was resumed, perhaps amidst an op
    kFollowing  ///< of the same op as the last one
  };
  /// Why a round that has all contributions has not ended.
  enum class Delay : std::uint8_t {
    kNone,
    kAcknowledgement,  ///< a rank is as far behind as the history is long
    kPacketMemory      ///< there was no buffer for the result
  };
  struct Begun {
    Time at{};         ///< when the first contribution came
    WaitCause last{};  ///< what has ended with the last one: kContribution or kRetransmission
  };

  Kind kind = Kind::kOpening;
  Delay delay = Delay::kNone;
  std::optional<Begun> begun{};
  RankSet repeated_to{};  ///< ranks that were sent results again since it began

  /// All ranks contribute, and name the op.
  bool opens() const { return kind != Kind::kFollowing; }
};

}  // namespace sluice::aggregator
