// What DPDK lets a vhost-user peer do to the whole process, and we do not. DPDK takes any file for
// an eventfd or for memory, closes what it does not want on the thread that talks with all peers,
// waits there for the rest of a message, and allocates what a peer asks for. So its calls of the C
// library pass here first (vhost_calls.cpp), where each message is read as a whole, without
// waiting, and is given to DPDK only if a worker's driver may send it, and once DPDK is ready for
// the end of the connection.
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
  /// DPDK may connect to the socket, whose peer is offered so many rings. Until `forget`.
  static void expect(const std::string& path, unsigned rings);
  static void forget(const std::string& path);

  /// To be called by a thread on which DPDK may have connected, and has returned.
  static void noted();

  /// Those that have sent what no worker sends, since the last call. Their connections have ended,
  /// and they get no other.
  static std::vector<RefusedPeer> take_refused();

  /// The path of the socket to which this descriptor is connected; empty: it is no peer's.
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
