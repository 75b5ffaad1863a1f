// How many lanes a daemon has if no setting says it.
//
// A lane polls, and should share no core. The machine tells how many cores lanes may take only if
// all ranks are on this machine: local workers, with one aggregator. There lanes get a quarter of
// the cores that the daemon may use. Three quarters are left to the ranks, which also spin while
// they wait. The measurements are in docs/performance.md.
//
// On a network port more lanes need more than cores: as many queues of the device, UDP ports that
// a firewall lets through, and hugepages. And all aggregators of a job must have as many lanes, on
// machines that may differ. So the default there is one. It is also one if several daemons share
// the streams: they are shards, as lanes are.
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
