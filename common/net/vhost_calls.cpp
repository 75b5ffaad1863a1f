// The functions of the C library by which DPDK talks with vhost peers. The dynamic linker finds
// those of the program first. For a program that serves workers, not for a library in another
// program.
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/vhost_peer.hpp"

extern "C" {

__attribute__((visibility("default"))) int connect(int fd, const sockaddr* address,
                                                   socklen_t length) {
  return sluice::net::vhost_calls::connect(fd, address, length);
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return sluice::net::vhost_calls::recvmsg(fd, message, flags);
}

__attribute__((visibility("default"))) ssize_t read(int fd, void* into, size_t bytes) {
  return sluice::net::vhost_calls::read(fd, into, bytes);
}

__attribute__((visibility("default"))) int close(int fd) {
  return sluice::net::vhost_calls::close(fd);
}

__attribute__((visibility("default"))) unsigned sleep(unsigned seconds) {
  return sluice::net::vhost_calls::sleep(seconds);
}

}  // extern "C"
