// What a stream knows about its running round, beside the contributions, and about the op that it
// belongs to.
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
    kOpening,   ///< the first round of an op
    kResumed,   ///< the first round of a resumed stream, perhaps in the middle of an op
    kFollowing  ///< a further round of the same op
  };
  /// Why a round that has all contributions has not ended.
  enum class Delay : std::uint8_t {
    kNone,
    kAcknowledgement,  ///< a rank is as far behind as the history is long
    kPacketMemory      ///< there was no buffer for the result
  };
  struct Begun {
    Time at{};         ///< when the first contribution came
    WaitCause last{};  ///< the wait that the last one ended: kContribution or kRetransmission
  };

  Kind kind = Kind::kOpening;
  Delay delay = Delay::kNone;
  std::optional<Begun> begun{};
  RankSet repeated_to{};  ///< ranks that got results again since it began

  /// Whether all ranks must contribute and name the op.
  bool opens() const { return kind != Kind::kFollowing; }
};

}  // namespace sluice::aggregator
