#include "common/net/socket_paths.hpp"

#include <charconv>
#include <filesystem>
#include <system_error>

#include <sys/socket.h>
#include <sys/un.h>

namespace sluice::net {
namespace {

namespace fs = std::filesystem;

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::optional<std::string> path_of(int descriptor, NameOf name_of) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (name_of(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  if (address.sun_family != AF_UNIX) return std::nullopt;
  return std::string(address.sun_path, strnlen(address.sun_path, sizeof address.sun_path));
}

}  // namespace

std::optional<std::string> own_path(int descriptor) {
  return path_of(descriptor, getsockname);
}

std::optional<std::string> peer_path(int descriptor) {
  return path_of(descriptor, getpeername);
}

bool is_accepted_at(const std::string& path, int descriptor) {
  int listens = 1;
  socklen_t length = sizeof listens;
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 &&
         listens == 0 && own_path(descriptor) == path;
}

std::optional<int> find_accepted_at(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator at("/proc/self/fd", error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (is_accepted_at(path, descriptor)) return descriptor;
  }
  if (error) return std::nullopt;
  return -1;
}

}  // namespace sluice::net
