// The threads that complete a group's futures, and so run the callbacks that a program added to
// them. A callback may call collectives and wait for them, so it may need that another callback
// runs: one that it waits for itself, or that another rank waits for. So none waits for its turn:
// there are as many threads as callbacks that run at a time. One that is idle stays.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <sys/types.h>

namespace sluice_torch {

class Callbacks : public std::enable_shared_from_this<Callbacks> {
 public:
  Callbacks();

  /// Runs it soon in another thread. Here, where there is none: after stop(), in a process that was
  /// forked from the one that made this, and if the system has no thread to give.
  void run(std::function<void()> callback);

  /// Until all have ended; except if one of them calls this, which cannot wait for itself.
  void stop();

 private:
  bool hand_over(std::function<void()>& callback);
  void serve();

  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable thread_ended_;
  std::deque<std::function<void()>> due_;
  std::size_t threads_ = 0;
  std::size_t idle_ = 0;  // of them
  bool stopping_ = false;
};

}  // namespace sluice_torch
