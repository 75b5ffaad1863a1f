// Local workers share their packet memory with the daemon and may take it away at any time, by
// truncating its file: who touches it then gets a SIGBUS. Here the daemon survives that.
#pragma once

#include <cstdint>

namespace sluice::net {

/// From now on a SIGBUS in memory that a peer shares puts zeros of our own in that memory's place;
/// elsewhere it keeps its default action. For a process of ours: a host's handlers are its own.
void survive_loss_of_peer_memory();

/// While it lives, the calling thread touches the memory of this port's peer. One per thread.
class PeerMemoryUse {
 public:
  explicit PeerMemoryUse(std::uint16_t port_id) { port_in_use_ = port_id; }
  ~PeerMemoryUse() { port_in_use_ = kNone; }
  PeerMemoryUse(const PeerMemoryUse&) = delete;
  PeerMemoryUse& operator=(const PeerMemoryUse&) = delete;

  /// Of the calling thread; kNone if it uses no port.
  static int port() { return port_in_use_; }
  static constexpr int kNone = -1;

 private:
  static thread_local int port_in_use_;
};

/// Whether such memory was lost in use, since the last call for this port. For any thread.
bool has_lost_peer_memory(std::uint16_t port_id);

}  // namespace sluice::net
