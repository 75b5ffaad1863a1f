// A file descriptor that its owner's destructor closes.
#pragma once

#include <utility>

#include <unistd.h>

#include "common/memory/closing.hpp"

namespace sluice::memory {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  /// For a descriptor that a peer has passed, or a Unix socket: closing it never makes a daemon
  /// wait for a peer.
  static Descriptor of_peer(int fd) {
    Descriptor made(fd);
    made.of_peer_ = true;
    return made;
  }
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), of_peer_(other.of_peer_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(of_peer_, other.of_peer_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ < 0) return;
    if (of_peer_)
      close_of_peer(fd_);
    else
      close(fd_);
  }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Passes the ownership to the caller.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
  bool of_peer_ = false;
};

}  // namespace sluice::memory
