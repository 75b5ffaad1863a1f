#include "bindings/torch/csrc/completions.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

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
  Operations pending;
  Operations expired;  // the library still has their tensors
  std::unique_lock lock(mutex_);
  while (true) {
    if (pending.empty()) changed_.wait(lock, [&] { return stopping_ || !watched_.empty(); });
    if (pending.empty() && watched_.empty()) return;
    pending.insert(pending.end(), watched_.begin(), watched_.end());
    watched_.clear();
    lock.unlock();
    drive(pending);
    settle(pending);
    std::copy_if(pending.begin(), pending.end(), std::back_inserter(expired),
                 [](const auto& one) { return one->is_settled(); });
    std::erase_if(pending, [](const auto& one) { return one->is_settled(); });
    std::erase_if(expired, [](const auto& one) { return one->is_over(); });
    lock.lock();
  }
}

/// For a moment. Collectives end in about the order of their calls, messages whenever the other
/// rank comes. What a caller waits for, that caller drives.
void Completions::drive(const Operations& pending) {
  constexpr std::chrono::milliseconds kMoment(1);
  const auto find = [&](bool collective) {
    return std::find_if(pending.begin(), pending.end(), [&](const auto& one) {
      return one->is_collective() == collective && !one->has_waiter();
    });
  };
  auto chosen = find(true);
  if (chosen == pending.end()) chosen = find(false);
  if (chosen == pending.end())
    std::this_thread::sleep_for(kMoment);
  else
    schedule_.wait(**chosen, Clock::now() + kMoment);
}

/// Those that are done, and those whose time is up.
void Completions::settle(const Operations& pending) {
  schedule_.advance();
  for (const auto& operation : pending)
    if (!schedule_.poll(*operation) && Clock::now() >= operation->deadline()) expire_(*operation);
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
