// The requirements of a start that can be checked without serving.
#pragma once

#include "common/config/aggregator_config.hpp"

namespace sluice::aggregator {

/// The daemon's start begins with this check, and --check-config is only this check. Throws
/// sluice::Error, and leaves nothing behind. What another daemon serves may be in use, as a config
/// may be checked while the daemon that it is for still runs.
void check_start(const config::AggregatorConfig& config);

}  // namespace sluice::aggregator
