#include "worker/host/process_memory.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

namespace sluice::worker::host {
namespace {

constexpr std::size_t kTransfersMost = 64;  // in one call

ssize_t copy_vectors(decltype(process_vm_readv)& system_call, pid_t process,
                     std::span<const Transfer> transfers) {
  std::array<iovec, kTransfersMost> here, there;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    here[i] = {transfers[i].here, transfers[i].bytes};
    there[i] = {reinterpret_cast<void*>(transfers[i].there), transfers[i].bytes};
  }
  return system_call(process, here.data(), transfers.size(), there.data(), transfers.size(), 0);
}

ssize_t read_vectors(pid_t process, std::span<const Transfer> transfers) {
  return copy_vectors(process_vm_readv, process, transfers);
}

ssize_t write_vectors(pid_t process, std::span<const Transfer> transfers) {
  return copy_vectors(process_vm_writev, process, transfers);
}

bool has_ended(int life) {
  pollfd ended{.fd = life, .events = POLLIN, .revents = 0};
  return life < 0 || poll(&ended, 1, 0) != 0;
}

}  // namespace

int ProcessMemory::read(std::span<const Transfer> transfers) const {
  return copy(transfers, read_vectors);
}

int ProcessMemory::write(std::span<const Transfer> transfers) const {
  return copy(transfers, write_vectors);
}

int ProcessMemory::copy(std::span<const Transfer> transfers, Copy& copy_some) const {
  if (has_ended(life_)) return ESRCH;
  for (; !transfers.empty();) {
    const auto some = transfers.first(std::min(transfers.size(), kTransfersMost));
    ssize_t bytes = 0;
    for (const Transfer& transfer : some) bytes += static_cast<ssize_t>(transfer.bytes);
    const ssize_t copied = copy_some(process_, some);
    if (copied < 0) return errno;
    if (copied != bytes) return EFAULT;
    transfers = transfers.subspan(some.size());
  }
  return 0;
}

// ------------------------------------------------------------------------------------------- Yama
namespace {

/// Returns 0 if the parent is not known.
pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // a name may contain any character
  if (name_end == std::string::npos || name_end + 4 > text.size()) return 0;
  return static_cast<pid_t>(std::strtol(text.c_str() + name_end + 4, nullptr, 10));
}

bool is_restricted() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  return file.get() == '1';
}

/// The processes that this process permits to access it.
class Permitted {
 public:
  void add(std::span<const pid_t> processes) {
    const std::scoped_lock lock(mutex_);
    processes_.insert(processes.begin(), processes.end());
    apply();
  }
  void remove(std::span<const pid_t> processes) {
    const std::scoped_lock lock(mutex_);
    for (const pid_t process : processes) processes_.erase(processes_.find(process));
    apply();
  }

 private:
  void apply() const {
    const std::vector<pid_t> all(processes_.begin(), processes_.end());
    prctl(PR_SET_PTRACER, static_cast<unsigned long>(common_ancestor(all)), 0, 0, 0);
  }

  std::mutex mutex_;
  std::multiset<pid_t> processes_;
};

Permitted& permitted() {
  static Permitted of_process;
  return of_process;
}

}  // namespace

pid_t common_ancestor(std::span<const pid_t> processes) {
  std::vector<pid_t> common;  // ancestors of all that were looked at so far, nearest first
  for (const pid_t process : processes) {
    std::vector<pid_t> line;
    for (pid_t next = process; next > 1; next = parent_of(next)) line.push_back(next);
    if (process == processes.front())
      common = std::move(line);
    else
      std::erase_if(common,
                    [&](pid_t p) { return std::find(line.begin(), line.end(), p) == line.end(); });
  }
  return common.empty() ? 0 : common.front();
}

TracerPermit::TracerPermit(std::vector<pid_t> processes)
    : processes_(is_restricted() ? std::move(processes) : std::vector<pid_t>()) {
  if (!processes_.empty()) permitted().add(processes_);
}

TracerPermit::~TracerPermit() {
  if (!processes_.empty()) permitted().remove(processes_);
}

}  // namespace sluice::worker::host
