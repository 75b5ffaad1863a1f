// Memory that the ranks of a host read where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

class MateMemory {
 public:
  virtual ~MateMemory() = default;

  /// Where bytes of this rank lie, if its mates reach them.
  virtual std::optional<Place> place_of(std::span<const std::byte> bytes) = 0;
  /// A mate's. Null: it has no such memory, or no more. Until this is called again they stay
  /// readable; what they are the mate may change at any time.
  virtual const std::byte* read_at(LocalRank mate, const Place& place, std::uint64_t bytes) = 0;
};

}  // namespace sluice::worker::host
