// Keeps DPDK's habits away from the calling thread: it pins the thread, starts threads of its own
// that would take the process's signals, may replace signal handlers, and writes to sockets whose
// peer may be dead.
#pragma once

#include <array>
#include <csignal>
#include <ctime>

#include <pthread.h>
#include <sched.h>

namespace sluice::net {

/// While it lives, threads started by this one inherit a mask that blocks every signal. Its end
/// restores the thread's affinity and mask, and the process's signal handlers; a SIGPIPE that came
/// up meanwhile is forgotten.
class CallerState {
 public:
  CallerState() {
    pthread_getaffinity_np(pthread_self(), sizeof(affinity_), &affinity_);
    for (int s = 1; s < NSIG; ++s) saved_[s] = sigaction(s, nullptr, &handlers_[s]) == 0;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
  }
  ~CallerState() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec at_once{};
    while (sigtimedwait(&pipe, nullptr, &at_once) > 0) {
    }
    for (int s = 1; s < NSIG; ++s)
      if (saved_[s]) sigaction(s, &handlers_[s], nullptr);
    pthread_setaffinity_np(pthread_self(), sizeof(affinity_), &affinity_);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  CallerState(const CallerState&) = delete;
  CallerState& operator=(const CallerState&) = delete;

  const cpu_set_t& affinity() const { return affinity_; }

 private:
  cpu_set_t affinity_{};
  sigset_t mask_{};
  std::array<struct sigaction, NSIG> handlers_{};
  std::array<bool, NSIG> saved_{};
};

}  // namespace sluice::net
