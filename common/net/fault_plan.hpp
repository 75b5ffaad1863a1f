// Which faults are injected into the traffic of a port, and how a setting says so:
//   seed=7,loss=0.01,duplicate=0.01,reorder=0.02,flip=0.001,direction=both
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::net {

/// The faults, each with its probability per frame.
struct FaultPlan {
  std::uint64_t seed = 1;
  double loss = 0;
  double duplicate = 0;  ///< the copy goes first
  /// The frame is held back until up to `overtaking` others, or 2 ms, have passed.
  double reorder = 0;
  double flip = 0;  ///< of one bit of a UDP payload, which UDP's checksum does not show
  std::uint16_t overtaking = 8;
  bool receiving = true;
  bool sending = true;

  bool any() const { return loss > 0 || duplicate > 0 || reorder > 0 || flip > 0; }
  friend bool operator==(const FaultPlan&, const FaultPlan&) = default;
};

/// Reads a list as above. What it does not name keeps its default; an empty list has no faults.
/// direction is rx, tx or both. Throws kInvalidArgument with `name`, the value and what is
/// expected.
FaultPlan parse_faults(std::string_view text, std::string_view name = "faults");

}  // namespace sluice::net
