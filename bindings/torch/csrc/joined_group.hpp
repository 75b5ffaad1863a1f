// A process group's membership of its job, with all that its operations need. Its works share it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include <sys/types.h>

#include "bindings/torch/csrc/callbacks.hpp"
#include "bindings/torch/csrc/completions.hpp"
#include "bindings/torch/csrc/rendezvous.hpp"
#include "bindings/torch/csrc/schedule.hpp"

namespace sluice_torch {

class JoinedGroup : public std::enable_shared_from_this<JoinedGroup> {
 public:
  /// `global_ranks`: of the group's ranks; empty where they are the same.
  static std::shared_ptr<JoinedGroup> open(Membership membership,
                                           std::vector<std::int64_t> global_ranks);

  /// Closes all that are open, before the interpreter ends. `by_exception`: that ends it.
  static void close_all(bool by_exception);

  JoinedGroup(Membership membership, std::vector<std::int64_t> global_ranks);

  std::shared_ptr<Operation> start(Operation::Request request);
  /// Collectives: as many on all ranks.
  std::uint64_t operations_started() const { return started_; }
  std::uint64_t bytes_sent() const { return schedule_.bytes_sent(); }

  /// Until it is settled. After `bound` it throws, and the operation goes on; with 0 it is the
  /// operation's own time-out, which ends it, and nobody waits for what a stream can wait for.
  void wait(Operation& operation, std::chrono::milliseconds bound);
  bool poll(Operation& operation);
  /// Lets it end without anybody waiting.
  void watch(std::shared_ptr<Operation> operation);

  /// Leaves the job; with operations pending it is aborted on all ranks. They end. See
  /// Schedule::close().
  void close(bool by_exception);

  /// Whether this process was forked from the one that opened it: there it is of no use.
  bool inherited() const;

 private:
  void refuse_if_inherited() const;
  void expire(Operation& operation);
  std::runtime_error late(const Operation& operation, std::chrono::milliseconds bound);

  const pid_t process_;
  const std::vector<std::int64_t> global_ranks_;
  const std::unique_ptr<int> interrupt_;  // at which its communicator looks
  std::shared_ptr<sluice::Context> context_;
  Schedule schedule_;
  Completions completions_;
  const std::shared_ptr<Callbacks> callbacks_ = std::make_shared<Callbacks>();
  std::atomic<std::uint64_t> started_{0};
  std::atomic<std::uint64_t> messages_started_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace sluice_torch
