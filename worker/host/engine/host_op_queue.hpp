// Ops of the ranks of one host, on their way to the engine, which sums only tensors in host memory.
// A sum of pairs consists of several such ops (move_sequence.hpp), and a tensor may first have to
// come from a device. Ops behind such a one wait here.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <sluice/error.hpp>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "common/protocol/abort_info.hpp"
#include "worker/engine/job_label.hpp"
#include "worker/engine/op_request.hpp"
#include "worker/engine/operation.hpp"
#include "worker/host/engine/engine.hpp"
#include "worker/host/engine/move_sequence.hpp"
#include "worker/host/engine/shares.hpp"

namespace sluice::worker::host {

class HostOpQueue {
 public:
  /// An op as the caller has called it.
  struct Call {
    OpRequest request;  ///< laid out and checked
    std::vector<std::uint64_t> counts = {};
    std::optional<std::vector<Part>> parts = {};    ///< none: by the counts
    MoveSequence* moves = nullptr;                  ///< not null: the request has no tensor
    std::unique_ptr<MoveSequence> owned = nullptr;  ///< the moves, unless they belong to the caller
  };
  /// To other ranks it is a sparse_all_reduce. The moves outlive the op's completion.
  static Call call_of(MoveSequence& moves);
  static Call call_of(std::unique_ptr<MoveSequence> moves);

  /// `engine` and `label` outlive this queue, which alone submits ops to the engine. The engine
  /// has `ranks` ranks; `self` is this rank's number in the job.
  HostOpQueue(Engine& engine, const JobLabel& label, Rank self, std::uint16_t ranks);
  HostOpQueue(const HostOpQueue&) = delete;
  HostOpQueue& operator=(const HostOpQueue&) = delete;

  /// Ops are numbered from 0 as they are called.
  OpNumber submit(Call&& call, Time now);
  /// Sets the time-out of a pending op.
  void set_timeout(OpNumber op, const OpTimeout& timeout);
  /// Does what can be done now, with a turn of the engine. Returns whether there was anything to
  /// do.
  bool turn(Time now);
  /// Takes what the engine has completed, for example after it was asked to leave.
  void collect(Time now);
  /// Whether an op waits for a tensor from a device, which gives no signal when it arrives.
  bool awaits_arrivals() const;

  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  bool has_completions() const { return !completions_.empty(); }

 private:
  bool is_over() const { return engine_.state() == Engine::State::kOver; }
  OpNumber first_waiting() const { return next_op_ - waiting_.size(); }
  void begin_waiting(Time now);
  void begin(Call&& call);
  void submit_move(Time now);
  void end_move(const Completion& completion, Time now);
  void end_moves(const std::optional<Error>& error);
  void end_overdue(Time now);

  Engine& engine_;
  const JobLabel& label_;
  const Rank self_;
  const std::uint16_t ranks_;
  OpNumber next_op_ = 0;           // the engine has all ops before those in waiting_
  std::deque<Call> waiting_;       // behind `under_way_`, or until a tensor has come from a device
  std::optional<Call> under_way_;  // an op of several moves
  OpNumber moves_number_ = 0;
  std::map<OpNumber, OpRequest> on_device_;  // ops that the engine has
  std::vector<Completion> completions_;
};

}  // namespace sluice::worker::host
