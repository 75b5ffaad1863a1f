// A bound on how long DPDK waits for a vhost peer: plugging a virtio-user port in server mode
// blocks in accept() until somebody connects, and then until he answers, for ever if nobody does.
// And who may connect meanwhile: DPDK makes the socket as the umask says, which mostly lets only
// this user's processes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include <sys/types.h>

#include "common/base/time.hpp"

namespace sluice::net {

/// For the thread that makes it. In a directory with the set-group-ID bit to which its group may
/// write, the socket is opened to that group as soon as it is there. Unless destroyed before,
/// connects to the socket at `path` after `timeout` and disconnects at once, or ends the connection
/// whose peer does not answer, so that what the thread waits for fails.
class PeerDeadline {
 public:
  PeerDeadline(std::string path, Duration timeout);
  ~PeerDeadline();
  PeerDeadline(const PeerDeadline&) = delete;
  PeerDeadline& operator=(const PeerDeadline&) = delete;

  bool passed();

 private:
  void watch(const std::string& path, Duration timeout);

  const pid_t waiting_;
  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  bool passed_ = false;
  std::thread thread_;
};

}  // namespace sluice::net
