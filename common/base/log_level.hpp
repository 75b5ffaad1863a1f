// How much is logged, by everything including DPDK; and in which form.
#pragma once

#include <cstdint>

namespace sluice {

enum class LogLevel : std::uint8_t { kTrace, kDebug, kInfo, kWarn, kError };

enum class LogFormat : std::uint8_t { kText, kJson, kJournald };

}  // namespace sluice
