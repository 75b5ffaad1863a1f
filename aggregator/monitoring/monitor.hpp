// What a daemon shows about itself: metrics and a page over HTTP, and DPDK's telemetry. The control
// thread publishes figures once a second. Requests read the latest figures and cost the lanes
// nothing. A page is rendered at most once for each publication, at the first request, so further
// clients cost no more.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <spdlog/sinks/ringbuffer_sink.h>

#include "aggregator/monitoring/figures.hpp"
#include "aggregator/monitoring/history.hpp"
#include "aggregator/monitoring/once_per_sample.hpp"
#include "aggregator/monitoring/status.hpp"
#include "common/config/address.hpp"
#include "common/http/server.hpp"
#include "common/log/logger.hpp"
#include "common/net/telemetry.hpp"

namespace sluice::aggregator {

class Monitor {
 public:
  /// Keeps warnings and errors of `logger` from now on. No other thread may log during this call.
  Monitor(const Identity& identity, std::shared_ptr<spdlog::logger> logger);

  /// Throws Error kUnavailable if it cannot listen at this address.
  void serve_http(const config::ListenAddress& listen);
  /// Must be called after DPDK has started.
  void serve_telemetry();
  /// Whether there is a server for requests.
  bool serves() const { return server_ != nullptr || telemetry_ != nullptr; }

  void publish(Figures now);

  /// The latest publication as status.json; empty before the first one. It does not contain later
  /// warnings.
  std::string status_json();

 private:
  using Warnings = spdlog::sinks::ringbuffer_sink_mt;

  struct Sample {
    Figures figures;
    History history;  ///< up to and with these figures
  };

  std::shared_ptr<const Sample> latest() const;
  http::Response metrics();
  http::Response status();
  std::vector<LoggedEvent> events() const;

  const Identity identity_;
  const std::shared_ptr<spdlog::logger> logger_;
  const std::shared_ptr<Warnings> warnings_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Sample> latest_ = std::make_shared<Sample>();  // guarded by mutex_
  OncePerSample<Sample> metrics_;
  OncePerSample<Sample> status_;
  // These are last, so that their threads end before the members that they read are destroyed.
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<net::Telemetry> telemetry_;
};

}  // namespace sluice::aggregator
