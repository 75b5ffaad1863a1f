// Reading the daemon's settings again while it runs.
#pragma once

#include <string>
#include <vector>

#include "common/config/aggregator_config.hpp"

namespace sluice::config {

struct ReloadOutcome {
  AggregatorConfig config;                 ///< the running one with all that may change
  SecretStore secrets;                     ///< all of them, read again
  std::vector<std::string> applied;        ///< what differs, "log-level = debug, was info"
  std::vector<std::string> needs_restart;  ///< what differs, too, and is not in `config`
};

/// Reads the settings again from the same command line, file and environment. Throws as
/// parse_aggregator does; then nothing has changed.
ReloadOutcome reload_aggregator(const AggregatorConfig& running, const SecretStore& secrets,
                                int argc, const char* const* argv,
                                const Environment& environment = process_environment);

}  // namespace sluice::config
