// Local workers share their packet memory with the daemon, and can take it away at any time by
// truncating its file. An access to it then raises SIGBUS. With this file the daemon survives that.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "common/base/limits.hpp"

namespace sluice::net {

/// From now on, a SIGBUS in memory that a peer shares replaces that memory by zeros of our own; any
/// other SIGBUS keeps its default action. It is for processes of ours: the handlers of a host
/// program are its own.
void survive_loss_of_peer_memory();

/// While it lives, the calling thread accesses the memory of this port's peer. There can be one per
/// thread, and one thread per queue.
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

  /// The port that the calling thread uses; kNone if it uses none.
  static int port_of_thread() { return port_of_thread_; }
  /// Whether the queue's thread uses the port at the moment. For any thread.
  static bool is_in_use(std::uint16_t port_id, std::uint16_t queue) {
    return in_use_[queue].ports[port_id].load(std::memory_order_relaxed);
  }

 private:
  struct alignas(64) OfQueue {  // only its lane's thread writes it
    std::array<std::atomic<bool>, limits::kMaxPortIds> ports;
  };
  static thread_local int port_of_thread_;
  static std::array<OfQueue, limits::kMaxLanes> in_use_;

  std::atomic<bool>& in_use_here_;
};

/// Whether memory was lost while it was in use, since the last call for this port. For any thread.
bool has_lost_peer_memory(std::uint16_t port_id);

}  // namespace sluice::net
