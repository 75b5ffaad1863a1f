// How much is logged: of everything that logs, DPDK too.
#pragma once

#include <cstdint>

namespace sluice {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError };

}  // namespace sluice
