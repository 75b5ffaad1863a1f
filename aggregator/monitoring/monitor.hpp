// What a daemon shows of itself: metrics and a page over HTTP, and DPDK's telemetry. The control
// thread publishes figures once a second; whoever asks, however often, reads the latest and costs
// the lanes nothing. A page is rendered once for each of these, when it is first asked for: many
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
  /// From now on warnings and errors of `logger` are kept; only this thread may log meanwhile.
  Monitor(const Identity& identity, std::shared_ptr<spdlog::logger> logger);

  /// Throws Error kUnavailable if it cannot listen there.
  void serve_http(const config::ListenAddress& listen);
  /// Once DPDK has started.
  void serve_telemetry();
  /// Whether anybody can ask.
  bool serves() const { return server_ != nullptr || telemetry_ != nullptr; }

  void publish(Figures now);

  /// What is published, as status.json; empty before that. Warnings since then are not in it.
  std::string status_json();

 private:
  using Warnings = spdlog::sinks::ringbuffer_sink_mt;

  struct Sample {
    Figures figures;
    History history;  ///< with these
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
  // Their threads end before what they read.
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<net::Telemetry> telemetry_;
};

}  // namespace sluice::aggregator
