#include "common/memory/unix_socket.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/memory/own_file.hpp"

namespace sluice::memory {
namespace {

constexpr int kFlags = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kWaiting = 64;  // connections
// The most that a message can have (SCM_MAX_FD). A peer must not send more than one, but the kernel
// would close those that are not taken on this thread.
constexpr std::size_t kDescriptorsMost = 253;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw Error(ErrorCode::kInvalidArgument,
                "socket path '" + path + "' has " + std::to_string(path.size()) +
                    " bytes; at most " + std::to_string(sizeof address.sun_path - 1) + " expected");
  path.copy(address.sun_path, path.size());
  return address;
}

std::optional<ucred> credentials_of(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

/// One process after the other begins to serve in a directory: else two that find a socket unserved
/// would both serve it, and one's would be removed by the other. It is a socket with an abstract
/// name, which the kernel knows once in a network namespace: a daemon has locked the directory
/// itself.
class ServingLock {
 public:
  /// A process that knows the name may hold the lock, but prevents others from serving for at most
  /// a second.
  explicit ServingLock(const std::string& directory)
      : named_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    struct stat found {};
    if (stat(directory.c_str(), &found) != 0) return;
    const std::string name =
        "sluice serves in " + std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (bind(named_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 &&
           errno == EADDRINUSE && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  Descriptor named_;
};

using Refuse = std::function<void(const char* why)>;

Descriptor served_at(const std::string& path, mode_t mode, const Refuse& refuse) {
  const sockaddr_un address = address_of(path);
  auto made = Descriptor::of_peer(socket(AF_UNIX, kFlags, 0));
  if (!made) refuse(std::strerror(errno));
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  // Nobody can connect before listen().
  if (bind(made.get(), generic, sizeof address) != 0 ||
      (mode != 0 && chmod(path.c_str(), mode) != 0) || ::listen(made.get(), kWaiting) != 0)
    refuse(std::strerror(errno));
  return made;
}

/// Serves at a path where another user has put something, in a directory of ours. That user can
/// neither keep the path nor take it meanwhile.
Descriptor served_instead(const std::string& path, mode_t mode, const Refuse& refuse) {
  const std::string aside = name_beside(path);
  Descriptor made = served_at(aside, mode, refuse);
  if (renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0 &&
      rename(aside.c_str(), path.c_str()) != 0)  // it has gone
  {
    const char* const why = std::strerror(errno);
    unlink(aside.c_str());
    refuse(why);
  }
  if (unlink(aside.c_str()) != 0) rmdir(aside.c_str());  // a directory with contents is kept
  return made;
}

Refuse refuser_of(const std::string& path) {
  return [path](const char* why) {
    throw Error(ErrorCode::kUnavailable, "socket '" + path + "' cannot be served: " + why);
  };
}

/// Whether we may replace what was found at `path`: it is another user's, and the directory is
/// ours. Calls `refuse` if not.
bool may_take_place_of(const std::string& path, const struct stat& found, const Refuse& refuse) {
  if (is_another_users(found) && owns_directory_of(path)) return true;
  if (!S_ISSOCK(found.st_mode)) refuse("there is something else of this name");
  return false;
}

UnixSocket::Io outcome_of_error() {
  return errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? UnixSocket::Io::kNothing
                                                               : UnixSocket::Io::kClosed;
}

}  // namespace

UnixSocket UnixSocket::listen(const std::string& path, mode_t mode) {
  const Refuse refuse = refuser_of(path);
  const ServingLock lock(directory_of(path));
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0) {
    if (may_take_place_of(path, found, refuse))
      return UnixSocket(served_instead(path, mode, refuse));
    if (connect(path) || errno == EAGAIN) refuse("another process serves it");
    unlink(path.c_str());
  }
  return UnixSocket(served_at(path, mode, refuse));
}

void UnixSocket::check_listen(const std::string& path) {
  const Refuse refuse = refuser_of(path);
  address_of(path);
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0) may_take_place_of(path, found, refuse);
  const std::string aside = name_beside(path);
  const Descriptor tried = served_at(aside, 0, refuse);
  unlink(aside.c_str());
}

std::optional<UnixSocket> UnixSocket::connect(const std::string& path) {
  const sockaddr_un address = address_of(path);
  UnixSocket made(Descriptor(socket(AF_UNIX, kFlags, 0)));
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  if (!made.descriptor_ || ::connect(made.descriptor(), generic, sizeof address) != 0)
    return std::nullopt;
  return made;
}

std::optional<UnixSocket> UnixSocket::accept() const {
  auto peer = Descriptor::of_peer(
      accept4(descriptor_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!peer) return std::nullopt;
  return UnixSocket(std::move(peer));
}

UnixSocket::Io UnixSocket::send(std::span<const std::byte> message, int descriptor) const {
  iovec bytes{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  if (sendmsg(descriptor_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Io::kDone;
  return outcome_of_error();
}

UnixSocket::Received UnixSocket::receive(std::span<std::byte> into) const {
  iovec bytes{into.data(), into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptorsMost * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t count =
      recvmsg(descriptor_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  Received received;
  if (count < 0) {
    received.io = outcome_of_error();
    return received;
  }
  // Either the peer has gone, or it has sent a message without bytes, which may have descriptors.
  received.io = count == 0 ? Io::kClosed : Io::kDone;
  received.bytes = static_cast<std::size_t>(count);
  received.lost = (header.msg_flags & MSG_CTRUNC) != 0;
  std::size_t came = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count_here = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count_here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      auto owned = Descriptor::of_peer(fd);  // closed here unless it is the only one
      received.descriptor = came++ == 0 ? std::move(owned) : Descriptor();
    }
  }
  return received;
}

bool UnixSocket::peer_is_trusted() const {
  const auto peer = credentials_of(descriptor_);
  return peer && (peer->uid == geteuid() || peer->uid == 0);
}

pid_t UnixSocket::peer_process() const {
  const auto peer = credentials_of(descriptor_);
  return peer ? peer->pid : 0;
}

uid_t UnixSocket::peer_user() const {
  const auto peer = credentials_of(descriptor_);
  return peer ? peer->uid : static_cast<uid_t>(-1);
}

}  // namespace sluice::memory
