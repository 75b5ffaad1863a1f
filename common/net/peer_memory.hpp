// Local workers share their packet memory with the daemon and may take it away at any time, by
// truncating its file: who touches it then gets a SIGBUS. Here the daemon survives that.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/base/limits.hpp"

namespace sluice::net {

/// From now on a SIGBUS in memory that a peer shares puts zeros of our own in that memory's place;
/// elsewhere it keeps its default action. For a process of ours: a host's handlers are its own.
void survive_loss_of_peer_memory();

/// While it lives, the calling thread touches the memory of this port's peer. One per thread, and
/// one thread per queue.
class PeerMemoryUse {
 public:
  PeerMemoryUse(std::uint16_t port_id, std::uint16_t queue)
      : in_use_here_(in_use_[queue % in_use_.size()].ports[port_id]) {
    port_of_thread_ = port_id;
    in_use_here_.store(true, std::memory_order_relaxed);
  }
  ~PeerMemoryUse() {
    in_use_here_.store(false, std::memory_order_relaxed);
    port_of_thread_ = kNone;
  }
  PeerMemoryUse(const PeerMemoryUse&) = delete;
  PeerMemoryUse& operator=(const PeerMemoryUse&) = delete;

  static constexpr int kNone = -1;

  /// Of the calling thread; kNone if it uses no port.
  static int port_of_thread() { return port_of_thread_; }
  /// Whether the queue's thread uses the port just now. For any thread.
  static bool is_in_use(std::uint16_t port_id, std::uint16_t queue) {
    return in_use_[queue].ports[port_id].load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) OfQueue {  // its lane's thread alone writes there
    std::array<std::atomic<bool>, limits::kMaxPortIds> ports;
  };
  static thread_local int port_of_thread_;
  static std::array<OfQueue, limits::kMaxLanes> in_use_;

  std::atomic<bool>& in_use_here_;
};

/// Whether such memory was lost in use, since the last call for this port. For any thread.
bool has_lost_peer_memory(std::uint16_t port_id);

}  // namespace sluice::net
