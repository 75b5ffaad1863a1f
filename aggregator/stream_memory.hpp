// What one stream of a session takes when its job forms, so that no packet has to take anything but
// a buffer for a result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "aggregator/keyed_combiner.hpp"
#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// Of blocks that go by reference so many bytes are added at once: with the accumulator they stay
/// in the first cache, and memory is read in long pieces.
inline constexpr std::size_t kReferencedSumBytes = std::size_t{16} << 10;

/// Room for every column's accumulator: fp16 doubles, 4 bits become 32, and each column is aligned.
/// Blocks that go by reference share one; a scaled one has no more elements than one of fp32 in a
/// packet.
inline std::size_t accumulator_bytes(const Session& s) {
  if (s.by_reference) return 2 * std::max<std::size_t>(kReferencedSumBytes, s.payload_bytes);
  return 8 * std::size_t{s.payload_bytes} + widest_columns(s) * numeric::kAccumulatorAlignment;
}

/// Bytes of a stream, with the packets that it may hold. Where blocks go by reference its sums lie
/// in the job's region.
inline std::size_t stream_bytes(const Session& s) {
  const std::size_t packet = s.payload_bytes + std::size_t{256};
  const std::size_t references =
      s.ranks * (widest_columns(s) * (sizeof(void*) + sizeof(std::int16_t)) + 2 * sizeof(void*));
  return accumulator_bytes(s) + (s.by_reference ? references : 0) +
         s.ranks * (widest_columns(s) * sizeof(BlockIndex) + sizeof(wire::Descriptor) +
                    KeyedCombiner::kBytesOfRank) +
         packet * (std::size_t{s.ranks} + s.history);
}

/// Bytes of a job at this shard. Its region for sums counts as long as a lane's share may be.
inline std::size_t job_bytes(const Session& s, std::uint16_t lanes) {
  const std::size_t region = s.by_reference ? limits::kResultsBytes / lanes : 0;
  return s.streams_of(s.shard) * stream_bytes(s) + region;
}

/// Packet buffers that a stream may keep: results, a contribution of each rank, one under way.
inline std::size_t stream_buffers(const Session& s) {
  return limits::stream_buffers(s.ranks, s.history);
}

}  // namespace sluice::aggregator
