// Closes descriptors that a peer has passed, or whose buffers it may have filled. To close a socket
// with unsent data may take as long as its owner likes (SO_LINGER), and so may a file of FUSE. The
// end of a Unix socket closes the descriptors in messages that nobody has read.
#pragma once

namespace sluice::memory {

/// From now on, close_of_peer() closes on other threads. It is for a daemon: it handles SIGURG,
/// which ends a wait for a peer.
void close_on_own_threads();

/// Closes a descriptor that a peer has passed, or a Unix socket. After close_on_own_threads() it
/// never waits for the peer. Without that it is close().
void close_of_peer(int descriptor) noexcept;

}  // namespace sluice::memory
