// Who computes the UDP checksum of what we send. A received checksum is always verified.
#pragma once

#include <cstdint>

namespace sluice {

enum class UdpChecksum : std::uint8_t {
  kAuto,      ///< none for ports in shared memory; otherwise the port if it can, or software
  kNone,      ///< none: it is sent as 0, "no checksum"
  kSoftware,  ///< this library
  kOffload,   ///< the port
};

}  // namespace sluice
