// The core's cycle counter. Its rate is constant, and reading it takes about ten nanoseconds.
#pragma once

#include <cstdint>

namespace sluice::pktgen {

inline std::uint64_t cycles() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}

}  // namespace sluice::pktgen
