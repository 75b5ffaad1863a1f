#include "common/config/claim.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/config/address.hpp"
#include "common/memory/own_file.hpp"

namespace sluice::config {
namespace {

using memory::Descriptor;

/// Names of one UDP port: others may hold all of them, and then it is used without a claim.
constexpr int kNames = 4;

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Name(const std::string& text)
      : length(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())) {
    address.sun_family = AF_UNIX;
    text.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Descriptor unix_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Whether the process may receive from network ports of this machine: it runs as root or as our
/// user, or it has CAP_NET_RAW, except in a user namespace of its own.
bool may_use_ports(const ucred& holder) {
  if (holder.uid == geteuid() || holder.uid == 0) return true;
  constexpr unsigned kNetRaw = 13;  // CAP_NET_RAW
  const std::string process = "/proc/" + std::to_string(holder.pid);
  const std::string status = content_of(process + "/status");
  const std::size_t at = status.find("CapEff:\t");
  if (at == status.npos || content_of(process + "/uid_map") != content_of("/proc/self/uid_map"))
    return false;
  const auto capabilities = std::strtoull(status.c_str() + at + 8, nullptr, 16);
  return (capabilities >> kNetRaw & 1) != 0;
}

/// Whether a process that may use ports holds the name. Others can make this question fail, but
/// that does not stop us.
bool is_held(const Name& name) {
  const Descriptor asking = unix_socket();
  if (connect(asking.get(), name.get(), name.length) != 0) return false;
  ucred holder{};
  socklen_t size = sizeof holder;
  return getsockopt(asking.get(), SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0 ||
         may_use_ports(holder);
}

}  // namespace

Claim Claim::on_directory(const std::string& path) {
  Descriptor lock = memory::open_own_file(path + "/lock");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    throw Error(ErrorCode::kUnavailable,
                "directory '" + path + "' is in use by another aggregator: give each its own");
  return Claim(std::move(lock));
}

// A claim is a socket with an abstract name, which is unique in a network namespace. Any process
// may bind one, so a holder that cannot use the port does not count: another name is used instead.
// No process accepts connections: those that ask stay in the queue.
Claim Claim::on_udp_port(std::uint32_t ipv4, std::uint16_t port) {
  const std::string where = ipv4_to_string(ipv4) + ":" + std::to_string(port);
  Descriptor mine;
  for (int i = 0; i < kNames; ++i) {
    const Name name("sluice " + where + (i == 0 ? "" : " " + std::to_string(i)));
    if (is_held(name))
      throw Error(ErrorCode::kUnavailable,
                  "UDP port " + where + " is in use by another process of this machine");
    if (mine) continue;
    Descriptor made = unix_socket();
    if (bind(made.get(), name.get(), name.length) == 0 && listen(made.get(), SOMAXCONN) == 0)
      mine = std::move(made);
    else if (errno != EADDRINUSE)
      throw Error(ErrorCode::kUnavailable,
                  "UDP port " + where + " cannot be claimed: " + std::strerror(errno));
  }
  return Claim(std::move(mine));
}

}  // namespace sluice::config
