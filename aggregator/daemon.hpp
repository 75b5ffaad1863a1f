// The daemon: brings up DPDK, ports and the lane from a config, looks after local workers, and ends
// in an orderly way on SIGTERM or SIGINT.
#pragma once

#include <memory>
#include <vector>

#include <spdlog/logger.h>

#include "aggregator/lane.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/claim.hpp"
#include "common/config/rate_limit.hpp"
#include "common/net/eal.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"
#include "common/net/vhost.hpp"

namespace sluice::aggregator {

class Daemon {
 public:
  /// Throws sluice::Error where a device, a privilege or memory is missing.
  Daemon(const config::AggregatorConfig& config, std::shared_ptr<spdlog::logger> logger);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  /// Serves until SIGTERM or SIGINT, then waits for jobs to leave, `drain_timeout` at most, and
  /// ends those that have not. A second signal ends them at once.
  void run();

 private:
  void open_ports();
  void open_vhost_directory();
  bool poll_for_signal();
  void drain();
  void tell_events();
  void report(const char* when);

  const config::AggregatorConfig config_;
  const std::shared_ptr<spdlog::logger> logger_;
  config::RateLimit refusals_told_;
  std::vector<config::Claim> claims_;  // on what no other process may serve
  // In the order in which they depend on each other: the lane ends before the ports it polls, the
  // ports before the pools they fill.
  std::unique_ptr<net::Eal> eal_;
  std::unique_ptr<net::BufferPool> payloads_;
  std::unique_ptr<net::BufferPool> headers_;
  std::vector<std::unique_ptr<net::Port>> ports_;
  std::unique_ptr<net::VhostDirectory> vhost_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace sluice::aggregator
