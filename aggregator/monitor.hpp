// What a daemon shows of itself over HTTP: metrics, and a page. The control thread publishes
// figures once a second; whoever asks, however often, reads the latest and costs the lanes nothing.
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

namespace sluice::aggregator {

class Monitor {
 public:
  /// From now on warnings and errors of `logger` are shown; only this thread may log meanwhile.
  /// Throws Error kUnavailable if it cannot listen there.
  Monitor(const config::ListenAddress& listen, const Identity& identity,
          std::shared_ptr<spdlog::logger> logger);

  void publish(Figures now);

 private:
  using Warnings = spdlog::sinks::ringbuffer_sink_mt;

  http::Response metrics() const;
  http::Response status() const;
  std::vector<LoggedEvent> events() const;

  const Identity identity_;
  const std::shared_ptr<spdlog::logger> logger_;
  const std::shared_ptr<Warnings> warnings_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Figures> latest_ = std::make_shared<Figures>();  // guarded by mutex_
  History history_;                                                      // guarded by mutex_
  http::Server server_;  // its threads end before what they read
};

}  // namespace sluice::aggregator
