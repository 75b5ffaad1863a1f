#include "common/config/lane_count.hpp"

#include <algorithm>

#include "common/base/limits.hpp"
#include "common/config/aggregator_settings.hpp"

namespace sluice::config {
namespace {

/// For local workers' lanes: each of them leaves three cores to ranks.
constexpr std::uint32_t kCoresPerLane = 4;

bool fits(AggregatorConfig config, std::uint32_t lanes) {
  config.lanes = static_cast<std::uint16_t>(lanes);
  return config.streams >= lanes && udp_ports_fit(config) &&
         (config.memory_mib == 0 || config.memory_mib >= least_memory_mib(config));
}

}  // namespace

LaneCount count_lanes(const AggregatorConfig& config) {
  if (config.lanes_wanted != 0) return {config.lanes_wanted, "as set"};
  if (!config.cpu.empty())
    return {static_cast<std::uint16_t>(std::min<std::size_t>(config.cpu.size(), limits::kMaxLanes)),
            "one for each core of cpu"};
  if (!config.ports.empty()) return {1, "the default with a network port"};
  if (config.shards > 1) return {1, "the default with several shards"};
  const std::uint32_t quarter = config.cores.usable() / kCoresPerLane;
  const std::uint32_t most = std::clamp<std::uint32_t>(quarter, 1, defaults::kMostLanes);
  std::uint32_t lanes = most;
  while (lanes > 1 && !fits(config, lanes)) --lanes;
  const std::string bound = lanes < most     ? ", as far as the other settings allow"
                            : most < quarter ? ", at most " + std::to_string(most)
                            : most > quarter ? ", at least 1"
                                             : "";
  return {static_cast<std::uint16_t>(lanes), "a quarter of " + config.cores.describe() + bound};
}

}  // namespace sluice::config
