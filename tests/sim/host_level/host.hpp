// One host of the simulation: its ranks, each a fiber, and their shared memory. At each load or
// store there, another rank may continue, or this one may die or be stopped. The seed determines
// all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.hpp"
#include "tests/sim/host_level/fiber.hpp"
#include "tests/sim/host_level/shared_memory.hpp"
#include "tests/sim/random.hpp"

namespace sluice::sim {

class Host final : public SharedMemory {
 public:
  Host(const HostSizes& sizes, std::uint64_t seed);
  ~Host() override;

  Time now{};
  Random random;

  /// The work of the rank, which runs until it returns or the rank dies.
  void start(LocalRank rank, std::function<void()> body);
  /// Runs until all have returned or died. Throws Bug if that takes too long, or if one of them
  /// did.
  void run();

  /// Called by a running rank that has nothing to do: others continue, and time passes.
  void rest();

  /// In the middle of its work, after so many steps.
  void kill_after(LocalRank rank, std::uint64_t steps) { peers_[rank].steps_to_death = steps; }
  void stop_after(LocalRank rank, std::uint64_t steps, Duration time) {
    peers_[rank].steps_to_stop = steps;
    peers_[rank].stop_time = time;
  }
  /// Peers can no longer access its process.
  void unmap_after(LocalRank rank, std::uint64_t steps) { peers_[rank].steps_to_unmap = steps; }
  bool has_ended(LocalRank rank) const { return peers_[rank].fiber->ended(); }  ///< or has died
  bool was_stopped(LocalRank rank) const { return peers_[rank].was_stopped; }

 private:
  struct Died {};
  struct Peer {
    std::unique_ptr<Fiber> fiber;
    std::optional<std::uint64_t> steps_to_death, steps_to_stop, steps_to_unmap;
    Duration stop_time{};
    Time stopped_until{};
    bool was_stopped = false;
  };

  /// Others may continue.
  void on_step(LocalRank rank) override;
  void on_change(LocalRank) override { resting_ = 0; }
  bool ended() const;

  std::vector<Peer> peers_;
  LocalRank running_ = 0;
  std::size_t resting_ = 0;  // how many in succession have found nothing to do
  bool is_over_ = false;
  double leave_chance_;
  std::string problem_;
};

}  // namespace sluice::sim
