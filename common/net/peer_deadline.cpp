#include "common/net/peer_deadline.hpp"

#include <filesystem>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/net/stuck_peer.hpp"

namespace sluice::net {
namespace {

// How often to look for the socket, which is about to be made.
constexpr std::chrono::milliseconds kLookPeriod{1};

void connect_and_disconnect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  (void)!connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  close(fd);
}

bool is_shared_by_group(const std::string& directory) {
  constexpr mode_t kShared = S_ISGID | S_IWGRP;
  struct stat found {};
  return stat(directory.c_str(), &found) == 0 && (found.st_mode & kShared) == kShared;
}

/// Opens the socket to its group, if it is there. Touches nothing else with that name, as another
/// member of the group may have put it there.
bool open_to_group(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode) && found.st_uid == geteuid() &&
         fchmodat(AT_FDCWD, path.c_str(), (found.st_mode | S_IRWXG) & 0777, AT_SYMLINK_NOFOLLOW) ==
             0;
}

}  // namespace

PeerDeadline::PeerDeadline(std::string path, Duration timeout)
    : waiting_(gettid()),
      thread_([this, socket_path = std::move(path), timeout] { watch(socket_path, timeout); }) {}

PeerDeadline::~PeerDeadline() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_one();
  thread_.join();
}

bool PeerDeadline::passed() {
  const std::lock_guard lock(mutex_);
  return passed_;
}

// After the deadline it tries again every second, as the socket may not have been there yet.
void PeerDeadline::watch(const std::string& path, Duration timeout) {
  std::unique_lock lock(mutex_);
  if (is_shared_by_group(std::filesystem::path(path).parent_path()))
    while (!open_to_group(path))
      if (ended_changed_.wait_for(lock, kLookPeriod, [this] { return ended_; })) return;
  while (!ended_changed_.wait_for(lock, timeout, [this] { return ended_; })) {
    passed_ = true;
    connect_and_disconnect(path);
    end_wait(waiting_);
    timeout = std::chrono::seconds(1);
  }
}

}  // namespace sluice::net
