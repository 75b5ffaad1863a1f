// One call from its start to its end: a collective, or one side of a message.
//
// An operation is a row of steps, each of which starts one op of the library, and which follow each
// other when the one before is done: most have one step, an all_to_all of uneven parts has two.
// Schedule starts them in an order that all ranks share. Whoever looks first after the last step is
// done settles the operation: results are copied back, and its future is completed, by another
// thread, because of its callbacks. Both have the thread-local state of the call (inference mode,
// autocast and others).
//
// The steps own the tensors that the library works on. An operation that is settled by its time-out
// must therefore be kept until it `is_over`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <sluice/sluice.hpp>

#include "bindings/torch/csrc/callbacks.hpp"
#include "bindings/torch/csrc/staging.hpp"

namespace sluice_torch {

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

/// Starts one op, with what its tensors on a device need, or null. What it returns need not be
/// valid(): then there was nothing to be done.
using Step = std::function<sluice::Work(sluice::Communicator&, sluice::DeviceTensors*)>;

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  struct Request {
    std::string call;   ///< "all_reduce"
    at::Tensor tensor;  ///< what errors describe; undefined: it has none
    Staging staging;
    std::vector<Step> steps;
    std::vector<at::Tensor> outputs = {};  ///< the value of its future
    std::function<void()> finish = {};     ///< after the last step, before results are copied back
    std::function<void()> give_up = {};  ///< instead, if it fails when the library is done with it
    std::chrono::milliseconds timeout = {};
    bool is_collective = true;  ///< else a message between two ranks
  };

  Operation(Request request, std::uint64_t number, std::shared_ptr<Callbacks> callbacks);

  /// In the group's call order, from 1; of a message, in this rank's.
  std::uint64_t number() const { return number_; }
  Clock::time_point deadline() const { return started_ + request_.timeout; }
  std::chrono::milliseconds timeout() const { return request_.timeout; }
  const std::vector<at::Tensor>& outputs() const { return request_.outputs; }
  bool is_collective() const { return request_.is_collective; }  ///< else a message
  std::string description() const;  ///< "all_reduce 17 (float32 [1024, 64])"

  bool is_settled() const { return settled_.load(std::memory_order_acquire); }
  std::exception_ptr error() const;  ///< of one that is settled; null: it went well
  bool is_over() const;              ///< the library uses none of its tensors any more

  /// Its end, well or with an error; false: that has come before.
  bool settle(std::exception_ptr error);
  c10::intrusive_ptr<c10::ivalue::Future> future();
  void block_current_stream() const { request_.staging.block_current_stream(); }
  /// Its caller need not wait for its end: his stream does. If it fails later he is warned.
  bool let_stream_wait();
  bool is_on_device() const { return request_.staging.on_device(); }

 private:
  friend class Schedule;

  void complete(c10::ivalue::Future& future) const;
  std::exception_ptr copying_failed() const;
  static void warn_of(const std::exception_ptr& error);

  Request request_;
  const std::uint64_t number_;
  const std::shared_ptr<Callbacks> callbacks_;
  const Clock::time_point started_ = Clock::now();
  const at::ThreadLocalState callers_state_;
  std::function<void()> end_of_profile_;  // empty: no profiler listens, or it was told

  // Written by Schedule under its lock, before issued_.
  std::size_t steps_started_ = 0;
  sluice::Work work_;                // of the last step started
  std::exception_ptr start_error_;   // why the steps after that were not
  std::atomic<bool> issued_{false};  // no step will be started any more

  std::mutex mutex_;
  std::exception_ptr error_;  // const once settled
  std::atomic<bool> settled_{false};
  bool nobody_waits_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace sluice_torch
