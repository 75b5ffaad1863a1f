// The real clock. Loops read it once per turn and pass the value on; engines never call it.
#pragma once

#include <chrono>

#include "common/base/time.hpp"

namespace sluice::net {

/// Monotonic, nanoseconds since an arbitrary start; costs about 20 ns (no system call).
inline Time now() {
  return Time(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

/// The rate of the processor's time-stamp counter. DPDK measures it at its start.
double cycles_per_second();

}  // namespace sluice::net
