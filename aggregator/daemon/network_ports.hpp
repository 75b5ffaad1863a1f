// The ports of a daemon that lead to the network, and how frames come from them to the right lane.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/daemon/lane_pools.hpp"
#include "aggregator/monitoring/figures.hpp"
#include "aggregator/monitoring/limited_log.hpp"
#include "common/base/endpoint.hpp"
#include "common/base/source_ports.hpp"
#include "common/base/time.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/claim.hpp"
#include "common/log/logger.hpp"
#include "common/net/port.hpp"
#include "common/net/rss.hpp"

namespace sluice::aggregator {

class NetworkPorts {
 public:
  /// Opens them, and ensures that no other process serves their addresses. The pools must outlive
  /// them. Throws sluice::Error where a device or a privilege is missing.
  NetworkPorts(const config::AggregatorConfig& config, const LanePools& pools,
               std::shared_ptr<spdlog::logger> logger, std::shared_ptr<LimitedLog> peer_log);

  bool empty() const { return ports_.empty(); }
  const std::vector<std::unique_ptr<net::Port>>& ports() const { return ports_; }

  /// For the thread of any lane: the ports from which a rank's frames come to the right lane; none:
  /// any port may be used.
  SourcePorts source_ports(const Endpoint& from, Rank rank) const;
  /// For the thread of any lane: the address of a port, if it is one of these.
  std::optional<std::uint32_t> ipv4_of(std::uint16_t port_id) const;

  /// The work of one control period: links that change, devices that spread differently now.
  void look_after(Time now);

  std::vector<PortFigures> figures() const;

 private:
  /// A port whose device is steered by source ports. Lanes read it.
  struct SteeredPort {
    net::Port& port;
    const std::shared_ptr<const net::SourcePortChooser> chooser;
    std::atomic<bool> holds{true};  // the device still spreads as it did
  };

  void open(const config::AggregatorConfig& config, std::size_t number, const LanePools& pools);
  void steer(net::Port& port, std::uint16_t udp_port);
  void look_at_links();
  void look_at_rss();

  const std::shared_ptr<spdlog::logger> logger_;
  const std::shared_ptr<LimitedLog> peer_log_;
  std::vector<config::Claim> claims_;
  std::vector<std::unique_ptr<net::Port>> ports_;
  std::vector<std::uint32_t> ipv4_;            // of each port
  std::vector<std::optional<bool>> links_up_;  // of each port; none: not known yet
  std::vector<std::unique_ptr<SteeredPort>> steered_;
  Time next_rss_look_{};
};

}  // namespace sluice::aggregator
