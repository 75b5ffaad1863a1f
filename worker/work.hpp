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
#include "worker/keyed_operation.hpp"
#include "worker/operation.hpp"

namespace sluice {

class Member;
class Progress;

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
  struct InOrder {
    std::unique_ptr<std::uint64_t[]> keys;
    std::unique_ptr<std::byte[]> rows;
  };
  const InOrder& in_order() const;

 private:
  mutable std::once_flag ordered_;
  mutable InOrder in_order_;
};

struct Work::State {
  /// Has the queue told of the end. False: it has come already. Throws kInvalidArgument where
  /// another is to be told.
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
  const Member* member = nullptr;  ///< whose op it is; gone once that is done
  OpNumber op = 0;                 ///< with the turn held

 private:
  std::mutex mutex_;  // of what follows, and of the step to `done`
  std::shared_ptr<CompletionQueue::Impl> queue_;
  std::uint64_t tag_ = 0;
};

/// The works of one member's ops that are not done. With the turn held.
class OpenWorks {
 public:
  void add(std::shared_ptr<Work::State> state) { works_.emplace(state->op, std::move(state)); }
  bool empty() const { return works_.empty(); }
  void finish(std::vector<worker::Completion> completions);
  /// All that are left.
  void fail(const Error& error);

 private:
  std::unordered_map<OpNumber, std::shared_ptr<Work::State>> works_;
};

}  // namespace sluice
