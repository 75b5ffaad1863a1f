// A bound on how long DPDK waits for a vhost peer: plugging a virtio-user port in server mode
// blocks in accept() until somebody connects, for ever if nobody does.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/time.hpp"

namespace sluice::net {

/// Unless destroyed before, connects to the socket at `path` after `timeout` and hangs up at once,
/// so that the accept ends and what follows it fails.
class AcceptDeadline {
 public:
  AcceptDeadline(std::string path, Duration timeout);
  ~AcceptDeadline();
  AcceptDeadline(const AcceptDeadline&) = delete;
  AcceptDeadline& operator=(const AcceptDeadline&) = delete;

  bool passed();

 private:
  void watch(const std::string& path, Duration timeout);

  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  bool passed_ = false;
  std::thread thread_;
};

}  // namespace sluice::net
