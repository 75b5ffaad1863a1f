// The thread of a group that waits for those operations that nobody else may wait for: whose future
// was asked for, whose steps must go on by themselves, and whose handle was dropped. It starts with
// the first of them.
//
// They end in any order: a message only when the other rank calls for it, however late. So the
// library tells of each step's end, and each time all operations are looked at: the next step is
// started, what is over is settled, what has no time left ends. Nothing here waits for a program's
// callbacks: see Callbacks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "bindings/torch/csrc/operation.hpp"
#include "bindings/torch/csrc/schedule.hpp"

namespace sluice_torch {

class Completions {
 public:
  /// `expire` settles an operation whose time is up.
  Completions(Schedule& schedule, std::function<void(Operation&)> expire);

  /// Settles it by its deadline, and keeps it until it is over. The thread keeps `owner`, of whom
  /// this is a part, until it ends.
  void watch(std::shared_ptr<Operation> operation, std::shared_ptr<const void> owner);

  /// Once the schedule is closed: settles all that were watched, and ends the thread.
  void stop();

 private:
  struct Watched {
    std::shared_ptr<Operation> operation;
    std::size_t steps = 0;  ///< of so many the queue was told
  };
  using Operations = std::vector<Watched>;

  void run();
  bool is_stopping();
  bool take_up(Operations& pending);
  void settle(Operations& pending);
  void wait(const Operations& pending);

  Schedule& schedule_;
  const std::function<void(Operation&)> expire_;
  sluice::CompletionQueue ended_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Operation>> watched_;  // that the thread has not taken up yet
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice_torch
