// Starts the steps of a group's operations in an order that is the same on all ranks: that of the
// calls, and all steps of an operation before the first of the next.
//
// An operation with one step is started by the call itself. While one with several is under way,
// those behind it queue up, and whoever waits for one of them starts what is due. A message, which
// the other rank may expect before it calls those, passes them, but no other message.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <sluice/sluice.hpp>

#include "bindings/torch/csrc/operation.hpp"

namespace sluice_torch {

class Schedule {
 public:
  explicit Schedule(std::unique_ptr<sluice::Communicator> communicator);

  /// Throws what the library says to the step of an operation that it can start at once; then
  /// nothing has begun.
  void submit(const std::shared_ptr<Operation>& operation);

  /// Until it is settled; false: that is not yet so at `deadline`.
  bool wait(Operation& operation, Clock::time_point deadline);

  /// Until its last step has started, or its time is up.
  void wait_for_start(Operation& operation);

  /// Settles it if its last step is done; whether it is settled.
  bool poll(Operation& operation);

  /// Starts the steps that are due, without waiting.
  void advance();

  /// What was started last of it.
  struct Started {
    std::size_t steps = 0;
    sluice::Work work;  ///< of the last of them; not valid() where there was nothing to be done
  };
  Started started(const Operation& operation);

  /// That it waits for, as far as an aggregator has told.
  std::vector<std::uint16_t> missing_ranks(const Operation& operation);

  /// For the steps of operations that ended well.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  /// Leaves the job; with ops pending the job is aborted. All operations have ended then. Ranks
  /// that miss this one are told if it is because of an exception.
  void close(bool by_exception);

 private:
  bool may_start_at_once(const Operation& operation) const;
  bool issue(Operation& operation, Clock::time_point deadline);
  void go_on();
  void start_step(Operation& operation);
  void count(const sluice::Work& done);

  std::mutex mutex_;
  std::unique_ptr<sluice::Communicator> communicator_;  // null: closed
  std::deque<std::shared_ptr<Operation>> unissued_;     // only the front may have started steps
  std::atomic<std::uint64_t> bytes_sent_{0};
};

}  // namespace sluice_torch
