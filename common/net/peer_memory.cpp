#include "common/net/peer_memory.hpp"

#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <rte_memory.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sluice::net {

thread_local int PeerMemoryUse::port_of_thread_ = PeerMemoryUse::kNone;
std::array<PeerMemoryUse::OfQueue, limits::kMaxLanes> PeerMemoryUse::in_use_;

namespace {

std::array<std::atomic<bool>, limits::kMaxPortIds> lost;

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool shared = false;
};

// Reads /proc/self/maps without the heap, as a signal handler must.
class MappingReader {
 public:
  MappingReader() : fd_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~MappingReader() { close(fd_); }
  MappingReader(const MappingReader&) = delete;
  MappingReader& operator=(const MappingReader&) = delete;

  // A line: "7f00-7f10 rw-s 00000000 00:01 1234 /memfd:worker (deleted)".
  std::optional<Mapping> next() {
    constexpr int kSharedAt = 3;
    Mapping mapping;
    mapping.begin = hexadecimal();
    mapping.end = hexadecimal();
    for (int at = 0; at <= kSharedAt; ++at) mapping.shared = character() == 's';
    for (int c = character(); c != '\n'; c = character())
      if (c == kEnd) return std::nullopt;
    return mapping;
  }

 private:
  static constexpr int kEnd = -1;

  int character() {
    if (at_ == count_) {
      count_ = read(fd_, buffer_.data(), buffer_.size());
      at_ = 0;
    }
    if (count_ > 0) return buffer_[static_cast<std::size_t>(at_++)];
    count_ = 0;
    return kEnd;
  }

  // Reads a number, and the character after it.
  std::uintptr_t hexadecimal() {
    std::uintptr_t number = 0;
    for (;;) {
      const int c = character();
      if (c >= '0' && c <= '9')
        number = number * 16 + static_cast<unsigned>(c - '0');
      else if (c >= 'a' && c <= 'f')
        number = number * 16 + static_cast<unsigned>(c - 'a' + 10);
      else
        return number;
    }
  }

  int fd_;
  std::array<char, 4096> buffer_;
  ssize_t at_ = 0;
  ssize_t count_ = 0;
};

// A shared mapping that is not DPDK's own memory belongs to a peer; or it did, and another thread
// has just replaced it.
std::optional<Mapping> mapping_of(const void* address) {
  if (rte_mem_virt2memseg_list(address)) return std::nullopt;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  MappingReader reader;
  while (const auto mapping = reader.next())
    if (at >= mapping->begin && at < mapping->end) return mapping;
  return std::nullopt;
}

// The address of the thread's last fault where memory did not belong to a peer any more. If the
// same fault comes again at once, the memory never did.
thread_local const void* last_at_replaced = nullptr;

bool was_replaced_meanwhile(const Mapping& mapping, const void* address) {
  if (mapping.shared || PeerMemoryUse::port_of_thread() == PeerMemoryUse::kNone) return false;
  return std::exchange(last_at_replaced, address) != address;
}

// Replaces the whole mapping: huge pages cannot be replaced in part, and nothing of it is worth
// keeping. DPDK unmaps it later as if it were the peer's. It does not do so at the same time: its
// threads take a queue's lock before they unmap memory that the user of the queue touches.
bool replace(const Mapping& mapping) {
  void* const place = reinterpret_cast<void*>(mapping.begin);
  return mmap(place, mapping.end - mapping.begin, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == place;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const bool is_fault = info->si_code > 0;  // not sent by a process
  const auto mapping = is_fault ? mapping_of(info->si_addr) : std::nullopt;
  if (mapping &&
      (was_replaced_meanwhile(*mapping, info->si_addr) || (mapping->shared && replace(*mapping)))) {
    const int port = PeerMemoryUse::port_of_thread();
    if (port != PeerMemoryUse::kNone) lost[static_cast<std::size_t>(port)] = true;
  } else {
    std::signal(SIGBUS, SIG_DFL);  // the fault comes again at once
    if (!is_fault) std::raise(SIGBUS);
  }
  errno = saved_errno;
}

}  // namespace

void survive_loss_of_peer_memory() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

bool has_lost_peer_memory(std::uint16_t port_id) {
  return lost[port_id].exchange(false);
}

}  // namespace sluice::net
