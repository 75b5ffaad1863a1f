// Closing what a peer has passed, or may have filled. To close a socket with unsent data may take
// as long as its owner likes (SO_LINGER), and so may a file of FUSE; the end of a Unix socket
// closes the descriptors in messages that nobody has read.
#pragma once

namespace sluice::memory {

/// From now on close_of_peer() closes on threads of its own. For a daemon: it handles SIGURG, which
/// ends a wait for a peer.
void close_on_own_threads();

/// Closes a descriptor that a peer has passed, or a Unix socket. Never waits for the peer after
/// close_on_own_threads(), which is for daemons; else as close().
void close_of_peer(int descriptor) noexcept;

}  // namespace sluice::memory
