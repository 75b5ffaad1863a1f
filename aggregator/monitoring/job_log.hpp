// The line of an event of a job. Peers cause such events, so there is only a LimitedLog for them.
#pragma once

#include <cstdint>

#include "aggregator/engine/job_event.hpp"
#include "aggregator/monitoring/limited_log.hpp"

namespace sluice::aggregator {

/// Of each kind of event, at most as many lines a second as the log has set. Every lane has every
/// job: lines of others than lane 0 on how it forms and ends are for debugging.
void log_job_event(LimitedLog& log, const JobEvent& event, std::uint16_t lane);

}  // namespace sluice::aggregator
