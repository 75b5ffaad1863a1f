// Logs the events of jobs. Peers cause such events, so they go only through a LimitedLog.
#pragma once

#include <cstdint>

#include "aggregator/engine/job_event.hpp"
#include "aggregator/monitoring/limited_log.hpp"

namespace sluice::aggregator {

/// The log's limit of lines per second holds for each kind of event. Every lane has every job, so
/// how a job forms and ends is logged for lane 0, and only at level debug for the other lanes.
void log_job_event(LimitedLog& log, const JobEvent& event, std::uint16_t lane);

}  // namespace sluice::aggregator
