// The ops of this rank, in the order of the calls. An op leaves the queue once all streams are done
// with it and with every op before it; the ends of ops are kept until they are fetched.
#pragma once

#include <cassert>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/ids.hpp"
#include "common/protocol/geometry.hpp"
#include "worker/engine/counters.hpp"
#include "worker/engine/operation.hpp"

namespace sluice::worker {

class OpQueue {
 public:
  explicit OpQueue(Counters& counters) : counters_(counters) {}

  OpNumber begin() const { return first_; }              ///< no earlier op is in the queue
  OpNumber end() const { return first_ + ops_.size(); }  ///< the next op's number
  /// Streams begin no op from here on, or after it: its tensors have not arrived.
  OpNumber ready_end() const { return ready_end_; }
  /// Looks again; whether there are more now.
  bool find_ready() {
    const OpNumber before = ready_end_;
    while (ready_end_ < end() && find(ready_end_)->is_ready()) ++ready_end_;
    return ready_end_ != before;
  }
  /// An op below end(); null if it has left the queue.
  Operation* find(OpNumber op) {
    assert(op < end());
    return op < first_ ? nullptr : &ops_[op - first_];
  }
  const Operation* find(OpNumber op) const {
    assert(op < end());
    return op < first_ ? nullptr : &ops_[op - first_];
  }

  /// Its number is what end() was.
  Operation& add(const OpRequest& request, const Geometry& geometry, const SearchLimits& search);
  Operation& add(const OpRequest& request, const KeyedGeometry& geometry);
  /// The next op cannot run: it ends at once. Only while none is pending.
  OpNumber refuse(const Error& error);

  /// A stream begins an op; it is done with it; it begins the same op again later.
  void begin_on_stream(OpNumber op);
  void finish_on_stream(OpNumber op);
  void withdraw_from_stream(OpNumber op);

  /// Ops whose first stream has begun since the last call, if notify_begun() asked for them; some
  /// may have ended, or begin again.
  std::vector<OpNumber> take_begun() { return std::exchange(begun_, {}); }
  bool has_begun() const { return !begun_.empty(); }
  void notify_begun(bool is_wanted) {
    notifies_begun_ = is_wanted;
    begun_.clear();
  }

  /// Sets the time-out of an op that is pending.
  void set_timeout(OpNumber op, const OpTimeout& timeout);
  /// The first op that is pending and overdue.
  std::optional<OpNumber> overdue(Time now);
  Time next_overdue() const { return next_overdue_; }  ///< none is overdue before

  /// Fails all pending ops; their streams have ended.
  void fail_all(const Error& error);
  /// The same, but the ops do not end: returns the requests, to be added again in this order.
  std::vector<OpRequest> withdraw_all();

  std::size_t pending() const { return pending_; }
  std::size_t running_streams() const { return running_streams_; }
  /// The bytes of the rounds under way, if no block is zero.
  std::size_t awaited_bytes() const { return awaited_bytes_; }

  /// The ops that ended since the last call, in the order in which they ended.
  std::vector<Completion> take_completions() { return std::exchange(completions_, {}); }
  bool has_completions() const { return !completions_.empty(); }

 private:
  void clear();

  Counters& counters_;
  std::shared_ptr<ResultMemory> result_memory_ = std::make_shared<ResultMemory>();
  std::deque<Operation> ops_;  // first_ .. : not all of them done
  OpNumber first_ = 0;
  OpNumber ready_end_ = 0;
  std::size_t pending_ = 0;
  std::size_t running_streams_ = 0;
  std::size_t awaited_bytes_ = 0;
  Time next_overdue_ = kNever;
  std::vector<Completion> completions_;
  bool notifies_begun_ = false;
  std::vector<OpNumber> begun_;
};

}  // namespace sluice::worker
