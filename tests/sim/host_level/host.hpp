// One host of the simulation: its ranks, each a fiber, and the memory that they share. At any load
// or store there another rank may go on, die or be stopped. What follows comes from the seed alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/time.hpp"
#include "tests/sim/host_level/fiber.hpp"
#include "tests/sim/random.hpp"
#include "worker/host/board.hpp"

namespace sluice::sim {

using worker::host::Call;
using worker::host::Copied;
using worker::host::LocalRank;
using worker::host::Place;
using worker::host::Transfer;
using worker::host::Word;

struct HostSizes : worker::host::BoardSizes {
  std::size_t ranks = 1;
};

class Host {
 public:
  Host(const HostSizes& sizes, std::uint64_t seed);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const HostSizes sizes;
  Time now{};
  Random random;
  std::uint64_t reads = 0, writes = 0;  // of mates' processes

  /// What the rank does, from now on until it returns or dies.
  void start(LocalRank rank, std::function<void()> body);
  /// Until all have returned or died. Throws Bug if that takes too long, or one of them did.
  void run();

  /// Of a running rank: others may go on.
  void step();
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
  bool is_dead(LocalRank rank) const { return mates_[rank].is_dead; }
  bool has_ended(LocalRank rank) const { return mates_[rank].fiber->ended(); }  ///< or is dead
  bool was_stopped(LocalRank rank) const { return mates_[rank].was_stopped; }
  bool has_parted(LocalRank rank) const { return mates_[rank].has_parted; }

  /// A region of the rank's: where its tensors lie that others may reach.
  std::uint64_t share(LocalRank rank, std::span<std::byte> memory);
  void share_no_more(LocalRank rank, std::uint64_t region) { mates_[rank].regions.erase(region); }

  /// Memory of the rank's process, for good.
  void map(LocalRank rank, std::span<std::byte> memory) { mates_[rank].mapped.push_back(memory); }

  /// What a rank's engine sees of all this.
  std::unique_ptr<worker::host::Board> board_of(LocalRank rank);

 private:
  friend class SimulatedBoard;
  struct Died {};
  struct Entry {
    std::optional<OpNumber> op;
    Call call;
  };
  /// Of a piece, so that another one's are not taken for them.
  struct Blocks {
    std::uint64_t piece = 0;
    std::uint64_t blocks = 0;
  };
  struct Mate {
    std::unique_ptr<Fiber> fiber;
    std::array<std::uint64_t, worker::host::kWords> words{};
    std::vector<Entry> calls;
    AbortInfo farewell;
    std::vector<std::byte> slots;
    std::vector<Blocks> blocks, sums;
    std::vector<std::uint64_t> counts;
    std::map<std::uint64_t, std::span<std::byte>> regions;
    std::vector<std::span<std::byte>> mapped;
    std::optional<std::uint64_t> steps_to_death, steps_to_stop, steps_to_unmap;
    Duration stop_time{};
    Time stopped_until{};
    bool is_dead = false;
    bool was_stopped = false;
    bool has_parted = false;
    bool is_unmapped = false;
  };

  bool ended() const;

  std::vector<Mate> mates_;
  std::uint64_t next_region_ = 1;
  LocalRank running_ = 0;
  std::size_t resting_ = 0;  // so many have found nothing to do, one after the other
  bool is_over_ = false;
  double leave_chance_;
  std::string problem_;
};

}  // namespace sluice::sim
