#include "common/net/peer_deadline.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/net/stuck_peer.hpp"

namespace sluice::net {
namespace {

void connect_and_disconnect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  (void)!connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  close(fd);
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

// Again every second after the deadline: the socket may not have been there yet.
void PeerDeadline::watch(const std::string& path, Duration timeout) {
  std::unique_lock lock(mutex_);
  while (!ended_changed_.wait_for(lock, timeout, [this] { return ended_; })) {
    passed_ = true;
    connect_and_disconnect(path);
    end_wait(waiting_);
    timeout = std::chrono::seconds(1);
  }
}

}  // namespace sluice::net
