// Where the blocks of a round lie that go by reference: in a slot of shared memory, as they would
// lie in a packet. A slot belongs to a stream and a round, and is used again `depth` rounds later.
//
// A rank's slots keep its contributions to H + 1 rounds, as its packets would (rule 3 of
// docs/protocol.md); an aggregator's slots keep the results of H rounds (rule 4). So what may be
// read, or must be replayed, lies there still, and recovery is the same as with packets.
#pragma once

#include <cstddef>
#include <span>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/session.hpp"

namespace sluice {

template <class Byte>
class Slots {
 public:
  Slots() = default;
  /// `region` has bytes_for(streams, depth) at least.
  Slots(std::span<Byte> region, std::size_t streams, std::size_t depth)
      : region_(region.first(bytes_for(streams, depth))), depth_(depth) {}

  static constexpr std::size_t bytes_for(std::size_t streams, std::size_t depth) {
    return streams * depth * limits::kReferencedRoundBytes;
  }

  bool empty() const { return region_.empty(); }
  /// Of the `stream`-th of the streams.
  std::span<Byte> at(std::size_t stream, Round round) const {
    const std::size_t slot = stream * depth_ + round.value % depth_;
    return region_.subspan(slot * limits::kReferencedRoundBytes, limits::kReferencedRoundBytes);
  }

 private:
  std::span<Byte> region_;
  std::size_t depth_ = 1;
};

/// A rank's contributions, to all streams.
template <class Byte>
Slots<Byte> contribution_slots(std::span<Byte> region, const Session& session) {
  return {region, session.streams, session.history + std::size_t{1}};
}
/// A shard's results, of the streams that it serves.
template <class Byte>
Slots<Byte> result_slots(std::span<Byte> region, const Session& session) {
  return {region, session.streams_of(session.shard), session.history};
}

/// Bytes of these regions.
inline std::size_t contribution_slots_bytes(const Session& session) {
  return Slots<std::byte>::bytes_for(session.streams, session.history + std::size_t{1});
}
inline std::size_t result_slots_bytes(const Session& session) {
  return Slots<std::byte>::bytes_for(session.streams_of(session.shard), session.history);
}

}  // namespace sluice
