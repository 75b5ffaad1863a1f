// What the log tells of a job's event by name, beside the sentence for people.
#pragma once

#include <cstdint>

#include "aggregator/engine/job_event.hpp"
#include "common/log/fields.hpp"

namespace sluice::aggregator {

/// job, lane and event; of what the event knows, too: rank (the one that it is about), ranks,
/// streams, op, waited_ms, reported_by (a rank), error (the ErrorCode's name) and reason.
LogFields log_fields(const JobEvent& event, std::uint16_t lane);

}  // namespace sluice::aggregator
