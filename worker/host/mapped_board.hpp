// The board of a host's ranks, in memory that they have mapped. A rank publishes in a region that
// it alone writes. Its slots lie in a region that its peers write, too.
//
// A rank that waits says that it is asleep. A peer that has published something since then wakes
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "worker/host/engine/board.hpp"
#include "worker/host/process_memory.hpp"

namespace sluice::worker::host {

/// The memory of one rank, as this process has mapped it. It starts as zeros and is aligned to a
/// page.
struct RankMemory {
  /// What the rank publishes, published_bytes() long; read-only for its peers.
  std::span<std::byte> published;
  std::span<std::byte> slots;
};

class MappedBoard final : public Board {
 public:
  /// The size of RankMemory::published.
  static std::size_t published_bytes(const BoardSizes& sizes);

  /// Where a whole region of a rank lies in this process; empty if it is not mapped.
  using FindRegion = std::function<std::span<std::byte>(LocalRank, std::uint64_t region)>;

  /// What its user does for it.
  struct Calls {
    FindRegion find_region;
    std::function<ProcessMemory(LocalRank)> process_of;  ///< of a peer
    std::function<void(LocalRank)> wake;                 ///< a peer; must not block
    std::function<void()> part;                          ///< see Board
  };

  /// Throws kInvalidArgument if the sizes do not fit the memory.
  MappedBoard(const BoardSizes& sizes, std::vector<RankMemory> of_rank, LocalRank self,
              Calls calls);

  void set(Word word, std::uint64_t value) override;
  std::uint64_t word(LocalRank of, Word word) const override;
  void call(OpNumber op, const Call& call) override;
  bool has_called(LocalRank rank, OpNumber op) const override;
  Call called(LocalRank rank, OpNumber op) const override;
  void tell_farewell(const AbortInfo& why) override;
  AbortInfo farewell(LocalRank of) const override;
  std::byte* bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) override;
  std::byte* slot(LocalRank of, std::uint64_t piece) override;
  Copied read(LocalRank from, std::span<const Transfer> transfers) override;
  Copied write(LocalRank to, std::span<const Transfer> transfers) override;
  void tell_blocks(std::uint64_t piece, std::uint64_t blocks) override;
  std::uint64_t blocks(LocalRank of, std::uint64_t piece) const override;
  void tell_sums(std::uint64_t piece, std::uint64_t blocks) override;
  std::uint64_t sums(LocalRank of, std::uint64_t piece) const override;
  void tell_count(LocalRank of, std::uint64_t blocks) override;
  std::uint64_t count(LocalRank by, LocalRank of) const override;
  void tell_negative_zeros(LocalRank of, std::uint64_t pieces) override;
  std::uint64_t negative_zeros(LocalRank by, LocalRank of) const override;
  void part() override { calls_.part(); }

  /// Wakes the peers that sleep, if anything was published since the last call.
  void wake_peers();
  /// Call the first one before the last look at what others have published, and the second one
  /// after the sleep.
  void fall_asleep();
  void wake_up();

 private:
  struct Published;
  struct Entry;
  struct Blocks;
  Published& published(LocalRank rank) const;
  Entry& entry(LocalRank rank, OpNumber op) const;
  Blocks& blocks_of(LocalRank rank, std::uint64_t piece) const;

  const BoardSizes sizes_;
  const std::vector<RankMemory> of_rank_;
  const LocalRank self_;
  const Calls calls_;
  bool has_published_ = false;
};

}  // namespace sluice::worker::host
