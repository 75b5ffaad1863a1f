// Adding up counters, to show what a run has covered.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/protocol/drop_reason.hpp"

namespace sluice::sim {

/// By name; drops as "drop.NAME".
using Coverage = std::map<std::string, std::uint64_t>;

template <class Counters>
void cover(Coverage& coverage, const std::string& who, const Counters& counters) {
  counters.for_each([&](std::string_view name, std::uint64_t n) {
    coverage[who + "." + std::string(name)] += n;
  });
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    if (counters.drops[reason] != 0)
      coverage[who + ".drop." + std::string(name(reason))] += counters.drops[reason];
  }
}

}  // namespace sluice::sim
