#include "bindings/torch/csrc/callbacks.hpp"

#include <utility>

#include <unistd.h>

#include <sluice/error.hpp>

#include "common/memory/thread_without_signals.hpp"

namespace sluice_torch {
namespace {

thread_local const Callbacks* served_here = nullptr;

}  // namespace

Callbacks::Callbacks() : process_(getpid()) {}

void Callbacks::run(std::function<void()> callback) {
  const bool is_handed_over = getpid() == process_ && hand_over(callback);
  if (!is_handed_over) callback();
}

/// False: there is no thread for it.
bool Callbacks::hand_over(std::function<void()>& callback) {
  const std::lock_guard lock(mutex_);
  if (stopping_ && threads_ == 0) return false;
  if (due_.size() >= idle_) {
    try {
      sluice::thread_without_signals([self = shared_from_this()] { self->serve(); }).detach();
      ++threads_;
    } catch (const sluice::Error&) {
      if (threads_ == 0) return false;  // else it is done when one of them has the time
    }
  }
  due_.push_back(std::move(callback));
  arrived_.notify_one();
  return true;
}

void Callbacks::serve() {
  served_here = this;
  std::unique_lock lock(mutex_);
  while (true) {
    if (!due_.empty()) {
      auto callback = std::move(due_.front());
      due_.pop_front();
      lock.unlock();
      callback();
      callback = {};  // what it holds may end here, too
      lock.lock();
    } else if (stopping_ || idle_ != 0) {
      break;
    } else {
      ++idle_;
      arrived_.wait(lock, [&] { return !due_.empty() || stopping_; });
      --idle_;
    }
  }
  --threads_;
  thread_ended_.notify_all();
}

void Callbacks::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  arrived_.notify_all();
  if (served_here != this) thread_ended_.wait(lock, [&] { return threads_ == 0; });
}

}  // namespace sluice_torch
