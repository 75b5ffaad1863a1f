// Keeps DPDK's habits away from the calling thread: it pins the thread, starts threads of its own
// that would take the process's signals, and writes to sockets whose peer may be dead.
#pragma once

#include <csignal>
#include <ctime>

#include <pthread.h>
#include <sched.h>

namespace sluice::net {

/// While it lives, threads started by this one inherit a mask that blocks every signal but those
/// that a thread's own faults raise. Its end restores the thread's affinity and mask; a SIGPIPE
/// that came up meanwhile is forgotten. Signal handlers are left alone: they belong to the whole
/// process, and DPDK puts back itself the one that it replaces for a moment (SIGBUS, huge pages).
class CallerState {
 public:
  CallerState() {
    pthread_getaffinity_np(pthread_self(), sizeof(affinity_), &affinity_);
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &mask_);
  }
  ~CallerState() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) > 0) {
    }
    pthread_setaffinity_np(pthread_self(), sizeof(affinity_), &affinity_);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  CallerState(const CallerState&) = delete;
  CallerState& operator=(const CallerState&) = delete;

  const cpu_set_t& affinity() const { return affinity_; }

 private:
  cpu_set_t affinity_{};
  sigset_t mask_{};
};

}  // namespace sluice::net
