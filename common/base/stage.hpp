// Where a lane's cycles go: the engine reports each change of its work, and an observer may count.
// Without an observer that costs one branch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

enum class Stage : std::uint8_t {
  kReceive,   ///< polling the ports, headers
  kValidate,  ///< checks of a packet itself, and of its job, rank, stream and round
  kSum,       ///< adding blocks
  kBuild,     ///< writing results, and encoding their sums
  kTransmit,  ///< headers, passing frames to the ports
  kOther,     ///< timers, control packets, housekeeping
};
inline constexpr std::size_t kStages = 6;

class StageObserver {
 public:
  /// The lane works on `stage` from now on.
  virtual void enter(Stage stage) = 0;

 protected:
  ~StageObserver() = default;
};

}  // namespace sluice
