#include "worker/engine/op_queue.hpp"

#include <algorithm>
#include <cassert>

namespace sluice::worker {

Operation& OpQueue::add(const OpRequest& request, const Geometry& geometry,
                        const SearchLimits& search) {
  ++pending_;
  next_overdue_ = std::min(next_overdue_, request.timeout.due);
  Operation& added = ops_.emplace_back(request, geometry, search);
  find_ready();
  return added;
}

Operation& OpQueue::add(const OpRequest& request, const KeyedGeometry& geometry) {
  ++pending_;
  next_overdue_ = std::min(next_overdue_, request.timeout.due);
  Operation& added = ops_.emplace_back(request, geometry, result_memory_);
  find_ready();
  return added;
}

OpNumber OpQueue::refuse(const Error& error) {
  assert(pending_ == 0 && ops_.empty());
  const OpNumber op = first_++;
  ready_end_ = first_;
  completions_.push_back({op, {}, error.of_op(op)});
  ++counters_.ops_failed;
  return op;
}

void OpQueue::begin_on_stream(OpNumber op) {
  assert(op >= first_ && find(op)->streams_left != 0);
  ++running_streams_;
  awaited_bytes_ += find(op)->round_bytes();
  if (notifies_begun_ && !std::exchange(find(op)->begun, true)) begun_.push_back(op);
}

void OpQueue::withdraw_from_stream(OpNumber op) {
  assert(op >= first_ && find(op)->streams_left != 0);
  assert(running_streams_ != 0 && awaited_bytes_ >= find(op)->round_bytes());
  --running_streams_;
  awaited_bytes_ -= find(op)->round_bytes();
}

/// An op is done when all its streams are.
void OpQueue::finish_on_stream(OpNumber number) {
  Operation& op = *find(number);
  withdraw_from_stream(number);
  if (--op.streams_left != 0) return;
  --pending_;
  op.finish();
  ++counters_.ops_completed;
  const auto error = op.keyed() == nullptr ? std::nullopt : op.keyed()->finish();
  completions_.push_back({number, op.statistics, error});
  while (!ops_.empty() && ops_.front().streams_left == 0) {
    ops_.pop_front();
    ++first_;
  }
  assert(ops_.size() >= pending_ && ops_.empty() == (pending_ == 0));
}

void OpQueue::set_timeout(OpNumber op, const OpTimeout& timeout) {
  Operation* const of = find(op);
  if (of == nullptr) return;  // it is done, though not reported yet
  of->set_timeout(timeout);
  next_overdue_ = std::min(next_overdue_, timeout.due);
}

/// Looks at them when the first time-out is over that was set: its op may be done long since.
std::optional<OpNumber> OpQueue::overdue(Time now) {
  if (now < next_overdue_) return std::nullopt;
  next_overdue_ = kNever;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].streams_left == 0) continue;
    const Time due = ops_[i].request().timeout.due;
    next_overdue_ = std::min(next_overdue_, due);
    if (due <= now) return first_ + i;
  }
  return std::nullopt;
}

void OpQueue::fail_all(const Error& error) {
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].streams_left == 0) continue;
    const OpNumber op = first_ + i;
    completions_.push_back({op, ops_[i].statistics, error.of_op(op)});
    ++counters_.ops_failed;
  }
  first_ += ops_.size();
  clear();
}

std::vector<OpRequest> OpQueue::withdraw_all() {
  assert(pending_ == ops_.size());
  std::vector<OpRequest> requests;
  for (const Operation& op : ops_) requests.push_back(op.request());
  clear();
  return requests;
}

void OpQueue::clear() {
  ops_.clear();
  ready_end_ = first_;
  pending_ = running_streams_ = awaited_bytes_ = 0;
  next_overdue_ = kNever;
}

}  // namespace sluice::worker
