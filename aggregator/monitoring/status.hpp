// A daemon's state as JSON, for its status page and for sluice-top.
#pragma once

#include <string>
#include <vector>

#include "aggregator/monitoring/figures.hpp"
#include "aggregator/monitoring/history.hpp"

namespace sluice::aggregator {

/// A warning or an error that was logged.
struct LoggedEvent {
  std::string time;   ///< as in the log
  std::string level;  ///< "warning", "error"
  std::string text;
};

/// What does not change while a daemon runs.
struct Identity {
  unsigned shard = 0;
  unsigned shards = 1;
  Time started{};
  std::string host = {};
};

/// A JSON object; docs/metrics.md lists its members. Texts that are not valid UTF-8 are repaired.
std::string status_json(const Identity& identity, const Figures& figures, const History& history,
                        const std::vector<LoggedEvent>& events);

}  // namespace sluice::aggregator
