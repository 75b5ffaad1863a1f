// A run against a lane in this process.
#pragma once

#include "bench/pktgen/options.hpp"
#include "bench/pktgen/report.hpp"
#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

/// Throws Error.
Report run_in_memory(const Options& options, const Supervision& supervision);

}  // namespace sluice::pktgen
