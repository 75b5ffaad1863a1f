// The daemon: starts DPDK, ports and lanes from a config, serves local workers, reads its settings
// again on SIGHUP, and ends in an orderly way on SIGTERM or SIGINT.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/daemon/control.hpp"
#include "aggregator/daemon/lane.hpp"
#include "aggregator/daemon/service_manager.hpp"
#include "aggregator/monitoring/limited_log.hpp"
#include "aggregator/monitoring/monitor.hpp"
#include "aggregator/monitoring/report.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/claim.hpp"
#include "common/config/reload.hpp"
#include "common/log/logger.hpp"
#include "common/memory/descriptor.hpp"
#include "common/net/capture.hpp"
#include "common/net/eal.hpp"
#include "common/net/hand_over.hpp"
#include "common/net/pool.hpp"
#include "common/net/port.hpp"
#include "common/net/rss.hpp"
#include "common/net/vhost.hpp"

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
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  /// Serves until SIGTERM or SIGINT. Then it waits for jobs to leave, at most `drain_timeout`, and
  /// sends the ranks of the others to the next aggregator. A further signal ends the wait.
  void run();

 private:
  enum class Signal { kNone, kReload, kEnd };

  struct LanePools {
    std::unique_ptr<net::BufferPool> payloads;
    std::unique_ptr<net::BufferPool> headers;
  };

  /// A port whose device is steered by source ports. Lanes read this.
  struct SteeredPort {
    net::Port& port;
    const std::shared_ptr<const net::SourcePortChooser> chooser;
    std::atomic<bool> holds{true};  // the device still spreads as it did
  };

  std::vector<std::string> eal_arguments() const;
  void make_pools(std::uint32_t memory_mib);
  std::vector<net::BufferPool*> payload_pools() const;
  void open_ports();
  void steer(net::Port& port);
  SourcePorts source_ports(const Endpoint& from, Rank rank) const;
  EngineConfig::Place place_of(std::uint16_t lane, std::uint16_t port_id) const;
  void claim_vhost_directory();
  void open_vhost_directory();
  Signal serve_until_signal();
  void reload();
  void start_lanes();
  EngineConfig engine_config(std::uint16_t lane) const;
  void look_after();
  void look_at_links();
  void look_at_rss();
  void feed_watchdog();
  void adjust_lanes();
  void open_control();
  bool ask_lanes(const std::function<std::optional<bool>(Lane&)>& question);
  std::string kick(std::uint32_t job);
  std::string limit_jobs(std::uint64_t jobs);
  std::string limit_streams(std::uint32_t job, std::uint64_t streams);
  std::string drain(bool on);
  std::string capture(memory::Descriptor file, std::uint64_t frames, std::uint32_t seconds,
                      std::uint32_t frame_bytes);
  std::string stop_capture();
  void look_at_capture();
  void end();
  template <class Done>
  void look_after_until(Time deadline, Done&& done);
  bool is_watched() const { return monitor_->serves() || control_ != nullptr; }
  std::size_t live_jobs();
  void log_events();
  bool log_events_of(std::uint16_t lane);
  std::string status();
  void schedule_report();
  Figures figures();

  config::AggregatorConfig config_;
  config::SecretStore secrets_;
  const Reload reload_;
  const std::shared_ptr<spdlog::logger> logger_;
  const std::shared_ptr<LimitedLog> peer_log_;  // for everything that a peer can cause
  ServiceManager service_manager_;
  Report report_;
  Time next_report_ = kNever;
  Time next_sample_{};
  memory::Descriptor signals_;
  bool serving_ = true;    // until a signal to end
  bool draining_ = false;  // accepts no new jobs; ends when the last one has left
  bool ending_ = false;
  // Destroyed last: a script that waits for its end may start the next daemon.
  std::unique_ptr<Control> control_;
  std::vector<config::Claim> claims_;  // on what no other process may serve
  memory::Descriptor served_;          // while it is open, workers may come
  // Each depends on those before it: lanes end before the ports that they poll, and ports before
  // the pools that they fill.
  std::unique_ptr<net::Eal> eal_;
  std::vector<LanePools> pools_;
  std::unique_ptr<net::HandOver> hand_over_;  // between lanes, if there are several
  std::vector<std::unique_ptr<net::Port>> ports_;
  std::vector<std::unique_ptr<SteeredPort>> steered_ports_;
  Time next_rss_look_{};
  std::vector<std::optional<bool>> links_up_;  // of each port; empty: not known yet
  std::unique_ptr<net::VhostDirectory> vhost_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Monitor> monitor_;
  std::shared_ptr<net::Capture> capture_;           // the current one
  bool lanes_leave_capture_ = false;                // lanes were asked to release it
  std::optional<net::Capture::Counters> captured_;  // of the last capture
};

}  // namespace sluice::aggregator
