// All lanes of a daemon, for its control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "aggregator/daemon/lane.hpp"
#include "aggregator/daemon/lane_pools.hpp"
#include "aggregator/engine/config.hpp"
#include "aggregator/monitoring/figures.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/log/logger.hpp"
#include "common/net/capture.hpp"
#include "common/net/hand_over.hpp"
#include "common/net/port.hpp"

namespace sluice::aggregator {

class Lanes {
 public:
  /// The engine's configuration at a lane.
  using EngineConfigOf = std::function<EngineConfig(std::uint16_t lane)>;

  /// Starts them. The pools must outlive them.
  Lanes(const config::AggregatorConfig& config, const EngineConfigOf& engine_config,
        const LanePools& pools, const std::shared_ptr<spdlog::logger>& logger);

  std::uint16_t count() const { return static_cast<std::uint16_t>(lanes_.size()); }

  /// As those of Lane, at each of them.
  void attach(const net::Port& port);
  /// `released` is called once, on the thread of the last lane that lets the port go.
  void detach(std::uint16_t port_id, const std::function<void()>& released);
  void adjust(const EngineConfigOf& engine_config);
  void close(bool closed);
  void retire();
  bool retired();
  void capture(const std::shared_ptr<net::Capture>& capture);
  void end();

  /// Returns whether there is such a job. Throws sluice::Error kUnavailable if a lane makes no turn
  /// in time.
  bool kick(std::uint32_t job);
  bool limit_streams(std::uint32_t job, std::uint16_t streams);

  /// The number of jobs; a job lives at all lanes, or is about to.
  std::size_t live_jobs();
  std::vector<LaneFigures> figures();
  std::vector<std::uint64_t> turns() const;  ///< by lane
  Lane::Events take_events(std::uint16_t lane) { return lanes_[lane]->take_events(); }

 private:
  bool ask(const std::function<std::optional<bool>(Lane&)>& question);

  std::unique_ptr<net::HandOver> hand_over_;  // between lanes, if there are several
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace sluice::aggregator
