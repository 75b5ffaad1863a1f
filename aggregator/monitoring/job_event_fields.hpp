// The named fields of a job's event in the log, beside the sentence for people.
#pragma once

#include <cstdint>

#include "aggregator/engine/job_event.hpp"
#include "common/log/fields.hpp"

namespace sluice::aggregator {

/// The fields are job, lane and event. If the event has them, there are also rank (the one that it
/// is about), ranks, streams, op, waited_ms, reported_by (a rank), error (the ErrorCode's name) and
/// reason.
LogFields log_fields(const JobEvent& event, std::uint16_t lane);

}  // namespace sluice::aggregator
