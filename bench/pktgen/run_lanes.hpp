// Runs the lanes of a run side by side, each on its own thread.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/pktgen/lockstep.hpp"
#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/pktgen_report.hpp"
#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

/// Runs one lane until it ends, on the calling thread; throws Error.
using RunLane = std::function<LaneRun(std::uint16_t lane, Lockstep& lockstep)>;

/// Runs lane 0 on this thread, and the others on one thread each, on the cores that the options
/// name. Returns when all have ended; throws what the first lane that failed has thrown.
Report run_lanes(const Options& options, const Supervision& supervision, const RunLane& run_lane);

}  // namespace sluice::pktgen
