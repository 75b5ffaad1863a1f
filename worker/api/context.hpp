// What exists once in a process: its ports and memory, and the loop that polls them.
#pragma once

#include <memory>

#include <sluice/sluice.hpp>

#include "worker/loop/metrics_server.hpp"
#include "worker/loop/progress.hpp"

namespace sluice {

struct Context::Impl {
  explicit Impl(const ContextOptions& options) : progress(std::make_shared<Progress>(options)) {
    if (!options.metrics_listen.empty())
      metrics = std::make_unique<MetricsServer>(options.metrics_listen, *progress);
  }
  ~Impl() {
    // Its threads do not exist in a forked child.
    if (progress->inherited()) static_cast<void>(metrics.release());
  }

  /// Throws kInvalidArgument while another one lives.
  struct OnePerProcess {
    OnePerProcess();
    ~OnePerProcess();
    OnePerProcess(const OnePerProcess&) = delete;
    OnePerProcess& operator=(const OnePerProcess&) = delete;
  };

  const OnePerProcess one_per_process;
  const std::shared_ptr<Progress> progress;
  std::unique_ptr<MetricsServer> metrics;  // null: metrics are not served
};

}  // namespace sluice
