#include "bench/pktgen/lockstep.hpp"

#include <string>
#include <utility>

#include <sluice/error.hpp>

namespace sluice::pktgen {

void check_lanes(const Options& options, std::size_t of_aggregator) {
  if (options.lanes == 1 || options.lanes == of_aggregator) return;
  throw Error(ErrorCode::kInvalidArgument, "--lanes is " + std::to_string(options.lanes) +
                                               ", but the aggregator has " +
                                               std::to_string(of_aggregator));
}

Lockstep::Lockstep(const Options& options, std::function<bool()> stopped)
    : options_(options), stopped_(std::move(stopped)), coming_(options.lanes) {}

void Lockstep::decide(const Session& session) {
  check_lanes(options_, session.shards);
  session_ = session;
  is_decided_.store(true, std::memory_order_release);
}

std::optional<Session> Lockstep::decided() const {
  return is_decided_.load(std::memory_order_acquire) ? std::optional(session_) : std::nullopt;
}

unsigned Lockstep::arrive(std::uint16_t lane, std::optional<Window> trial) {
  const std::lock_guard lock(mutex_);
  const unsigned point = passed_.load(std::memory_order_relaxed);
  coming_[lane] = std::move(trial);
  if (++arrived_ < coming_.size()) return point;
  arrived_ = 0;
  if (coming_[0]) {
    std::vector<Window>& windows = trials_.emplace_back();
    for (auto& window : coming_) windows.push_back(*std::exchange(window, std::nullopt));
  }
  choose_next_rate();
  passed_.store(point + 1, std::memory_order_release);
  return point;
}

/// The first trial of a search, as fast as possible, shows where to begin.
void Lockstep::choose_next_rate() {
  if (trials_.empty()) {
    next_rate_ = options_.find_rate ? 0 : options_.rate;
    return;
  }
  if (!std::exchange(next_rate_, std::nullopt) || !options_.find_rate) return;
  const Window all = sum_of(trials_.back());
  if (search_)
    search_->tell(sustained(all));
  else
    search_.emplace(all.data_per_second());
  if (!stopped_()) next_rate_ = search_->next();
}

void Lockstep::fail(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(why);
  failed_.store(true, std::memory_order_release);
}

void Lockstep::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace sluice::pktgen
