#include "bindings/torch/csrc/completions.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/memory/thread_without_signals.hpp"

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
  ended_.interrupt();
}

void Completions::run() {
  Operations pending;
  while (take_up(pending)) {
    settle(pending);
    std::erase_if(pending, [](const Watched& one) {
      return one.operation->is_settled() && one.operation->is_over();  // else its tensors are used
    });
    if (!pending.empty() || !is_stopping()) wait(pending);
  }
}

bool Completions::is_stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

/// What is watched since, once each. False: there is nothing to be done any more.
bool Completions::take_up(Operations& pending) {
  const std::lock_guard lock(mutex_);
  for (auto& operation : watched_) {
    const bool is_new = std::none_of(pending.begin(), pending.end(), [&](const Watched& one) {
      return one.operation == operation;
    });
    if (is_new) pending.push_back({std::move(operation)});
  }
  watched_.clear();
  return !stopping_ || !pending.empty();
}

/// Starts steps that are due, and settles operations that are over, or whose time is up.
void Completions::settle(Operations& pending) {
  schedule_.advance();
  for (Watched& one : pending) {
    Operation& operation = *one.operation;
    if (!schedule_.poll(operation) && Clock::now() >= operation.deadline()) expire_(operation);
    const Schedule::Started started = schedule_.started(operation);
    if (started.steps != std::exchange(one.steps, started.steps) && started.work.valid())
      ended_.add(started.work, operation.number());
  }
}

/// Until something has ended, is to be watched, or has no time left.
void Completions::wait(const Operations& pending) {
  auto until = Clock::time_point::max();
  for (const Watched& one : pending)
    if (!one.operation->is_settled()) until = std::min(until, one.operation->deadline());
  auto bound = std::chrono::nanoseconds::max();
  if (until != Clock::time_point::max()) bound = until - Clock::now();
  while (ended_.next(bound)) bound = {};
}

void Completions::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ended_.interrupt();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else if (thread_.joinable())
    thread_.join();
}

}  // namespace sluice_torch
