// Why a packet was not used. Every drop has a name and a counter.
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
  kBadIntegrity,    ///< damaged on its way: the CRC32C does not match
  // Membership: the packet is well-formed, but must not be used.
  kNoIntegrity,     ///< without a CRC32C, which is required
  kNotAuthentic,    ///< without the required trailer, or with a wrong one
  kRateLimited,     ///< unauthenticated, and its source has used up its answers
  kWrongDirection,  ///< an upstream packet at a worker, a downstream one at an aggregator
  kUnknownJob,
  kUnknownToken,  ///< answered by REFUSED, ABORT or LEFT
  kWrongIncarnation,
  kBadChallenge,  ///< a JOIN whose challenge is not ours, or was sent to another address
  kStaleJoin,     ///< formation has seen a later serial, or another nonce
  kBadJoin,       ///< answered by ABORT
  kNotJoined,     ///< the session is not in the state for this packet
  kWrongEpoch,    ///< of another formation, or without the delivery token
  // Streams.
  kBadStream,    ///< beyond the session's streams, or of another shard
  kStaleRound,   ///< below the position: it was applied, or it is finished and was not asked for
  kDuplicate,    ///< a contribution that was added already, or a result that was received already
  kFutureRound,  ///< beyond what the rules permit: the peer is defective
  kUnfitting,    ///< conflicts with the current round: op, shape, index or ownership
  kNoBuffer,     ///< the pool was empty
  kCount,
};

inline constexpr std::size_t kDropReasonCount = static_cast<std::size_t>(DropReason::kCount);

std::string_view name(DropReason reason);

/// How many packets were dropped for each reason.
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
