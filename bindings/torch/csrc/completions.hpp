// The thread of a group that waits for those operations that nobody else may wait for: whose future
// was asked for, whose steps must go on by themselves, and whose handle was dropped. It starts with
// the first of them.
//
// They end in any order: a message only when the other rank calls for it, however late. So it
// drives the library for one of them, a moment at a time, and then looks at all.
#pragma once

#include <condition_variable>
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

  /// Once the schedule is closed: settles all that were watched, and ends the thread. A callback of
  /// a future, which runs in it, may call this.
  void stop();

 private:
  using Operations = std::vector<std::shared_ptr<Operation>>;

  void run();
  void drive(const Operations& pending);
  void settle(const Operations& pending);

  Schedule& schedule_;
  const std::function<void(Operation&)> expire_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Operations watched_;  // that the thread has not taken up yet
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice_torch
