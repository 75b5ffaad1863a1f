// A run against a lane in this process.
#pragma once

#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/pktgen_report.hpp"
#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

/// Throws Error.
Report run_in_memory(const Options& options, const Supervision& supervision);

}  // namespace sluice::pktgen
