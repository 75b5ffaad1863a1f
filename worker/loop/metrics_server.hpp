// A process's metrics for Prometheus. Threads of their own serve them on request.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/time.hpp"
#include "worker/job/process_figures.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {

namespace http {
class Server;
}
class Progress;

/// The figures in Prometheus's text format. Labels are job_id, rank, kind, result and shard.
std::string to_prometheus(const ProcessFigures& figures);

/// It holds the loop's lock only while it copies counters, at most five times a second, however
/// many clients ask.
class MetricsServer {
 public:
  /// `listen` has the form of the setting. Throws kUnavailable, naming the setting, if it cannot
  /// listen. `progress` must outlive it.
  MetricsServer(const std::string& listen, Progress& progress);
  ~MetricsServer();

 private:
  std::string text();

  Progress& progress_;
  std::mutex mutex_;
  std::string latest_;      // guarded by mutex_
  Time taken_at_ = kNever;  // guarded by mutex_
  std::unique_ptr<http::Server> server_;
  // The socket, whose port would otherwise outlive us.
  std::optional<ClosedInChildren> in_children_;
};

}  // namespace sluice
