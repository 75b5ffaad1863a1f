// The daemon: starts DPDK, ports and lanes from a config, serves local workers, reads its settings
// again on SIGHUP, and ends in an orderly way on SIGTERM or SIGINT.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/daemon/captures.hpp"
#include "aggregator/daemon/control.hpp"
#include "aggregator/daemon/lane_pools.hpp"
#include "aggregator/daemon/lanes.hpp"
#include "aggregator/daemon/local_workers.hpp"
#include "aggregator/daemon/network_ports.hpp"
#include "aggregator/daemon/service_manager.hpp"
#include "aggregator/monitoring/limited_log.hpp"
#include "aggregator/monitoring/monitor.hpp"
#include "aggregator/monitoring/report.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/reload.hpp"
#include "common/log/logger.hpp"
#include "common/memory/descriptor.hpp"
#include "common/net/eal.hpp"

namespace sluice::aggregator {

class Daemon {
 public:
  /// Reads the settings again and compares them with those in force. Throws sluice::Error if they
  /// are bad.
  using Reload = std::function<config::ReloadOutcome(const config::AggregatorConfig&,
                                                     const config::SecretStore&)>;

  /// Throws sluice::Error if a device, a privilege or memory is missing.
  Daemon(const config::AggregatorConfig& config, const config::SecretStore& secrets, Reload reload,
         std::shared_ptr<spdlog::logger> logger);
  ~Daemon() = default;
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  /// Serves until SIGTERM or SIGINT. Then it waits for jobs to leave, at most `drain_timeout`, and
  /// sends the ranks of the others to the next aggregator. A further signal ends the wait.
  void run();

 private:
  enum class Signal { kNone, kReload, kEnd };
  enum class Phase {
    kServing,
    kDraining,  ///< no new jobs; the daemon ends when the last one has left
    kEnding,
  };

  std::unique_ptr<net::Eal> start_dpdk(std::uint32_t memory_mib);
  std::vector<std::string> eal_arguments() const;
  EngineConfig engine_config(std::uint16_t lane) const;
  EngineConfig::Place place_of(std::uint16_t lane, std::uint16_t port_id) const;
  void warn_of_settings() const;
  Signal serve_until_signal();
  void reload();
  bool look_after();
  void feed_watchdog();
  void adjust_lanes();
  void open_control();
  std::string kick(std::uint32_t job);
  std::string limit_jobs(std::uint64_t jobs);
  std::string limit_streams(std::uint32_t job, std::uint64_t streams);
  std::string drain(bool on);
  void end();
  template <class Done>
  void look_after_until(Time deadline, Done&& done);
  bool is_watched() const { return monitor_->serves() || control_ != nullptr; }
  void log_events();
  bool log_events_of(std::uint16_t lane);
  std::string status();
  void tell_figures();
  void schedule_report();
  Figures figures();

  config::AggregatorConfig config_;
  config::SecretStore secrets_;
  const Reload reload_;
  const std::shared_ptr<spdlog::logger> logger_;
  const std::shared_ptr<LimitedLog> peer_log_;  // of all that a peer can cause
  ServiceManager service_manager_;
  Report report_;
  Time next_report_ = kNever;
  Time next_sample_{};
  memory::Descriptor signals_;
  Phase phase_ = Phase::kServing;
  std::unique_ptr<Control> control_;  // its socket goes last: who awaits that may start the next
  // In the order in which they depend on each other: lanes end before the ports they poll, ports
  // before the pools they fill.
  std::unique_ptr<net::Eal> eal_;
  std::unique_ptr<LanePools> pools_;
  std::unique_ptr<NetworkPorts> network_;
  std::unique_ptr<LocalWorkers> local_workers_;  // null: none are served
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Captures> captures_;
  std::unique_ptr<Monitor> monitor_;
};

}  // namespace sluice::aggregator
