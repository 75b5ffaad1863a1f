// What a daemon shows of itself over HTTP: metrics, and a page. The control thread publishes
// figures once a second; whoever asks, however often, reads the latest and costs the lanes nothing.
#pragma once

#include <memory>
#include <mutex>

#include "aggregator/figures.hpp"
#include "common/config/address.hpp"
#include "common/http/server.hpp"
#include "common/log/logger.hpp"

namespace sluice::aggregator {

class Monitor {
 public:
  /// Throws Error kUnavailable if it cannot listen there.
  Monitor(const config::ListenAddress& listen, std::shared_ptr<spdlog::logger> logger);

  void publish(Figures now);

 private:
  std::shared_ptr<const Figures> latest() const;

  const std::shared_ptr<spdlog::logger> logger_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Figures> latest_ = std::make_shared<Figures>();  // guarded by mutex_
  http::Server server_;  // its threads end before what they read
};

}  // namespace sluice::aggregator
