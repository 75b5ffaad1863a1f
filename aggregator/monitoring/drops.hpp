// The packets that a daemon's lanes have dropped, by reason: below the engine and in it.
#pragma once

#include <cstddef>

#include "aggregator/monitoring/figures.hpp"
#include "common/net/io_counters.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::aggregator {

/// Calls f(lane, reason, count) for every lane and reason.
template <class F>
void for_each_drop(const Figures& figures, F&& f) {
  for (std::size_t i = 0; i < figures.lanes.size(); ++i) {
    const LaneFigures& lane = figures.lanes[i];
    for (const auto& [name, member] : net::kIoCounterNames)
      if (net::is_drop(name)) f(i, name, lane.io.*member);
    for (std::size_t r = 1; r < kDropReasonCount; ++r)
      f(i, name(DropReason(r)), lane.engine.drops[DropReason(r)]);
  }
}

}  // namespace sluice::aggregator
