// The state behind a Work handle, and how it ends.
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

class LoopClient;
class Progress;
struct Split;

/// The keys and sums of one sparse sum.
class SparseSums {
 public:
  explicit SparseSums(ElementType type) : type(type) {}

  const ElementType type;
  std::vector<std::uint64_t> own_keys;  ///< ascending, no key twice
  std::vector<std::byte> own_rows;
  std::uint64_t parts = 1;  ///< in how many parts each row travels, each with its own key
  std::uint64_t key_bound = 0;
  worker::KeyedSums received;

  std::size_t size() const { return received.size() / parts; }  // a key is there with all its parts
  std::size_t row_bytes() const { return received.row_bytes() * parts; }

  /// The sums in order. They are sorted once, by the first caller.
  const worker::KeyedSums::InOrder& in_order() const;

 private:
  mutable std::once_flag ordered_;
  mutable worker::KeyedSums::InOrder in_order_;
};

struct Work::State {
  /// Registers a queue that is informed of the end. Returns false if the op has ended already.
  /// Throws kInvalidArgument if that queue is registered already.
  bool tell(std::shared_ptr<CompletionQueue::Impl> queue, std::uint64_t tag);
  /// Call it once. What was written before is visible to all who see the op as done.
  void end();

  std::atomic<bool> done{false};
  // Written before `done`, const afterwards.
  std::optional<Error> error;
  OpStatistics statistics;
  // Const from the start. It is weak, so a handle that outlives its context keeps no ports open.
  std::weak_ptr<Progress> progress;
  Time started{};
  /// Of a sparse sum: its sums, written before `done`, and its input, unless the caller keeps it.
  std::unique_ptr<SparseSums> sparse;
  /// Of a split: what the op gathers, and what is known of the job that is split.
  std::shared_ptr<Split> split;
  LoopClient* client = nullptr;  ///< whose op it is; invalid once the op is done
  OpNumber op = 0;               ///< guarded by the loop's lock
  TimelineOp recorded;           ///< guarded by the loop's lock
  wire::Collective kind = wire::Collective::kAllReduce;
  std::size_t block_bytes = 0;  ///< as they travel, for a reduction of a tensor

 private:
  std::mutex mutex_;  // guards what follows, and the change of `done`
  std::vector<CompletionQueue::Impl::Receiver> receivers_;
};

/// The works of one client's ops that are not done. The caller of each function holds the loop's
/// lock.
class OpenWorks {
 public:
  explicit OpenWorks(JobTimeline& timeline) : timeline_(timeline) {}

  void add(std::shared_ptr<Work::State> state) { works_.emplace(state->op, std::move(state)); }
  /// The engine has begun them.
  void run(const std::vector<OpNumber>& begun, Time now);
  bool empty() const { return works_.empty(); }
  std::size_t size() const { return works_.size(); }
  void finish(std::vector<worker::Completion> completions);
  const OpTotals& totals() const { return totals_; }  ///< of ops that are done

 private:
  JobTimeline& timeline_;
  std::unordered_map<OpNumber, std::shared_ptr<Work::State>> works_;
  OpTotals totals_;
};

}  // namespace sluice
