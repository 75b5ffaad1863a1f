#include "common/net/stuck_peer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <rte_version.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/net/socket_paths.hpp"

namespace sluice::net {

#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)
constinit const std::string_view kVhostThread = "dpdk-vhost-evt";
constinit const std::string_view kInterruptThread = "dpdk-intr";
#else
constinit const std::string_view kVhostThread = "vhost-events";
constinit const std::string_view kInterruptThread = "eal-intr-thread";
#endif

namespace {

namespace fs = std::filesystem;

constexpr const char* kThreads = "/proc/self/task";

bool waits_for_peer(long call) {
  // Without close(): its number may belong to another file by then, and sockets of peers are closed
  // elsewhere.
  constexpr long kCalls[] = {SYS_read,    SYS_write, SYS_recvfrom, SYS_sendto,    SYS_recvmsg,
                             SYS_sendmsg, SYS_fstat, SYS_fcntl,    SYS_newfstatat};
  return std::find(std::begin(kCalls), std::end(kCalls), call) != std::end(kCalls);
}

// Reads without waiting, whatever the flags say, as a peer shares these with us. We may have only
// the writing end of a pipe: opening it once more gives the reading end.
void empty(int fd) {
  std::array<char, 65536> ignored;
  const std::string again = "/proc/self/fd/" + std::to_string(fd);
  std::error_code error;
  const bool is_pipe = fs::read_symlink(again, error).native().starts_with("pipe:");
  const int pipe = is_pipe ? open(again.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
  if (pipe >= 0) {
    (void)!read(pipe, ignored.data(), ignored.size());
    close(pipe);
  } else {
    const iovec all{ignored.data(), ignored.size()};
    (void)!preadv2(fd, &all, 1, -1, RWF_NOWAIT);
  }
}

}  // namespace

pid_t find_thread(std::string_view name) {
  std::error_code error;
  for (fs::directory_iterator at(kThreads, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    std::string found;
    std::getline(std::ifstream(at->path() / "comm"), found);
    if (found == name) return static_cast<pid_t>(std::stol(at->path().filename()));
  }
  return 0;
}

// The file says "running", or it has the number of a system call and its arguments. Of the calls
// that we check, the first argument is the descriptor.
int descriptor_waited_for(pid_t thread) {
  std::ifstream file(fs::path(kThreads) / std::to_string(thread) / "syscall");
  long call = -1;
  std::string argument;
  if (!(file >> call >> argument) || !waits_for_peer(call)) return -1;
  int descriptor = -1;
  if (argument.starts_with("0x"))
    std::from_chars(argument.data() + 2, argument.data() + argument.size(), descriptor, 16);
  return descriptor;
}

// Works on a copy of the descriptor, which stays valid when DPDK closes its own meanwhile.
std::string let_go(int descriptor) {
  const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return {};
  const auto own = own_path(copy);
  const auto peer = peer_path(copy);
  if (own && peer)
    shutdown(copy, SHUT_RDWR);
  else
    empty(copy);
  close(copy);
  return own && peer ? *own + *peer : "";
}

void end_wait(pid_t thread) {
  const int descriptor = descriptor_waited_for(thread);
  if (descriptor >= 0) let_go(descriptor);
}

void interrupt(pid_t thread) {
  if (thread > 0) syscall(SYS_tgkill, getpid(), thread, SIGURG);
}

int StuckPeerWatch::look(Time now) {
  if (thread_ == 0 && !name_.empty()) thread_ = find_thread(name_);
  const int descriptor = thread_ == 0 ? -1 : descriptor_waited_for(thread_);
  if (descriptor < 0 || descriptor != descriptor_) {
    descriptor_ = descriptor;
    since_ = now;
    looks_ = 0;
    return -1;
  }
  if (++looks_ < kLooksMin || now < after(since_, kTimeLimit)) return -1;
  descriptor_ = -1;
  return descriptor;
}

}  // namespace sluice::net
