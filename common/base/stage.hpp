// Where a lane's cycles go: the engine says what it turns to, and an observer that wants to know
// counts. Without one that costs a branch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

enum class Stage : std::uint8_t {
  kReceive,   ///< polling the ports, headers
  kValidate,  ///< a packet's own checks, and those of job, rank, stream and round
  kSum,       ///< adding blocks
  kBuild,     ///< writing results, and rewriting their sums for the wire
  kTransmit,  ///< headers, handing to the ports
  kOther,     ///< timers, control packets, housekeeping
};
inline constexpr std::size_t kStages = 6;

class StageObserver {
 public:
  /// From now on the lane is busy with `stage`.
  virtual void enter(Stage stage) = 0;

 protected:
  ~StageObserver() = default;
};

}  // namespace sluice
