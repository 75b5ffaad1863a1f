// The state behind a Work handle, and what becomes of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "worker/engine/keyed_operation.hpp"
#include "worker/engine/operation.hpp"
#include "worker/job/op_totals.hpp"
#include "worker/loop/completion_queue.hpp"
#include "worker/loop/timeline.hpp"

namespace sluice {

class Member;
class Progress;
struct Split;

/// Of one sparse sum.
class SparseSums {
 public:
  explicit SparseSums(ElementType type) : type(type) {}

  const ElementType type;
  std::vector<std::uint64_t> own_keys;  ///< in order, and no key twice
  std::vector<std::byte> own_rows;
  std::uint64_t parts = 1;  ///< that each row travels in, under keys of their own
  std::uint64_t key_bound = 0;
  worker::KeyedSums received;

  std::size_t size() const { return received.size() / parts; }  // who has a key has all its parts
  std::size_t row_bytes() const { return received.row_bytes() * parts; }

  /// In order: once, for whoever asks first.
  const worker::KeyedSums::InOrder& in_order() const;

 private:
  mutable std::once_flag ordered_;
  mutable worker::KeyedSums::InOrder in_order_;
};

struct Work::State {
  /// Has the queue told of the end. False: it has come already. Throws kInvalidArgument where that
  /// queue is to be told already.
  bool tell(std::shared_ptr<CompletionQueue::Impl> queue, std::uint64_t tag);
  /// Once; what is written before it can be read by all who find the op done.
  void end();

  std::atomic<bool> done{false};
  // Written before `done`, const afterwards.
  std::optional<Error> error;
  OpStatistics statistics;
  // Const from the start. Weak: a handle that outlives its context keeps no ports open.
  std::weak_ptr<Progress> progress;
  Time started{};
  /// Of a sparse sum: what comes of it, written before `done`, and what it reads if not the
  /// caller's.
  std::unique_ptr<SparseSums> sparse;
  /// Of a split: what the op gathers, and what is known of the job that is split.
  std::shared_ptr<Split> split;
  Member* member = nullptr;  ///< whose op it is; gone once that is done
  OpNumber op = 0;           ///< with the turn held
  TimelineOp recorded;       ///< likewise
  wire::Collective kind = wire::Collective::kAllReduce;
  std::size_t block_bytes = 0;  ///< as they travel, of a reduction of a tensor

 private:
  std::mutex mutex_;  // of what follows, and of the step to `done`
  std::vector<CompletionQueue::Impl::Told> told_;
};

/// The works of one member's ops that are not done. With the turn held.
class OpenWorks {
 public:
  explicit OpenWorks(JobTimeline& timeline) : timeline_(timeline) {}

  void add(std::shared_ptr<Work::State> state) { works_.emplace(state->op, std::move(state)); }
  /// The engine has begun them.
  void run(const std::vector<OpNumber>& begun, Time now);
  bool empty() const { return works_.empty(); }
  std::size_t size() const { return works_.size(); }
  void finish(std::vector<worker::Completion> completions);
  const OpTotals& totals() const { return totals_; }  ///< of those that are done

 private:
  JobTimeline& timeline_;
  std::unordered_map<OpNumber, std::shared_ptr<Work::State>> works_;
  OpTotals totals_;
};

}  // namespace sluice
