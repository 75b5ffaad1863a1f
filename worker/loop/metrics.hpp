// A process's metrics for Prometheus, served on request by threads of their own.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/time.hpp"
#include "worker/job/figures.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {

namespace http {
class Server;
}
class Progress;

/// In Prometheus's text format. Labels are job_id, rank, kind, result and shard.
std::string to_prometheus(const ProcessFigures& figures);

/// Takes a turn of the loop for the moment in which counters are copied, and five times a second at
/// most, however many clients ask.
class MetricsServer {
 public:
  /// `listen` as the setting has it. Throws kUnavailable, naming the setting, where it cannot
  /// listen. `progress` must outlive it.
  MetricsServer(const std::string& listen, Progress& progress);
  ~MetricsServer();

 private:
  std::string text();

  Progress& progress_;
  std::mutex mutex_;
  std::string latest_;      // guarded by it
  Time taken_at_ = kNever;  // likewise
  std::unique_ptr<http::Server> server_;
  std::optional<ClosedInChildren> in_children_;  // its socket, whose port would outlive us
};

}  // namespace sluice
