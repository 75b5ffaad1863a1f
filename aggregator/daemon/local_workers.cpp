#include "aggregator/daemon/local_workers.hpp"

#include <string>
#include <utility>

#include "common/net/own_directory.hpp"

namespace sluice::aggregator {
namespace {

config::Claim claim_of(const std::string& directory) {
  net::make_own_directory(net::kVhostDirectory, directory);
  return config::Claim::on_directory(directory);
}

}  // namespace

LocalWorkers::LocalWorkers(const config::AggregatorConfig& config,
                           std::shared_ptr<LimitedLog> peer_log)
    : peer_log_(std::move(peer_log)),
      claim_(claim_of(config.vhost_dir)),
      served_(net::tell_lanes(config.vhost_dir, config.lanes)) {}

void LocalWorkers::serve(const config::AggregatorConfig& config, const LanePools& pools,
                         Lanes& lanes) {
  net::VhostOptions options;
  options.max_ports = config.vhost_max_ports;
  for (std::uint16_t lane = 0; lane < config.lanes; ++lane)
    options.polling_threads.push_back(Lane::thread_name(lane));
  options.port.queues = config.lanes;
  options.port.mtu = config.mtu;
  options.port.ipv4 = net::kVhostAggregatorIpv4;
  options.port.prefix = net::kVhostPrefix;
  net::VhostEvents events;
  events.attached = [this, &lanes](net::Port& port) {
    peer_log_->log("local workers", spdlog::level::debug, "local worker at {}", port.device());
    lanes.attach(port);
  };
  events.detaching = [this, &lanes](std::uint16_t port_id) {
    lanes.detach(port_id, [this, port_id] { directory_->released(port_id); });
  };
  events.detached = [this](std::uint16_t port_id) {
    peer_log_->log("closed ports", spdlog::level::debug, "port {} closed", port_id);
  };
  events.refused = [this](const std::string& path, const std::string& reason) {
    peer_log_->log("refused local workers", spdlog::level::warn, "local worker at {} refused: {}",
                   path, reason);
  };
  directory_ = std::make_unique<net::VhostDirectory>(config.vhost_dir, options, pools.payloads(),
                                                     std::move(events));
}

}  // namespace sluice::aggregator
