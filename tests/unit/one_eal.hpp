// DPDK starts once per process: so once for all tests of the program.
#pragma once

#include <string_view>

#include "common/net/eal.hpp"

namespace sluice::net {

/// Starts it when called first. Ports complain on purpose in tests, so nothing is printed.
inline void start_eal_once() {
  static const Eal eal([] {
    EalOptions options;
    options.memory_mib = 192;
    options.log = [](LogLevel, std::string_view) {};
    return options;
  }());
}

}  // namespace sluice::net
