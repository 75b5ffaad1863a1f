// Threads that take no signals: these are for the host process, or for the thread that waits for
// them. In such a thread a write beyond the limit of a file (ulimit -f) fails, and does not end the
// process.
#pragma once

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <sluice/error.hpp>

namespace sluice {

/// While it lives, the thread takes no signal.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/// Starts a thread that takes none of the host process's signals. Throws kUnavailable if the system
/// has no thread left.
template <class F>
std::thread thread_without_signals(F&& run) {
  const NoSignals inherited;
  try {
    return std::thread(std::forward<F>(run));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kUnavailable,
                std::string("a thread cannot be created: ") + error.what());
  }
}

}  // namespace sluice
