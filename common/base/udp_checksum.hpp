// Who computes the UDP checksum of what we send. Receiving always verifies one that is there.
#pragma once

#include <cstdint>

namespace sluice {

enum class UdpChecksum : std::uint8_t {
  kAuto,      ///< none on ports that are shared memory, else the port if it can, else we
  kNone,      ///< nobody: sent as 0, "no checksum"
  kSoftware,  ///< we
  kOffload,   ///< the port
};

}  // namespace sluice
