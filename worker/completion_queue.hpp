// What lies behind a CompletionQueue. The works' states refer to it, so it lives until the last of
// them has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include <sluice/sluice.hpp>

#include "worker/fork_generation.hpp"

namespace sluice {

class Progress;

struct CompletionQueue::Impl {
  /// An op has ended: its tag is here for whoever finds it done, and it is done for whoever gets
  /// its tag. Called by whoever holds the turn: it must not wait.
  void push(std::uint64_t tag, std::atomic<bool>& done);

  /// An op is about to be added, whose context's loop is to be driven; it was not.
  void expect(std::weak_ptr<Progress> loop);
  void expect_no_more();

  /// Whether next() has something to return.
  bool is_due() const { return due.load(std::memory_order_acquire); }
  void refuse_if_inherited() const;

  const unsigned generation = fork_generation();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::uint64_t> ended;  // the tags of works that ended, first first
  std::size_t pending = 0;          // works that have not
  bool interrupted = false;
  std::weak_ptr<Progress> progress;  // of the newest work
  std::atomic<bool> due{false};
};

}  // namespace sluice
