// One host of the simulation: its ranks, each a fiber, and the memory that they share. At any load
// or store there another rank may go on, die or be stopped. What follows comes from the seed alone.
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

  /// What the rank does, from now on until it returns or dies.
  void start(LocalRank rank, std::function<void()> body);
  /// Until all have returned or died. Throws Bug if that takes too long, or one of them did.
  void run();

  /// Of a running rank, which found nothing to do: others go on, and time passes.
  void rest();

  /// In the middle of whatever it does, so many steps from now.
  void kill_after(LocalRank rank, std::uint64_t steps) { mates_[rank].steps_to_death = steps; }
  void stop_after(LocalRank rank, std::uint64_t steps, Duration time) {
    mates_[rank].steps_to_stop = steps;
    mates_[rank].stop_time = time;
  }
  /// Mates do not reach its process any more.
  void unmap_after(LocalRank rank, std::uint64_t steps) { mates_[rank].steps_to_unmap = steps; }
  bool has_ended(LocalRank rank) const { return mates_[rank].fiber->ended(); }  ///< or is dead
  bool was_stopped(LocalRank rank) const { return mates_[rank].was_stopped; }

 private:
  struct Died {};
  struct Mate {
    std::unique_ptr<Fiber> fiber;
    std::optional<std::uint64_t> steps_to_death, steps_to_stop, steps_to_unmap;
    Duration stop_time{};
    Time stopped_until{};
    bool was_stopped = false;
  };

  /// Others may go on.
  void on_step(LocalRank rank) override;
  void on_change(LocalRank) override { resting_ = 0; }
  bool ended() const;

  std::vector<Mate> mates_;
  LocalRank running_ = 0;
  std::size_t resting_ = 0;  // so many have found nothing to do, one after the other
  bool is_over_ = false;
  double leave_chance_;
  std::string problem_;
};

}  // namespace sluice::sim
