// The memory that one stream of a session takes when its job forms. After that, a packet takes only
// a buffer for a result.
#pragma once

#include <cstddef>

#include "aggregator/engine/keyed_combiner.hpp"
#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/numeric/kernels.hpp"
#include "common/protocol/geometry.hpp"
#include "common/protocol/session.hpp"
#include "common/protocol/wire.hpp"

namespace sluice::aggregator {

/// Room for every column's accumulator. Its elements are at most 8 times larger: fp16 doubles, 4
/// bits become 32. Each column is aligned.
inline std::size_t accumulator_bytes(const Session& s) {
  return 8 * std::size_t{s.payload_bytes} + widest_columns(s) * numeric::kAccumulatorAlignment;
}

/// The bytes of a stream, including the packets that it may hold.
inline std::size_t stream_bytes(const Session& s) {
  const std::size_t packet = s.payload_bytes + std::size_t{256};
  return accumulator_bytes(s) +
         s.ranks * (widest_columns(s) * sizeof(BlockIndex) + sizeof(wire::Descriptor) +
                    KeyedCombiner::kBytesOfRank) +
         packet * (std::size_t{s.ranks} + s.history);
}

/// The bytes of a job at this shard.
inline std::size_t job_bytes(const Session& s) {
  return s.streams_of(s.shard) * stream_bytes(s);
}

/// The packet buffers that a stream may keep: results, a contribution of each rank, one in flight.
inline std::size_t stream_buffers(const Session& s) {
  return limits::stream_buffers(s.ranks, s.history);
}

}  // namespace sluice::aggregator
