// The directory in which workers of this machine open vhost ports.
#pragma once

#include <memory>

#include "aggregator/daemon/lane_pools.hpp"
#include "aggregator/daemon/lanes.hpp"
#include "aggregator/monitoring/figures.hpp"
#include "aggregator/monitoring/limited_log.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/claim.hpp"
#include "common/memory/descriptor.hpp"
#include "common/net/vhost.hpp"

namespace sluice::aggregator {

class LocalWorkers {
 public:
  /// Ensures that no other process serves the directory. Throws sluice::Error.
  LocalWorkers(const config::AggregatorConfig& config, std::shared_ptr<LimitedLog> peer_log);

  /// Serves them from now on. Lanes and pools must outlive this object's ports.
  void serve(const config::AggregatorConfig& config, const LanePools& pools, Lanes& lanes);

  /// The work of one control period.
  void look_after() { directory_->poll(); }

  PortFigures figures() const { return {"vhost", directory_->statistics()}; }
  net::VhostDirectory::Counters counters() const { return directory_->counters(); }

 private:
  const std::shared_ptr<LimitedLog> peer_log_;
  const config::Claim claim_;
  const memory::Descriptor served_;  // while it is open, workers may come
  std::unique_ptr<net::VhostDirectory> directory_;
};

}  // namespace sluice::aggregator
