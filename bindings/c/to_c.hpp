// Values and statistics of sluice.hpp as sluice.h has them. reference/interface.py writes to_c.cpp
// of sluice.h: where the two headers differ, it does not compile.
#pragma once

#include <sluice/error.hpp>
#include <sluice/sluice.h>
#include <sluice/statistics.hpp>
#include <sluice/types.hpp>

namespace sluice::c {

sluice_status to_c(ErrorCode code);
sluice_element_type to_c(ElementType type);
sluice_reduction to_c(Reduction reduction);
sluice_encoding to_c(Encoding encoding);

sluice_op_statistics to_c(const OpStatistics& from);
sluice_job_statistics to_c(const JobStatistics& from);

}  // namespace sluice::c
