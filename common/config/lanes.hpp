// How many lanes a daemon has if nobody says.
//
// A lane polls, and should share no core. What cores it may take, the machine tells only where all
// of them are this machine's: of local workers, with one aggregator. There a quarter of the cores
// that the daemon may use go to lanes, and three quarters are left to the ranks, which spin while
// they wait, too. The measurements are in docs/performance.md.
//
// On a network port more lanes need what cores do not tell: as many queues of the device, UDP ports
// that a firewall lets through, hugepages; and all aggregators of a job, on machines that may
// differ, must have as many. So there it is one, as it is where several daemons share the streams:
// they are shards as lanes are.
#pragma once

#include <cstdint>
#include <string>

#include "common/config/aggregator_config.hpp"

namespace sluice::config {

struct LaneCount {
  std::uint16_t lanes;
  std::string why;  ///< "a quarter of 16 cores": for the log
};

/// From `lanes_wanted`, and if that is 0 from `cpu`, the ports, `shards` and `cores`: as many as
/// the other settings allow. A pure function.
LaneCount count_lanes(const AggregatorConfig& config);

}  // namespace sluice::config
