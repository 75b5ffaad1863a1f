// What a polling loop does when a turn found no work; idle.hpp implements it.
#pragma once

#include <cstdint>

namespace sluice {

enum class IdleStrategy : std::uint8_t {
  kBusySpin,  ///< never yields the core: lowest latency, one core per thread
  kYield,     ///< yields the core to other runnable threads, never sleeps
  kBackOff,   ///< spins briefly, yields for a while, then sleeps for increasing times
};

}  // namespace sluice
