// What a daemon shows of itself: metrics and a page over HTTP, and DPDK's telemetry. The control
// thread publishes figures once a second; whoever asks, however often, reads the latest and costs
// the lanes nothing.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <spdlog/sinks/ringbuffer_sink.h>

#include "aggregator/figures.hpp"
#include "aggregator/history.hpp"
#include "aggregator/status.hpp"
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

 private:
  using Warnings = spdlog::sinks::ringbuffer_sink_mt;

  std::shared_ptr<const Figures> latest() const;
  http::Response metrics() const;
  http::Response status() const;
  std::vector<LoggedEvent> events() const;

  const Identity identity_;
  const std::shared_ptr<spdlog::logger> logger_;
  const std::shared_ptr<Warnings> warnings_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Figures> latest_ = std::make_shared<Figures>();  // guarded by mutex_
  History history_;                                                      // guarded by mutex_
  // Their threads end before what they read.
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<net::Telemetry> telemetry_;
};

}  // namespace sluice::aggregator
