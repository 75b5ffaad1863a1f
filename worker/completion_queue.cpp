#include "worker/completion_queue.hpp"

#include <algorithm>
#include <utility>

#include "worker/progress.hpp"
#include "worker/work.hpp"

namespace sluice {
namespace {

/// How often a thread that leaves the loop to another looks whether that one still drives it.
constexpr std::chrono::milliseconds kLook{1};

}  // namespace

void CompletionQueue::Impl::push(std::uint64_t tag, std::atomic<bool>& done) {
  const std::lock_guard lock(mutex);
  --pending;
  ended.push_back(tag);
  done.store(true, std::memory_order_release);
  due.store(true, std::memory_order_release);
  changed.notify_one();
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

void CompletionQueue::Impl::refuse_if_inherited() const {
  if (generation != fork_generation())
    throw Error(ErrorCode::kUnavailable,
                "this process was forked from the one that made the CompletionQueue, which alone "
                "can use it");
}

CompletionQueue::CompletionQueue() : impl_(std::make_shared<Impl>()) {}
CompletionQueue::~CompletionQueue() = default;

void CompletionQueue::add(const Work& work, std::uint64_t tag) {
  if (!work.valid()) throw Error(ErrorCode::kInvalidArgument, "CompletionQueue: no op to wait for");
  impl_->refuse_if_inherited();
  impl_->expect(work.state_->progress);
  try {
    if (!work.state_->tell(impl_, tag)) impl_->push(tag, work.state_->done);
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
        queue.due = !queue.ended.empty() || queue.interrupted;
        return tag;
      }
      if (std::exchange(queue.interrupted, false)) {
        queue.due = false;
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
  const std::lock_guard lock(impl_->mutex);
  impl_->interrupted = true;
  impl_->due.store(true, std::memory_order_release);
  impl_->changed.notify_all();
}

}  // namespace sluice
