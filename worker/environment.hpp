// Checks options that a program filled in by itself, with the ranges of the environment's.
#pragma once

#include <sluice/sluice.hpp>

namespace sluice {

/// Throw kInvalidArgument with the setting's variable, value and range.
void validate(const ContextOptions& options);
void validate(const JobOptions& options);

}  // namespace sluice
