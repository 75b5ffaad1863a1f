// Protects the calling thread from DPDK, which pins the thread, starts threads that would receive
// the process's signals, and writes to sockets whose peer may have died.
#pragma once

#include <csignal>
#include <ctime>

#include <pthread.h>
#include <sched.h>

namespace sluice::net {

/// While it lives, threads started by this one inherit a mask that blocks every signal except those
/// that a thread's own faults raise. Its destructor restores the thread's affinity and mask, and
/// discards a SIGPIPE that was raised meanwhile. It does not touch signal handlers, which belong to
/// the whole process. DPDK itself restores the one handler that it replaces for a moment (SIGBUS,
/// for huge pages).
class ThreadStateGuard {
 public:
  ThreadStateGuard() {
    pthread_getaffinity_np(pthread_self(), sizeof(affinity_), &affinity_);
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &mask_);
  }
  ~ThreadStateGuard() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) > 0) {
    }
    pthread_setaffinity_np(pthread_self(), sizeof(affinity_), &affinity_);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  ThreadStateGuard(const ThreadStateGuard&) = delete;
  ThreadStateGuard& operator=(const ThreadStateGuard&) = delete;

  const cpu_set_t& affinity() const { return affinity_; }

 private:
  cpu_set_t affinity_{};
  sigset_t mask_{};
};

}  // namespace sluice::net
