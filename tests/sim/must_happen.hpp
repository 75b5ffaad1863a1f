// What must have happened in a large enough set of seeds, or the simulation tests less than it
// says.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/counting.hpp"

namespace sluice::sim {

/// The names of what has not happened at all.
std::vector<std::string> missing_of(const Coverage& coverage);

}  // namespace sluice::sim
