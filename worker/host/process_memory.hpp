// Access to the memory of another process of this user: the kernel copies it (process_vm_readv(2)).
// The kernel's Yama may permit this only to a parent (ptrace_scope 1). Then a process must permit
// others to access it, with a TracerPermit.
#pragma once

#include <span>
#include <vector>

#include <sys/types.h>

#include "worker/host/engine/board.hpp"

namespace sluice::worker::host {

class ProcessMemory {
 public:
  /// `life` is readable once the process has ended, so that another process with the same number is
  /// not accessed. It must outlive this object. If it is negative, the process has ended.
  ProcessMemory(pid_t process, int life) : process_(process), life_(life) {}

  /// Returns 0 or an errno: ESRCH if the process has ended, EFAULT if it has no such memory. If
  /// there are several transfers, a part of them may have been done then.
  int read(std::span<const Transfer> transfers) const;
  int write(std::span<const Transfer> transfers) const;

 private:
  using Copy = ssize_t(pid_t, std::span<const Transfer>);
  int copy(std::span<const Transfer> transfers, Copy& copy) const;

  pid_t process_;
  int life_;
};

/// While it lives, these processes may access the memory of this one. Yama permits one process with
/// all its descendants, so the permit names their nearest common ancestor, unless that is process
/// 1. It replaces a permit that the program itself has given.
class TracerPermit {
 public:
  explicit TracerPermit(std::vector<pid_t> processes);
  ~TracerPermit();
  TracerPermit(const TracerPermit&) = delete;
  TracerPermit& operator=(const TracerPermit&) = delete;

 private:
  const std::vector<pid_t> processes_;
};

/// The nearest process that is an ancestor of all of these, or one of them. Returns 0 if that is
/// only process 1.
pid_t common_ancestor(std::span<const pid_t> processes);

}  // namespace sluice::worker::host
