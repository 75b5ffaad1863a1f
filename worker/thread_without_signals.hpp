// Threads of ours in somebody else's process.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace sluice {

/// Starts a thread that takes none of the host process's signals.
template <class F>
std::thread thread_without_signals(F&& run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<F>(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace sluice
