// A daemon's figures as metrics for Prometheus.
#pragma once

#include <string>

#include "aggregator/monitoring/figures.hpp"

namespace sluice::aggregator {

/// The metrics in Prometheus's text format. Names follow its conventions: prefix `sluice_`, base
/// units, `_total` for counters. Labels are lane, job_id, port, reason, event and cause.
std::string to_prometheus(const Figures& figures);

}  // namespace sluice::aggregator
