#include "bindings/torch/csrc/schedule.hpp"

#include <algorithm>
#include <utility>

#include "bindings/torch/csrc/errors.hpp"
#include "bindings/torch/csrc/layout_tag.hpp"

namespace sluice_torch {
namespace {

std::runtime_error closed() {
  return failure("the process group is closed");
}

std::exception_ptr told(const sluice::Error& error, const Operation& operation) {
  const std::string why = operation.is_collective() ? with_layouts(error.what()) : error.what();
  return translated({error.code(), why}, operation.description());
}

}  // namespace

Schedule::Schedule(std::unique_ptr<sluice::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

void Schedule::submit(const std::shared_ptr<Operation>& operation) {
  const std::lock_guard lock(mutex_);
  if (!communicator_) throw closed();
  if (may_start_at_once(*operation)) start_step(*operation);
  if (!operation->issued_) unissued_.push_back(operation);
}

/// With the lock held.
bool Schedule::may_start_at_once(const Operation& operation) const {
  const auto stays_behind = [&](const std::shared_ptr<Operation>& before) {
    return operation.request_.is_collective || !before->request_.is_collective;
  };
  return !operation.request_.staging.copies_before() &&
         std::none_of(unissued_.begin(), unissued_.end(), stays_behind);
}

/// With the lock held, and all steps before done.
void Schedule::start_step(Operation& operation) {
  const std::vector<Step>& steps = operation.request_.steps;
  if (operation.steps_started_ != 0) count(operation.work_);
  try {
    operation.work_ = steps[operation.steps_started_](*communicator_,
                                                      operation.request_.staging.device_tensors());
  } catch (const sluice::Error& error) {
    std::rethrow_exception(told(error, operation));
  } catch (const DeviceError& error) {
    throw failure(operation.description() + ": " + error.what());
  }
  const bool last = ++operation.steps_started_ == steps.size();
  operation.issued_.store(last, std::memory_order_release);
}

bool Schedule::wait(Operation& operation, Clock::time_point deadline) {
  if (operation.is_settled()) return true;
  if (!issue(operation, deadline)) return false;
  std::exception_ptr error = operation.start_error_;
  try {
    const sluice::Work& work = operation.work_;
    if (work.valid() && !work.wait_for(deadline - Clock::now())) return false;
  } catch (const sluice::Error& reason) {
    error = told(reason, operation);
  }
  const bool went_well = !error;
  if (operation.settle(std::move(error)) && went_well) count(operation.work_);
  return true;
}

void Schedule::count(const sluice::Work& done) {
  if (done.valid()) bytes_sent_ += done.statistics().bytes_sent;
}

bool Schedule::poll(Operation& operation) {
  return operation.is_settled() || (operation.is_over() && wait(operation, Clock::now()));
}

/// Until the last step of the operation is started; false: that takes longer.
bool Schedule::issue(Operation& operation, Clock::time_point deadline) {
  while (!operation.issued_.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    if (unissued_.empty()) continue;  // the operation was issued meanwhile
    const auto front = unissued_.front();
    const std::size_t started = front->steps_started_;
    const sluice::Work work = front->work_;
    lock.unlock();
    if (started == 0) front->request_.staging.wait_for_inputs();
    bool failed = false;
    try {
      if (work.valid() && !work.wait_for(deadline - Clock::now())) return false;
    } catch (const sluice::Error&) {  // told to those who wait for that operation
      failed = true;
    }
    lock.lock();
    const bool is_front = !unissued_.empty() && unissued_.front() == front;
    if (!is_front || front->steps_started_ != started) continue;  // another thread was faster
    if (failed) front->issued_.store(true, std::memory_order_release);
    go_on();
  }
  return true;
}

void Schedule::wait_for_start(Operation& operation) {
  if (!operation.is_settled() && issue(operation, operation.deadline())) poll(operation);
}

void Schedule::advance() {
  std::shared_ptr<Operation> last;
  {
    const std::lock_guard lock(mutex_);
    if (unissued_.empty()) return;
    last = unissued_.back();
  }
  issue(*last, Clock::now());
}

/// With the lock held, and what the front waited for done.
void Schedule::go_on() {
  while (!unissued_.empty()) {
    Operation& front = *unissued_.front();
    if (!front.issued_) try {
        start_step(front);
      } catch (...) {
        front.start_error_ = std::current_exception();
        front.issued_.store(true, std::memory_order_release);
      }
    if (!front.issued_) return;
    unissued_.pop_front();
    if (!unissued_.empty() && unissued_.front()->request_.staging.copies_before()) return;
  }
}

Schedule::Started Schedule::started(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  return {operation.steps_started_, operation.work_};
}

std::vector<std::uint16_t> Schedule::missing_ranks(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  const bool first_in_line = operation.issued_ || unissued_.empty();
  const sluice::Work& work = first_in_line ? operation.work_ : unissued_.front()->work_;
  return work.valid() ? work.stragglers() : std::vector<std::uint16_t>{};
}

void Schedule::close(bool by_exception) {
  std::unique_ptr<sluice::Communicator> leaving;
  {
    const std::lock_guard lock(mutex_);
    leaving = std::move(communicator_);
    if (leaving && by_exception) leaving->note_exception();
    for (const auto& operation : unissued_) {
      operation->start_error_ = std::make_exception_ptr(closed());
      operation->issued_.store(true, std::memory_order_release);
    }
    unissued_.clear();
  }
}

}  // namespace sluice_torch
