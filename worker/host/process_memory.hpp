// Memory of another process of this user, which the kernel copies: process_vm_readv(2). Where the
// kernel's Yama lets a process reach its children alone (ptrace_scope 1), a process can permit
// others to reach it, which is a TracerPermit.
#pragma once

#include <span>
#include <vector>

#include <sys/types.h>

#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

class ProcessMemory {
 public:
  /// `life` is readable once the process has ended, so that another one of its number is not taken
  /// for it; it outlives this object. Negative: it has.
  ProcessMemory(pid_t process, int life) : process_(process), life_(life) {}

  /// 0, or an errno: ESRCH where the process has ended, EFAULT where it has no such memory. Of
  /// several transfers some may be done then.
  int read(std::span<const Transfer> transfers) const;
  int write(std::span<const Transfer> transfers) const;

 private:
  using Copy = ssize_t(pid_t, std::span<const Transfer>);
  int copy(std::span<const Transfer> transfers, Copy& copy) const;

  pid_t process_;
  int life_;
};

/// As long as it lives, these processes may reach this one's memory. Yama knows one process, with
/// its children and theirs: named is that from which all of them descend, if there is one but the
/// first of all. What the program itself has permitted ends.
class TracerPermit {
 public:
  explicit TracerPermit(std::vector<pid_t> processes);
  ~TracerPermit();
  TracerPermit(const TracerPermit&) = delete;
  TracerPermit& operator=(const TracerPermit&) = delete;

 private:
  const std::vector<pid_t> processes_;
};

/// The nearest process from which all of these descend, or that is one of them; 0: none but the
/// first of all.
pid_t common_ancestor(std::span<const pid_t> processes);

}  // namespace sluice::worker::host
