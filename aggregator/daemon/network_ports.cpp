#include "aggregator/daemon/network_ports.hpp"

#include <string>
#include <utility>

#include "common/base/limits.hpp"
#include "common/config/pci_device.hpp"

namespace sluice::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr auto kRssPeriod = 2s;  // how often a device is asked whether it spreads as before

}  // namespace

NetworkPorts::NetworkPorts(const config::AggregatorConfig& config, const LanePools& pools,
                           std::shared_ptr<spdlog::logger> logger,
                           std::shared_ptr<LimitedLog> peer_log)
    : logger_(std::move(logger)), peer_log_(std::move(peer_log)), links_up_(config.ports.size()) {
  for (std::size_t i = 0; i < config.ports.size(); ++i) open(config, i, pools);
}

void NetworkPorts::open(const config::AggregatorConfig& config, std::size_t number,
                        const LanePools& pools) {
  const auto& address = config.addresses[number];
  for (std::uint16_t lane = 0; lane < config.lanes; ++lane)
    claims_.push_back(config::Claim::on_udp_port(
        address.ipv4, static_cast<std::uint16_t>(config.udp_port + lane)));
  net::PortOptions options;
  options.device = config.ports[number];
  options.mtu = config.port_mtu;
  options.vlan = config.port_vlan;
  options.ipv4 = address.ipv4;
  options.prefix = address.prefix;
  options.gateway = address.gateway;
  options.udp_checksum = config.udp_checksum;
  options.queues = config.lanes;
  options.descriptors = limits::kNetworkPortDescriptors;
  net::Port& port = *ports_.emplace_back(std::make_unique<net::Port>(options, pools.payloads()));
  ipv4_.push_back(address.ipv4);
  logger_->info("port {} at {}, UDP port {}{}", options.device, config::to_string(address),
                config.udp_port,
                options.vlan == net::kNoVlan ? "" : fmt::format(", VLAN {}", options.vlan));
  if (config::is_pci_device(options.device))
    logger_->info("port {}: {}", options.device, port.abilities());
  if (config.lanes > 1) steer(port, config.udp_port);
}

void NetworkPorts::steer(net::Port& port, std::uint16_t udp_port) {
  const net::Port::Steered steered = port.steer(udp_port);
  const char* const way = steered.by_rules          ? "rte_flow"
                          : steered.by_source_ports ? "source ports, by RSS"
                                                    : "software hand-over";
  logger_->info("port {}: steering: {}{}", port.device(), way,
                steered.refusal.empty() ? "" : " (" + steered.refusal + ")");
  if (steered.by_source_ports)
    steered_.emplace_back(new SteeredPort{port, steered.by_source_ports});
}

SourcePorts NetworkPorts::source_ports(const Endpoint& from, Rank rank) const {
  for (const auto& steered : steered_)
    if (steered->port.id() == from.port_id && steered->holds.load(std::memory_order_relaxed))
      return steered->chooser->choose(from.ipv4, rank);
  return {};
}

std::optional<std::uint32_t> NetworkPorts::ipv4_of(std::uint16_t port_id) const {
  for (std::size_t i = 0; i < ports_.size(); ++i)
    if (ports_[i]->id() == port_id) return ipv4_[i];
  return std::nullopt;
}

void NetworkPorts::look_after(Time now) {
  look_at_links();
  if (now < next_rss_look_) return;
  next_rss_look_ = after(now, kRssPeriod);
  look_at_rss();
}

/// NICs begin to serve before their links are up, which may take seconds.
void NetworkPorts::look_at_links() {
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const net::Port& port = *ports_[i];
    if (!config::is_pci_device(port.device())) continue;
    const bool up = port.link_up();
    if (links_up_[i] == up) continue;
    links_up_[i] = up;
    const std::uint32_t mbit = up ? port.link_mbit() : 0;
    peer_log_->log("links", up ? spdlog::level::info : spdlog::level::warn,
                   "port {}: the link is {}{}", port.device(), up ? "up" : "down",
                   mbit ? fmt::format(", {} Mbit/s", mbit) : "");
  }
}

/// If the device spreads differently now, ranks that join from now on get no source ports.
void NetworkPorts::look_at_rss() {
  for (const auto& steered : steered_) {
    if (!steered->holds) continue;
    const std::string change = steered->port.rss_change();
    if (change.empty()) continue;
    steered->holds = false;
    logger_->warn("port {}: steering: software hand-over from now on ({})", steered->port.device(),
                  change);
  }
}

std::vector<PortFigures> NetworkPorts::figures() const {
  std::vector<PortFigures> figures;
  for (const auto& port : ports_)
    figures.push_back({port->device(), port->statistics(), port->link_up()});
  return figures;
}

}  // namespace sluice::aggregator
