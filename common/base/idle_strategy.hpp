// What a polling loop does when a turn found no work; idle.hpp does it.
#pragma once

#include <cstdint>

namespace sluice {

enum class IdleStrategy : std::uint8_t {
  kBusySpin,  ///< never gives the core away: least latency, one core per thread
  kYield,     ///< gives the core to whoever else is runnable, never sleeps
  kBackOff,   ///< spins briefly, yields for a while, then sleeps for longer and longer
};

}  // namespace sluice
