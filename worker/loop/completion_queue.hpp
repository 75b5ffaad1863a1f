// The implementation of CompletionQueue. The states of works refer to it, so it lives until the
// last of them has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include <sluice/sluice.hpp>

#include "common/memory/descriptor.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {

class Progress;

struct CompletionQueue::Impl {
  /// A queue that is informed when an op ends.
  struct Receiver {
    std::shared_ptr<Impl> queue;
    std::uint64_t tag = 0;
  };
  /// An op has ended. Puts its tag into each of these queues, which are different. A caller that
  /// sees the op as done finds the tags, and a caller that gets a tag sees the op as done. The
  /// caller holds the loop's lock, so this must not wait.
  static void push(std::span<Receiver> receivers, std::atomic<bool>& done);

  /// Announces that an op of a context, whose loop next() must drive, is about to be added; and
  /// withdraws the announcement.
  void expect(std::weak_ptr<Progress> loop);
  void expect_no_more();

  /// Sets whether next() has something to return, in the event, too. The caller holds the mutex.
  void set_due(bool is);
  int descriptor();

  /// Whether next() has something to return.
  bool is_due() const { return due.load(std::memory_order_acquire); }
  void refuse_if_inherited() const;

  const unsigned generation = fork_generation();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::uint64_t> ended;  // the tags of works that have ended, oldest first
  std::size_t pending = 0;          // works that have not ended
  bool interrupted = false;
  std::weak_ptr<Progress> progress;  // of the newest work
  std::atomic<bool> due{false};
  memory::Descriptor event;  // an eventfd; it is made when somebody first asks for it
};

}  // namespace sluice
