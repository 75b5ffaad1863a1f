// The lanes of a run side by side, each on a thread of its own.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/pktgen/lockstep.hpp"
#include "bench/pktgen/options.hpp"
#include "bench/pktgen/report.hpp"
#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

/// Runs one lane to its end, on the calling thread; throws Error.
using RunLane = std::function<LaneRun(std::uint16_t lane, Lockstep& lockstep)>;

/// Lane 0 on this thread, the others on one each, on the cores that the options name. Returns when
/// all have ended; throws what the first that failed has thrown.
Report run_lanes(const Options& options, const Supervision& supervision, const RunLane& run_lane);

}  // namespace sluice::pktgen
