// A Unix socket that carries whole messages and descriptors. Only listen() may wait.
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
    Descriptor descriptor;  ///< that came along; none if there were several
    bool lost = false;      ///< some did, but this process may open no more
  };

  UnixSocket() = default;
  explicit UnixSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  /// Serves connections at `path`, where no socket may be that is still served. Throws
  /// kUnavailable. What another user than root has put there is removed, if the directory is
  /// ours: else whoever may write to it could keep us from serving. `mode`: of the socket's file,
  /// of which the bits to write count; 0: by umask. Waits a second at most, for others that begin
  /// to serve in the same directory.
  static UnixSocket listen(const std::string& path, mode_t mode = 0);
  /// Throws as listen() would, and leaves nothing behind. A socket that is served is no fault: it
  /// may be that of the process which the caller is to follow.
  static void check_listen(const std::string& path);
  /// Nothing if nobody serves there now.
  static std::optional<UnixSocket> connect(const std::string& path);
  /// The next connection, if one waits.
  std::optional<UnixSocket> accept() const;

  /// Sends a message of its own, with a descriptor unless that is negative. kNothing: there is no
  /// room, as the peer does not read.
  Io send(std::span<const std::byte> message, int descriptor) const;
  /// Takes one message; bytes beyond `into` are lost, and `bytes` says how many there were.
  Received receive(std::span<std::byte> into) const;

  /// Whether the peer's process is this user's or root's.
  bool peer_is_trusted() const;
  /// The peer's process, as far as this one sees it.
  pid_t peer_process() const;
  uid_t peer_user() const;
  int descriptor() const { return descriptor_.get(); }

 private:
  Descriptor descriptor_;
};

}  // namespace sluice::memory
