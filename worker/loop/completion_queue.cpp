#include "worker/loop/completion_queue.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/eventfd.h>

#include "worker/loop/progress.hpp"
#include "worker/loop/work.hpp"

namespace sluice {
namespace {

/// How often a thread checks whether the thread to which it left the loop still drives it.
constexpr std::chrono::milliseconds kLook{1};

}  // namespace

void CompletionQueue::Impl::push(std::span<Receiver> receivers, std::atomic<bool>& done) {
  // Sorted, so that threads that end ops lock the queues in the same order.
  std::ranges::sort(receivers, std::less<>{}, [](const Receiver& one) { return one.queue.get(); });
  std::vector<std::unique_lock<std::mutex>> locks;
  locks.reserve(receivers.size());
  for (const Receiver& one : receivers) {
    locks.emplace_back(one.queue->mutex);
    --one.queue->pending;
    one.queue->ended.push_back(one.tag);
  }
  done.store(true, std::memory_order_release);
  for (const Receiver& one : receivers) {
    one.queue->set_due(true);
    one.queue->changed.notify_one();
  }
}

void CompletionQueue::Impl::expect(std::weak_ptr<Progress> loop) {
  const std::lock_guard lock(mutex);
  ++pending;
  progress = std::move(loop);
  changed.notify_one();
}

void CompletionQueue::Impl::expect_no_more() {
  const std::lock_guard lock(mutex);
  --pending;
}

void CompletionQueue::Impl::set_due(bool is) {
  if (due.exchange(is, std::memory_order_acq_rel) == is || !event) return;
  eventfd_t count = 1;
  const int result = is ? eventfd_write(event.get(), count) : eventfd_read(event.get(), &count);
  assert(result == 0);  // its count is 0 or 1
  static_cast<void>(result);
}

int CompletionQueue::Impl::descriptor() {
  const std::lock_guard lock(mutex);
  if (!event) event = memory::Descriptor(eventfd(is_due() ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event)
    throw Error(ErrorCode::kUnavailable,
                "CompletionQueue: no file descriptor: " + std::generic_category().message(errno));
  return event.get();
}

void CompletionQueue::Impl::refuse_if_inherited() const {
  if (generation != fork_generation())
    throw Error(ErrorCode::kUnavailable,
                "this process was forked from the one that made the CompletionQueue, which alone "
                "can use it");
}

CompletionQueue::CompletionQueue() : impl_(std::make_shared<Impl>()) {}
/// The states of works that have not ended keep the rest alive.
CompletionQueue::~CompletionQueue() {
  // In a forked child the mutex may stay locked for ever.
  if (impl_->generation != fork_generation()) return;
  memory::Descriptor closed;
  const std::lock_guard lock(impl_->mutex);
  std::swap(closed, impl_->event);
}

int CompletionQueue::descriptor() {
  impl_->refuse_if_inherited();
  return impl_->descriptor();
}

void CompletionQueue::add(const Work& work, std::uint64_t tag) {
  if (!work.valid()) throw Error(ErrorCode::kInvalidArgument, "CompletionQueue: no op to wait for");
  impl_->refuse_if_inherited();
  impl_->expect(work.state_->progress);
  try {
    if (work.state_->tell(impl_, tag)) return;
    Impl::Receiver receiver{impl_, tag};
    Impl::push({&receiver, 1}, work.state_->done);
  } catch (const Error&) {
    impl_->expect_no_more();
    throw;
  }
}

std::optional<std::uint64_t> CompletionQueue::next(std::chrono::nanoseconds bound) {
  Impl& queue = *impl_;
  queue.refuse_if_inherited();
  const auto is_due = [&] { return queue.is_due(); };
  const Time deadline = bound.count() > 0 ? after(Progress::now(), bound) : Time{};
  while (true) {
    std::shared_ptr<Progress> progress;
    {
      std::unique_lock lock(queue.mutex);
      if (!queue.ended.empty()) {
        const std::uint64_t tag = queue.ended.front();
        queue.ended.pop_front();
        queue.set_due(!queue.ended.empty() || queue.interrupted);
        return tag;
      }
      if (std::exchange(queue.interrupted, false)) {
        queue.set_due(false);
        return std::nullopt;
      }
      const Time now = Progress::now();
      if (now >= deadline) return std::nullopt;
      if (queue.pending != 0) progress = queue.progress.lock();
      if (!progress && deadline == kNever)
        queue.changed.wait(lock);
      else if (!progress || progress->is_driven())
        queue.changed.wait_for(
            lock, progress ? std::min<Duration>(kLook, deadline - now) : deadline - now);
      if (!progress || progress->is_driven()) continue;
    }
    progress->drive_alone(is_due, deadline);
  }
}

void CompletionQueue::interrupt() {
  if (impl_->generation != fork_generation()) return;  // the descriptor belongs to the parent, too
  const std::lock_guard lock(impl_->mutex);
  impl_->interrupted = true;
  impl_->set_due(true);
  impl_->changed.notify_all();
}

}  // namespace sluice
