// A run with an aggregator in another process, over a vhost directory or a network port.
#pragma once

#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/pktgen_report.hpp"
#include "bench/pktgen/run.hpp"

namespace sluice::pktgen {

/// Throws Error.
Report run_over_ports(const Options& options, const Supervision& supervision);

}  // namespace sluice::pktgen
