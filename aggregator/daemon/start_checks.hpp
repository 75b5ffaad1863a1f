// What the start demands of the machine, as far as that can be tried without serving.
#pragma once

#include "common/config/aggregator_config.hpp"

namespace sluice::aggregator {

/// The daemon's start begins with it, and --check-config is this and nothing more. Throws
/// sluice::Error, and leaves nothing behind. What another daemon serves may be in use: a config is
/// checked while the daemon still runs that it is for.
void check_start(const config::AggregatorConfig& config);

}  // namespace sluice::aggregator
