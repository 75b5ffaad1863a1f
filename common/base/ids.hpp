// Strong types for the numbers of the protocol, so that a rank cannot be used as a stream.
#pragma once

#include <compare>
#include <cstdint>

#include "common/base/limits.hpp"

namespace sluice {

/// One member of a job, 0..N-1.
struct Rank {
  std::uint16_t value = 0;
  friend auto operator<=>(Rank, Rank) = default;
};

/// An independent sequence of rounds, 0..S-1 over all aggregators of a job.
struct StreamId {
  std::uint16_t value = 0;
  friend auto operator<=>(StreamId, StreamId) = default;
};

/// One exchange on a stream. It counts up within a generation, across ops. 64 bits never wrap: with
/// a round every nanosecond they last 584 years.
struct Round {
  std::uint64_t value = 0;
  friend auto operator<=>(Round, Round) = default;
  friend Round operator+(Round r, std::uint64_t n) { return {r.value + n}; }
  friend std::uint64_t operator-(Round a, Round b) { return a.value - b.value; }
  Round& operator++() { return ++value, *this; }
};

/// The index of a block in its tensor.
struct BlockIndex {
  std::uint32_t value = 0;
  friend auto operator<=>(BlockIndex, BlockIndex) = default;
};

/// "No further block": larger than every index, so that the minimum over workers works.
inline constexpr BlockIndex kNoBlock{0xFFFF'FFFF};

/// The number of a collective call within a job's generation, in call order.
using OpNumber = std::uint64_t;

using limits::kMaxRanks;

}  // namespace sluice
