#include "tests/sim/host_level/host.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "tests/sim/bug.hpp"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kMostSlices = 2'000'000;

}  // namespace

Host::Host(const HostSizes& sizes_given, std::uint64_t seed)
    : SharedMemory(sizes_given), random(seed), peers_(sizes.ranks) {
  leave_chance_ = random.pick({0.05, 0.3, 0.8});
}

/// Unwinds the fibers that still run.
Host::~Host() {
  is_over_ = true;
  for (Peer& peer : peers_)
    if (peer.fiber && !peer.fiber->ended()) peer.fiber->go_on();
}

void Host::start(LocalRank rank, std::function<void()> body) {
  peers_[rank].fiber = std::make_unique<Fiber>([this, rank, body = std::move(body)] {
    try {
      if (!is_over_) body();
    } catch (const Died&) {
      end(rank);
    } catch (const std::exception& problem) {
      problem_ = "rank " + std::to_string(rank) + ": " + problem.what();
    }
  });
}

bool Host::ended() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& m) { return m.fiber->ended(); });
}

void Host::run() {
  for (std::uint64_t slice = 0; !ended(); ++slice) {
    require(slice < kMostSlices, "it does not end");
    running_ = static_cast<LocalRank>(random.below(peers_.size()));
    Peer& peer = peers_[running_];
    if (peer.fiber->ended() || now < peer.stopped_until) {
      if (random.chance(0.1)) now += std::chrono::microseconds(10);
      continue;
    }
    now += std::chrono::nanoseconds(random.below(2000));
    peer.fiber->go_on();
    if (!problem_.empty()) throw Bug(problem_);
    // All have nothing to do except to wait.
    if (resting_ > 4 * peers_.size()) {
      now += std::chrono::microseconds(random.below(5000));
      resting_ = 0;
    }
  }
}

void Host::on_step(LocalRank) {
  Peer& peer = peers_[running_];
  if (is_over_) throw Died{};
  if (peer.steps_to_unmap && (*peer.steps_to_unmap)-- == 0) {
    peer.steps_to_unmap.reset();
    unmap_all(running_);
  }
  if (peer.steps_to_death && (*peer.steps_to_death)-- == 0) throw Died{};
  if (peer.steps_to_stop && (*peer.steps_to_stop)-- == 0) {
    peer.steps_to_stop.reset();
    peer.was_stopped = true;
    peer.stopped_until = now + peer.stop_time;
  } else if (!random.chance(leave_chance_)) {
    return;
  }
  Fiber::leave();
  if (is_over_) throw Died{};
}

void Host::rest() {
  ++resting_;
  if (is_over_) throw Died{};
  Fiber::leave();
  if (is_over_) throw Died{};
}

}  // namespace sluice::sim
