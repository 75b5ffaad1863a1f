// Memory of a rank that the other ranks of its host read where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

class PeerAccess {
 public:
  virtual ~PeerAccess() = default;

  /// Where these bytes of this rank lie, if other ranks can access them.
  virtual std::optional<Place> place_of(std::span<const std::byte> bytes) = 0;
  /// The memory of a peer. Null if it has no such memory, or no longer has it. The bytes stay
  /// readable until the next call; the peer may change them at any time.
  virtual const std::byte* read_at(LocalRank peer, const Place& place, std::uint64_t bytes) = 0;
};

}  // namespace sluice::worker::host
