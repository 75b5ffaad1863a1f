// Why a packet was not used: every drop has a name and is counted under it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

enum class DropReason : std::uint8_t {
  kNone,  ///< not dropped
  // The codec: the packet is not well-formed.
  kTooShort,
  kBadMagic,
  kBadVersion,
  kBadKind,         ///< unknown, or reserved
  kBadLength,       ///< header, kind and payload disagree about the length
  kBadFlags,        ///< a flag this version does not know
  kBadEnumeration,  ///< element type, reduction, collective or reason out of range
  kBadShape,        ///< element count, block elements, columns or scale out of range
  kBadIndex,        ///< a block index beyond the tensor, or out of order
  kBadIntegrity,    ///< damaged on its way: not what the sender computed the CRC32C of
  // Membership: well-formed, but not ours to use.
  kNoIntegrity,     ///< without a CRC32C where one is demanded
  kNotAuthentic,    ///< without a trailer where one is demanded, or with a wrong one
  kRateLimited,     ///< unauthenticated, and one too many of its source to get an answer
  kWrongDirection,  ///< an upstream packet at a worker, a downstream one at an aggregator
  kUnknownJob,
  kUnknownToken,  ///< answered by REFUSED, ABORT or LEFT
  kWrongIncarnation,
  kBadChallenge,  ///< a JOIN whose challenge is not ours, or went to another address
  kStaleJoin,     ///< a serial that formation has passed, or another nonce
  kBadJoin,       ///< answered by ABORT
  kNotJoined,     ///< the session is not in the state the packet is for
  kWrongEpoch,    ///< of another formation, or without the delivery token
  // Streams.
  kBadStream,    ///< beyond the session's streams, or another shard's
  kStaleRound,   ///< below the position: applied, or finished and not asked for
  kDuplicate,    ///< a contribution that is already in, a result that is already held
  kFutureRound,  ///< beyond what the rules allow: a defect of the peer
  kUnfitting,    ///< does not fit the running round: op, shape, index or ownership
  kNoBuffer,     ///< the pool was empty
  kCount,
};

inline constexpr std::size_t kDropReasonCount = static_cast<std::size_t>(DropReason::kCount);

std::string_view name(DropReason reason);

/// How often each reason dropped a packet.
class DropCounters {
 public:
  void count(DropReason reason) { ++counts_[static_cast<std::size_t>(reason)]; }
  std::uint64_t operator[](DropReason reason) const {
    return counts_[static_cast<std::size_t>(reason)];
  }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (std::size_t i = 1; i < kDropReasonCount; ++i) sum += counts_[i];
    return sum;
  }
  DropCounters& operator+=(const DropCounters& other) {
    for (std::size_t i = 0; i < kDropReasonCount; ++i) counts_[i] += other.counts_[i];
    return *this;
  }

 private:
  std::array<std::uint64_t, kDropReasonCount> counts_{};
};

}  // namespace sluice
