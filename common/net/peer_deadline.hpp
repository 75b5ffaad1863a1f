// Bounds how long DPDK waits for a vhost peer: plugging a virtio-user port in server mode blocks in
// accept() until a peer connects, and then until it answers, possibly for ever. It also decides who
// may connect: DPDK makes the socket with the permissions of the umask, which usually permit only
// this user's processes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include <sys/types.h>

#include "common/base/time.hpp"

namespace sluice::net {

/// Used by the thread that makes the port. If the directory has the set-group-ID bit and its group
/// may write to it, the socket is opened to that group as soon as it exists. If this object still
/// exists after `timeout`, it makes the wait of the thread fail: it connects to the socket at
/// `path` and disconnects at once, or it ends the connection to a peer that does not answer.
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
