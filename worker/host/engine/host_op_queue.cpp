#include "worker/host/engine/host_op_queue.hpp"

#include <utility>

#include "worker/engine/device_side.hpp"

namespace sluice::worker::host {

HostOpQueue::HostOpQueue(Engine& engine, const JobLabel& label, Rank self, std::uint16_t ranks)
    : engine_(engine), label_(label), self_(self), ranks_(ranks) {}

HostOpQueue::Call HostOpQueue::call_of(MoveSequence& moves) {
  OpRequest request;  // a request that nobody sums
  request.timeout = moves.request().timeout;
  request.number_in_errors = moves.request().number_in_errors;
  return {.request = request, .moves = &moves};
}

HostOpQueue::Call HostOpQueue::call_of(std::unique_ptr<MoveSequence> moves) {
  Call call = call_of(*moves);
  call.owned = std::move(moves);
  return call;
}

OpNumber HostOpQueue::submit(Call&& call, Time now) {
  const OpNumber op = next_op_++;
  waiting_.push_back(std::move(call));
  begin_waiting(now);
  if (is_over()) collect(now);
  return op;
}

void HostOpQueue::set_timeout(OpNumber op, const OpTimeout& timeout) {
  if (op >= first_waiting()) {
    Call& call = waiting_[op - first_waiting()];
    call.request.timeout = timeout;
    if (call.moves) call.moves->set_timeout(timeout);
  } else {
    engine_.set_timeout(op, timeout);
    if (under_way_ && op == moves_number_) under_way_->moves->set_timeout(timeout);
  }
}

bool HostOpQueue::awaits_arrivals() const {
  return !under_way_ && !waiting_.empty() && waiting_.front().request.device.has_value();
}

bool HostOpQueue::turn(Time now) {
  if (awaits_arrivals()) begin_waiting(now);
  end_overdue(now);
  const bool any = engine_.turn(now);
  collect(now);
  return any;
}

/// An op behind one of several moves waits for the end of it: each rank submits the further moves,
/// and all ranks must submit ops in the same order.
void HostOpQueue::begin_waiting(Time now) {
  while (!under_way_ && !waiting_.empty()) {
    if (!is_over() && !has_arrived(waiting_.front().request)) return;
    Call next = std::move(waiting_.front());
    waiting_.pop_front();
    if (!next.moves || is_over()) {
      begin(std::move(next));
    } else {
      moves_number_ = first_waiting() - 1;
      under_way_ = std::move(next);
      submit_move(now);
    }
  }
}

void HostOpQueue::begin(Call&& call) {
  OpRequest request = call.request;
  if (request.device) take_from_device(request);
  const OpNumber op = engine_.submit(
      request, call.parts ? *std::move(call.parts) : parts_of(request, call.counts, ranks_));
  if (call.request.device && !is_over()) on_device_.emplace(op, call.request);
}

void HostOpQueue::submit_move(Time now) {
  MoveSequence& moves = *under_way_->moves;
  try {
    const bool is_first = moves.is_first();
    if (is_first) moves.reach(engine_);
    MoveSequence::Move move = moves.next(moves_number_);
    std::vector<Part> parts = parts_of(move.request, move.counts, ranks_);
    // A rank that calls another op in its place gets a clear error.
    if (is_first) move.request.collective = wire::Collective::kSparseAllReduce;
    engine_.submit(move.request, std::move(parts), !is_first);
  } catch (const Error& error) {  // there is no memory
    engine_.abort(error, AbortInfo{.reason = wire::AbortReason::kNoMemory, .rank_a = self_}, now);
  }
}

/// The engine checks the time-outs of ops that it has begun.
void HostOpQueue::end_overdue(Time now) {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const OpRequest& request = waiting_[i].request;
    if (now < request.timeout.due) continue;
    const RankSet ranks = under_way_ ? engine_.awaited() : RankSet{};
    AbortInfo why{.reason = wire::AbortReason::kOpTimedOut,
                  .rank_a = self_,
                  .value_a = static_cast<std::uint64_t>(request.timeout.limit.count()),
                  .value_b = ranks.size(),
                  .op = request.number_in_errors.value_or(first_waiting() + i)};
    if (!ranks.empty()) why.rank_b = Rank{ranks.lowest()};
    return engine_.abort(label_.error_of(why), why, now);
  }
}

void HostOpQueue::collect(Time now) {
  for (Completion& completion : engine_.take_completions()) {
    if (const auto found = on_device_.find(completion.op); found != on_device_.end()) {
      if (!completion.error) give_to_device(found->second);
      on_device_.erase(found);
    }
    if (under_way_ && completion.op == moves_number_)
      end_move(completion, now);
    else
      completions_.push_back(std::move(completion));
  }
  if (!is_over()) return;
  if (under_way_)
    end_moves(engine_.failure()
                  ? *engine_.failure()
                  : Error(ErrorCode::kAborted, label_.name() + ": this rank has left"));
  begin_waiting(now);
  for (Completion& completion : engine_.take_completions())
    completions_.push_back(std::move(completion));
}

void HostOpQueue::end_move(const Completion& completion, Time now) {
  if (completion.error) return end_moves(completion.error);
  MoveSequence& moves = *under_way_->moves;
  try {
    if (const auto why = moves.end_move()) return engine_.end_for(*why, now);
  } catch (const Error& error) {
    return engine_.abort(error, AbortInfo{.reason = wire::AbortReason::kNoMemory, .rank_a = self_},
                         now);
  }
  if (!moves.is_done()) return submit_move(now);
  end_moves(moves.finish());
  begin_waiting(now);
}

void HostOpQueue::end_moves(const std::optional<Error>& error) {
  completions_.push_back({.op = moves_number_,
                          .statistics = under_way_->moves->statistics(),
                          .error = error ? std::optional(error->of_op(moves_number_)) : error});
  under_way_.reset();
}

}  // namespace sluice::worker::host
