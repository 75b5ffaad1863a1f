#include "common/config/claim.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/config/address.hpp"

namespace sluice::config {
namespace {

int open_directory(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Whoever asks whether a directory is claimed holds a lock for a moment: that must not count.
bool lock(int fd) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

Claim Claim::on_directory(const std::string& path) {
  Claim claim(open_directory(path));
  if (claim.fd_ < 0)
    throw Error(ErrorCode::kUnavailable,
                "directory '" + path + "' cannot be opened: " + std::strerror(errno));
  if (!lock(claim.fd_))
    throw Error(ErrorCode::kUnavailable,
                "directory '" + path + "' is in use by another aggregator: give each its own");
  return claim;
}

// A socket with an abstract name: the kernel knows one of a name in each network namespace.
Claim Claim::on_udp_port(std::uint32_t ipv4, std::uint16_t port) {
  const std::string where = ipv4_to_string(ipv4) + ":" + std::to_string(port);
  const std::string name = "sluice " + where;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Claim claim(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (bind(claim.fd_, reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw Error(ErrorCode::kUnavailable,
                "UDP port " + where +
                    (errno == EADDRINUSE ? " is in use by another process of this machine"
                                         : std::string(" cannot be claimed: ") + strerror(errno)));
  return claim;
}

Claim::Claim(Claim&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Claim::~Claim() {
  if (fd_ >= 0) close(fd_);
}

bool is_claimed_directory(const std::string& path) {
  const int fd = open_directory(path);
  if (fd < 0) return false;
  const bool claimed = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return claimed;
}

}  // namespace sluice::config
