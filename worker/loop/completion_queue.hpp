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
#include <span>

#include <sluice/sluice.hpp>

#include "common/memory/descriptor.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {

class Progress;

struct CompletionQueue::Impl {
  /// A queue that is to be told of an op's end.
  struct Told {
    std::shared_ptr<Impl> queue;
    std::uint64_t tag = 0;
  };
  /// An op has ended: its tag is in each queue, which are different ones, for whoever finds it
  /// done, and it is done for whoever gets a tag. Called by whoever holds the turn: it must not
  /// wait.
  static void push(std::span<Told> told, std::atomic<bool>& done);

  /// An op is about to be added, whose context's loop is to be driven; it was not.
  void expect(std::weak_ptr<Progress> loop);
  void expect_no_more();

  /// With the mutex held: whether next() has something to return, as the event tells outside.
  void set_due(bool is);
  int descriptor();

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
  memory::Descriptor event;  // an eventfd, once somebody has asked for it
};

}  // namespace sluice
