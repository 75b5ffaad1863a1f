// A Unix socket for whole messages and descriptors. Only listen() may wait.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <sys/types.h>

#include "common/memory/descriptor.hpp"

namespace sluice::memory {

class UnixSocket {
 public:
  enum class Io { kDone, kNothing, kClosed };
  struct Received {
    Io io = Io::kNothing;
    std::size_t bytes = 0;
    Descriptor descriptor;  ///< that came with the message; empty if there were several
    bool lost = false;      ///< descriptors came, but this process can open no more
  };

  UnixSocket() = default;
  explicit UnixSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  /// Serves connections at `path`, where no other process may serve. Throws kUnavailable. If a user
  /// other than root has put something there, it is removed if the directory is ours; otherwise
  /// anybody who may write to it could prevent us from serving. `mode` has the permissions of the
  /// socket's file, of which only the write bits matter; 0: by umask. Waits at most a second for
  /// others that begin to serve in the same directory.
  static UnixSocket listen(const std::string& path, mode_t mode = 0);
  /// Throws as listen() would, and leaves nothing behind. It is no error if another process serves
  /// there, as the caller may be about to replace it.
  static void check_listen(const std::string& path);
  /// Nothing if no process serves there now.
  static std::optional<UnixSocket> connect(const std::string& path);
  /// Accepts the next connection, if there is one.
  std::optional<UnixSocket> accept() const;

  /// Sends one message, with a descriptor unless it is negative. kNothing: there is no room, as the
  /// peer does not read.
  Io send(std::span<const std::byte> message, int descriptor) const;
  /// Receives one message. Bytes that do not fit into `into` are lost; `bytes` says how many there
  /// were.
  Received receive(std::span<std::byte> into) const;

  /// Whether the peer's process belongs to this user or to root.
  bool peer_is_trusted() const;
  /// The peer's process, as this process sees it.
  pid_t peer_process() const;
  uid_t peer_user() const;
  int descriptor() const { return descriptor_.get(); }

 private:
  Descriptor descriptor_;
};

}  // namespace sluice::memory
