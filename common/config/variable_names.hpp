// Misspelt environment variables. One environment may serve daemons, ranks and tools alike, so each
// program knows the variables of all, and a name that none of them reads is a mistake.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/config/environment.hpp"

namespace sluice::config {

/// Every variable that some program of ours reads and whose name begins with SLUICE_.
const std::vector<std::string>& known_variables();

/// Throws kInvalidArgument if one of the variables `names` is a misspelt one of ours: known except
/// for its underscores, a unit at its end or a few letters. Returns a line for each other one that
/// begins with SLUICE_ and is not known: it may be the user's own. Those that Kubernetes makes for
/// a service (SLUICE_SERVICE_HOST and so on) are neither.
std::vector<std::string> check_variable_names(
    const std::vector<std::string>& names = process_variable_names());

/// A line for the log if nothing places this process in its job, but one of RANK and WORLD_SIZE is
/// set: a launcher sets both, so the other one may be misspelt.
std::optional<std::string> warning_of_half_placement(
    const Environment& environment = process_environment);

}  // namespace sluice::config
