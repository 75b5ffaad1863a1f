#include "worker/loop/work.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "common/base/limits.hpp"
#include "worker/loop/progress.hpp"

namespace sluice {
namespace {

void throw_if_failed(const Work::State& state) {
  if (state.error) throw Error(*state.error);
}

const Work::State& finished(const std::shared_ptr<Work::State>& state) {
  if (!state || !state->done.load(std::memory_order_acquire))
    throw Error(ErrorCode::kInvalidArgument, "Work: not done yet");
  return *state;
}

Work::State& started(const std::shared_ptr<Work::State>& state) {
  if (!state) throw Error(ErrorCode::kInvalidArgument, "Work: stands for no op");
  return *state;
}

bool drive(Work::State& state, Time deadline) {
  const auto is_done = [&] { return state.done.load(std::memory_order_acquire); };
  if (is_done()) return true;
  const auto progress = state.progress.lock();  // it exists while the op is pending
  return progress ? progress->drive(is_done, deadline) : is_done();
}

}  // namespace

bool Work::State::tell(std::shared_ptr<CompletionQueue::Impl> queue, std::uint64_t tag) {
  const std::lock_guard lock(mutex_);
  if (done.load(std::memory_order_relaxed)) return false;
  if (std::ranges::any_of(receivers_, [&](const auto& one) { return one.queue == queue; }))
    throw Error(ErrorCode::kInvalidArgument, "CompletionQueue: the op is in it already");
  receivers_.push_back({std::move(queue), tag});
  return true;
}

void Work::State::end() {
  const std::lock_guard lock(mutex_);
  CompletionQueue::Impl::push(receivers_, done);
  receivers_.clear();
}

bool Work::done() const {
  return started(state_).done.load(std::memory_order_acquire);
}

void Work::wait() const {
  drive(started(state_), kNever);
  throw_if_failed(*state_);
}

bool Work::wait_for(std::chrono::nanoseconds bound) const {
  if (!drive(started(state_), after(Progress::now(), bound))) return false;
  throw_if_failed(*state_);
  return true;
}

void Work::set_timeout(std::chrono::milliseconds timeout) const {
  const State& state = started(state_);
  if (timeout.count() < 0 || timeout > limits::kMaxOpTimeout)
    throw Error(ErrorCode::kInvalidArgument,
                "Work::set_timeout: " + std::to_string(timeout.count()) + " ms; 0.." +
                    std::to_string(limits::kMaxOpTimeout.count()) + " expected");
  const auto progress = state.progress.lock();
  if (done() || !progress) return;
  progress->with_lock([&](Attachment&, Time) {
    if (!done()) state.client->set_timeout(state.op, worker::OpTimeout::of(state.started, timeout));
  });
}

double Work::progress() const {
  const State& state = started(state_);
  const auto progress = state.progress.lock();
  if (done() || !progress) return 1;
  return progress->with_lock(
      [&](Attachment&, Time) { return done() ? 1 : state.client->progress(state.op); });
}

std::vector<std::uint16_t> Work::stragglers() const {
  const State& state = started(state_);
  const auto progress = state.progress.lock();
  if (done() || !progress) return {};
  return progress->with_lock([&](Attachment&, Time) {
    return done() ? std::vector<std::uint16_t>{} : state.client->stragglers(state.op);
  });
}

void OpenWorks::run(const std::vector<OpNumber>& begun, Time now) {
  for (const OpNumber op : begun)
    if (const auto found = works_.find(op); found != works_.end())
      timeline_.runs(found->second->recorded, now);
}

void OpenWorks::finish(std::vector<worker::Completion> completions) {
  const Time now = Progress::now();
  for (worker::Completion& completion : completions) {
    const auto found = works_.find(completion.op);
    // It is added before the lock is released in which the op is submitted.
    assert(found != works_.end());
    Work::State& state = *found->second;
    state.error = std::move(completion.error);
    state.statistics = completion.statistics;
    state.statistics.duration = now - state.started;
    timeline_.ended(state.recorded, state.statistics, state.error, now);
    totals_.add(state.kind, state.block_bytes, state.error.has_value(), state.statistics);
    state.end();
    works_.erase(found);
  }
}

// ------------------------------------------------------------------------------------ sparse sums
namespace {

const SparseSums& sums_of(const std::shared_ptr<Work::State>& state) {
  const Work::State& done = finished(state);
  throw_if_failed(done);
  return *done.sparse;
}

const SparseSums& sums_of(const std::shared_ptr<Work::State>& state, ElementType type) {
  const SparseSums& sums = sums_of(state);
  if (type != sums.type)
    throw Error(ErrorCode::kInvalidArgument, "SparseWork: the values are " +
                                                 std::string(name(sums.type)) + ", not " +
                                                 std::string(name(type)));
  return sums;
}

}  // namespace

const worker::KeyedSums::InOrder& SparseSums::in_order() const {
  std::call_once(ordered_, [this] {
    const worker::KeyedSums::InOrder* const ordered = received.in_order();
    if (ordered != nullptr && parts == 1) {
      in_order_ = *ordered;
      return;
    }
    const auto keys = std::make_shared_for_overwrite<std::uint64_t[]>(size());
    const auto rows = std::make_shared_for_overwrite<std::byte[]>(size() * row_bytes());
    received.merge({keys.get(), size()}, {rows.get(), size() * row_bytes()}, parts);
    in_order_ = {.keys = {keys, reinterpret_cast<const std::byte*>(keys.get())},
                 .rows = {rows, rows.get()},
                 .size = size()};
  });
  return in_order_;
}

std::size_t SparseWork::size() const {
  return sums_of(state()).size();
}

std::span<const std::uint64_t> SparseWork::keys() const {
  const SparseSums& sums = sums_of(state());
  return {reinterpret_cast<const std::uint64_t*>(sums.in_order().keys.get()), sums.size()};
}

std::span<const std::byte> SparseWork::value_bytes(ElementType type) const {
  const SparseSums& sums = sums_of(state(), type);
  return {sums.in_order().rows.get(), sums.size() * sums.row_bytes()};
}

void SparseWork::copy_to(std::uint64_t* keys, void* values, ElementType type) const {
  const SparseSums& sums = sums_of(state(), type);
  if (sums.size() != 0 && (keys == nullptr || values == nullptr))
    throw Error(ErrorCode::kInvalidArgument,
                "SparseWork::copy_to: " + std::string(keys == nullptr ? "keys" : "values") +
                    " is null; memory for " + std::to_string(sums.size()) + " expected");
  sums.received.merge({keys, sums.size()},
                      {static_cast<std::byte*>(values), sums.size() * sums.row_bytes()},
                      sums.parts);
}

void SparseWork::copy_to_dense(void* tensor, std::uint64_t element_count, ElementType type) const {
  const SparseSums& sums = sums_of(state(), type);
  const std::uint64_t row_elements = sums.row_bytes() / element_bytes(type);
  __extension__ using Wide = unsigned __int128;
  if (Wide{sums.key_bound} * row_elements != element_count)
    throw Error(ErrorCode::kInvalidArgument,
                "SparseWork::copy_to_dense: the tensor has " + std::to_string(element_count) +
                    " elements; key_bound = " + std::to_string(sums.key_bound) + " rows of " +
                    std::to_string(row_elements) + " expected");
  if (tensor == nullptr)
    throw Error(ErrorCode::kInvalidArgument, "SparseWork::copy_to_dense: the tensor is null");
  const std::span out(static_cast<std::byte*>(tensor), element_count * element_bytes(type));
  std::memset(out.data(), 0, out.size());
  sums.received.scatter(out);
}

std::array<std::uint64_t, 4> SparseWork::rejected() const {
  return sums_of(state()).received.rejected;
}

std::optional<Error> Work::error() const {
  return finished(state_).error;
}
OpStatistics Work::statistics() const {
  return finished(state_).statistics;
}

}  // namespace sluice
