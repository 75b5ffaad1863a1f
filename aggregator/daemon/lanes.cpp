#include "aggregator/daemon/lanes.hpp"

#include <algorithm>
#include <atomic>

#include <spdlog/fmt/ranges.h>

#include <sluice/error.hpp>

namespace sluice::aggregator {
namespace {

/// The UDP ports of network addresses and of vhost addresses, whose port is not configured. Two
/// lanes have different ones.
std::vector<std::uint16_t> udp_ports_of(std::uint16_t lane,
                                        const config::AggregatorConfig& config) {
  std::vector<std::uint16_t> ports{static_cast<std::uint16_t>(config.udp_port + lane)};
  if (!config.vhost_dir.empty())
    ports.push_back(static_cast<std::uint16_t>(config::kDefaultUdpPort + lane));
  return ports;
}

}  // namespace

Lanes::Lanes(const config::AggregatorConfig& config, const EngineConfigOf& engine_config,
             const LanePools& pools, const std::shared_ptr<spdlog::logger>& logger) {
  if (config.lanes > config.cores.usable())
    logger->warn("{} lanes share {}: each is meant for a core of its own", config.lanes,
                 config.cores.describe());
  if (config.lanes > 1) hand_over_ = std::make_unique<net::HandOver>(config.lanes);
  std::vector<LaneOptions> options(config.lanes);
  for (std::uint16_t lane = 0; lane < config.lanes; ++lane) {
    options[lane] = {.number = lane,
                     .hand_over = hand_over_.get(),
                     .udp_ports = udp_ports_of(lane, config),
                     .idle = config.idle,
                     .cpu = config.cpu.empty() ? -1 : config.cpu[lane],
                     .faults = net::parse_faults(config.faults)};
    if (!hand_over_) continue;
    for (const std::uint16_t port : options[lane].udp_ports) hand_over_->listens(lane, port);
  }
  for (std::uint16_t lane = 0; lane < config.lanes; ++lane) {
    EngineConfig engine = engine_config(lane);
    engine.buffers_max = pools.payloads(lane).size() - config::ring_buffers(config);
    lanes_.push_back(std::make_unique<Lane>(options[lane], std::move(engine), pools.payloads(lane),
                                            pools.headers(lane), logger));
  }
}

void Lanes::attach(const net::Port& port) {
  for (std::uint16_t lane = 0; lane < count(); ++lane) lanes_[lane]->attach(port.view(lane));
}

void Lanes::detach(std::uint16_t port_id, const std::function<void()>& released) {
  const auto left = std::make_shared<std::atomic<std::size_t>>(lanes_.size());
  for (const auto& lane : lanes_)
    lane->detach(port_id, [released, left] {
      if (left->fetch_sub(1) == 1) released();
    });
}

void Lanes::adjust(const EngineConfigOf& engine_config) {
  for (std::uint16_t lane = 0; lane < count(); ++lane) lanes_[lane]->adjust(engine_config(lane));
}

void Lanes::close(bool closed) {
  for (const auto& lane : lanes_) lane->close(closed);
}

void Lanes::retire() {
  for (const auto& lane : lanes_) lane->retire();
}

bool Lanes::retired() {
  return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->retired(); });
}

void Lanes::capture(const std::shared_ptr<net::Capture>& capture) {
  for (const auto& lane : lanes_) lane->capture(capture);
}

void Lanes::end() {
  for (const auto& lane : lanes_) lane->end();
}

bool Lanes::kick(std::uint32_t job) {
  return ask([job](Lane& lane) { return lane.kick(job); });
}

bool Lanes::limit_streams(std::uint32_t job, std::uint16_t streams) {
  return ask([job, streams](Lane& lane) { return lane.limit_streams(job, streams); });
}

/// Whether some lane has found what it was asked for.
bool Lanes::ask(const std::function<std::optional<bool>(Lane&)>& question) {
  bool found = false;
  std::vector<std::size_t> silent;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::optional<bool> answer = question(*lanes_[i]);
    if (!answer) silent.push_back(i);
    found |= answer.value_or(false);
  }
  if (!silent.empty())
    throw Error(
        ErrorCode::kUnavailable,
        fmt::format("lane {} did not answer; it does so when it goes on", fmt::join(silent, ", ")));
  return found;
}

std::size_t Lanes::live_jobs() {
  std::size_t most = 0;
  for (const auto& lane : lanes_) most = std::max(most, lane->live_jobs());
  return most;
}

std::vector<LaneFigures> Lanes::figures() {
  std::vector<LaneFigures> figures;
  for (const auto& lane : lanes_) figures.push_back(lane->snapshot());
  return figures;
}

std::vector<std::uint64_t> Lanes::turns() const {
  std::vector<std::uint64_t> turns;
  for (const auto& lane : lanes_) turns.push_back(lane->turns());
  return turns;
}

}  // namespace sluice::aggregator
