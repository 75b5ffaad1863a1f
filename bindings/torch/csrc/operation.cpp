#include "bindings/torch/csrc/operation.hpp"

#include <utility>

#include <torch/csrc/profiler/api.h>

#include "bindings/torch/csrc/elements.hpp"
#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

using Profiler = torch::profiler::impl::ProfilerStateBase;

/// Whether the profiler of this thread's thread-local state still listens. PyTorch does not tell:
/// a profiler that has ended has no callback any more.
bool is_profiled() {
  struct Handle : Profiler {
    using Profiler::handle_;
  };
  Profiler* const profiler = Profiler::get(/*global=*/false);
  return profiler != nullptr && profiler->*(&Handle::handle_) != 0;
}

/// What torch.profiler shows of a call, from now until what is returned is called, by whichever
/// thread, with this one's thread-local state. Empty: nobody listens.
std::function<void()> begin_profile(const std::string& call, const at::Tensor& tensor) {
  const auto record = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!record->isActive()) return {};
  record->_setAsync();
  std::vector<c10::IValue> inputs;
  if (record->needsInputs() && tensor.defined()) inputs.emplace_back(tensor);
  record->before("sluice::" + call, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  return [record] {
    if (is_profiled()) return record->end();
    // The profiler ended before the call did, and has released what the end would be written to.
    // As the record's destructor would write it, too, the record stays.
    [[maybe_unused]] const auto* const kept = new std::shared_ptr(record);
  };
}

}  // namespace

Operation::Operation(Request request, std::uint64_t number, std::shared_ptr<Callbacks> callbacks)
    : request_(std::move(request)),
      number_(number),
      callbacks_(std::move(callbacks)),
      end_of_profile_(begin_profile(request_.call, request_.tensor)) {}

std::string Operation::description() const {
  std::string text = request_.call + " " + std::to_string(number_);
  if (request_.tensor.defined()) text += " (" + described(request_.tensor) + ")";
  return text;
}

std::exception_ptr Operation::error() const {
  return is_settled() ? error_ : nullptr;
}

bool Operation::is_over() const {
  return issued_.load(std::memory_order_acquire) && (!work_.valid() || work_.done());
}

bool Operation::settle(std::exception_ptr error) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (is_settled()) return false;
    const at::ThreadLocalStateGuard as_caller(callers_state_);
    if (!error) try {
        if (request_.finish) request_.finish();
        request_.staging.copy_back();
      } catch (...) {
        error = copying_failed();
      }
    if (error && request_.give_up && is_over()) request_.give_up();
    if (error) request_.staging.give_up();
    if (error && nobody_waits_) warn_of(error);
    error_ = std::move(error);
    if (const auto end = std::exchange(end_of_profile_, {})) end();
    settled_.store(true, std::memory_order_release);
    future = future_;
  }
  if (future) callbacks_->run([self = shared_from_this(), future] { self->complete(*future); });
  return true;
}

bool Operation::let_stream_wait() {
  const std::lock_guard lock(mutex_);
  if (!request_.staging.ends_by_itself()) return false;
  nobody_waits_ = true;
  return true;
}

/// Of an error that no wait() will throw.
void Operation::warn_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& why) {
    TORCH_WARN(why.what(), " (its wait() had returned; the result is NaN)");
  }
}

/// From within a handler.
std::exception_ptr Operation::copying_failed() const {
  const std::string what = description() + ": its result cannot be written: ";
  try {
    throw;
  } catch (const sluice::Error& error) {
    return translated(error, description());
  } catch (const c10::Error& error) {
    return std::make_exception_ptr(failure(what + error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(failure(what + error.what()));
  } catch (...) {
    return std::make_exception_ptr(failure(what + "an unknown error"));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::future() {
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  std::vector<at::Device> devices;
  if (const auto device = request_.staging.device()) devices.push_back(*device);
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::move(devices));
  const auto future = future_;
  const bool came_second = is_settled();  // else settle() will find the future
  lock.unlock();
  if (came_second) complete(*future);  // it has no callbacks yet
  return future;
}

/// By the one who came second: settle() or the first call of future().
void Operation::complete(c10::ivalue::Future& future) const {
  const at::ThreadLocalStateGuard as_caller(callers_state_);
  if (error_)
    future.setError(error_);
  else
    request_.staging.on_stream([&] { future.markCompleted(c10::IValue(request_.outputs)); });
}

}  // namespace sluice_torch
