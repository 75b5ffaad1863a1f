// The events that must occur in a large enough set of seeds. If one does not, the simulation tests
// less than it claims.
#pragma once

#include <string>
#include <vector>

#include "tests/sim/counting.hpp"

namespace sluice::sim {

/// The names of events that have not occurred.
std::vector<std::string> missing_of(const Coverage& coverage);

}  // namespace sluice::sim
