#include "bindings/torch/csrc/completions.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "worker/thread_without_signals.hpp"

namespace sluice_torch {

Completions::Completions(Schedule& schedule, std::function<void(Operation&)> expire)
    : schedule_(schedule), expire_(std::move(expire)) {}

void Completions::watch(std::shared_ptr<Operation> operation, std::shared_ptr<const void> owner) {
  std::unique_lock lock(mutex_);
  if (stopping_) {  // every operation is over, but nobody may have looked
    lock.unlock();
    schedule_.wait(*operation, Clock::now());
    return;
  }
  watched_.push_back(std::move(operation));
  if (!thread_.joinable())
    thread_ = sluice::thread_without_signals([this, owner = std::move(owner)] { run(); });
  changed_.notify_one();
}

void Completions::run() {
  std::vector<std::shared_ptr<Operation>> expired;  // the library still has their tensors
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !watched_.empty(); });
    if (watched_.empty()) return;
    auto operation = std::move(watched_.front());
    watched_.pop_front();
    lock.unlock();
    attend(*operation);
    expired.push_back(std::move(operation));
    std::erase_if(expired, [](const auto& one) { return one->is_over(); });
    lock.lock();
  }
}

/// Until it is settled, by its deadline. A caller that waits for it is left to drive it.
void Completions::attend(Operation& operation) {
  constexpr std::chrono::milliseconds kShortest(1);
  constexpr std::chrono::milliseconds kLongest(16);
  for (auto turn = kShortest; !operation.is_settled(); turn = std::min(2 * turn, kLongest)) {
    const auto now = Clock::now();
    if (operation.has_waiter())
      std::this_thread::sleep_for(kShortest);
    else if (now >= operation.deadline() && !schedule_.wait(operation, now))
      expire_(operation);
    else
      schedule_.wait(operation, std::min(now + turn, operation.deadline()));
  }
}

void Completions::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else if (thread_.joinable())
    thread_.join();
}

}  // namespace sluice_torch
