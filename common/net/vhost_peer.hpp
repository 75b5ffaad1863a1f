// Prevents what DPDK permits a vhost-user peer to do to the whole process. DPDK accepts any file as
// an eventfd or as memory, closes what it does not want on the thread that talks with all peers,
// waits there for the rest of a message, and allocates whatever a peer asks for. So its calls of
// the C library come here first (vhost_calls.cpp). Each message is read as a whole, without
// waiting. DPDK gets it only if a worker's driver may send it, and only when DPDK is ready for the
// end of the connection.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sys/socket.h>
#include <sys/types.h>

namespace sluice::net {

struct RefusedPeer {
  std::string path;
  std::string why;
};

/// The sockets of peers. For any thread.
class VhostPeers {
 public:
  /// DPDK may connect to the socket from now on, until `forget`. Its peer is offered so many rings.
  static void expect(const std::string& path, unsigned rings);
  static void forget(const std::string& path);

  /// To be called by a thread on which DPDK may have connected and has returned.
  static void noted();

  /// Peers that have sent what no worker sends, since the last call. Their connections have ended,
  /// and they get no other.
  static std::vector<RefusedPeer> take_refused();

  /// The path of the socket to which this descriptor is connected; empty if it is not a peer's.
  static std::string path_of(int fd);
};

/// In place of the C library's functions, which have the same results and errno. Descriptors that
/// are no peer's socket are passed on to those.
namespace vhost_calls {

int connect(int fd, const sockaddr* address, socklen_t length);
ssize_t recvmsg(int fd, msghdr* message, int flags);
ssize_t read(int fd, void* into, std::size_t bytes);
int close(int fd);
unsigned sleep(unsigned seconds);

}  // namespace vhost_calls
}  // namespace sluice::net
