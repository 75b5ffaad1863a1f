// What the ranks of a host share in a simulation, in the form in which their engines see it: words,
// calls, slots, regions with tensors, and each other's processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "worker/host/engine/board.hpp"

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

class SharedMemory {
 public:
  explicit SharedMemory(const HostSizes& sizes);
  virtual ~SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const HostSizes sizes;
  std::uint64_t reads = 0, writes = 0;  // of other ranks' processes

  /// The view of a rank's engine.
  std::unique_ptr<worker::host::Board> board_of(LocalRank rank);

  /// A region of the rank, in which those of its tensors lie that others may access.
  std::uint64_t share(LocalRank rank, std::span<std::byte> memory);
  void share_no_more(LocalRank rank, std::uint64_t region) { peers_[rank].regions.erase(region); }

  /// Memory of the rank's process. It must be unmapped as often as it was mapped.
  void map(LocalRank rank, std::span<std::byte> memory) { peers_[rank].mapped.push_back(memory); }
  void unmap(LocalRank rank, std::span<std::byte> memory);
  /// Peers can no longer access its process.
  void unmap_all(LocalRank rank) { peers_[rank].is_unmapped = true; }

  /// Its process has ended.
  void end(LocalRank rank) { peers_[rank].is_dead = true; }
  bool is_dead(LocalRank rank) const { return peers_[rank].is_dead; }
  bool has_parted(LocalRank rank) const { return peers_[rank].has_parted; }

 protected:
  /// Called before and after each read or write of the rank.
  virtual void on_step(LocalRank rank) = 0;
  /// The rank has published something new.
  virtual void on_change(LocalRank rank) = 0;

 private:
  friend class SimulatedBoard;
  struct Entry {
    std::optional<OpNumber> op;
    Call call;
  };
  /// The number of the piece shows whether the entry is of another piece.
  struct Blocks {
    std::uint64_t piece = 0;
    std::uint64_t blocks = 0;
  };
  struct Peer {
    std::array<std::uint64_t, worker::host::kWords> words{};
    std::vector<Entry> calls;
    AbortInfo farewell;
    std::vector<std::byte> slots;
    std::vector<Blocks> blocks, sums;
    std::vector<std::uint64_t> counts, negative_zeros;
    std::map<std::uint64_t, std::span<std::byte>> regions;
    std::vector<std::span<std::byte>> mapped;
    bool is_dead = false;
    bool has_parted = false;
    bool is_unmapped = false;
  };

  std::vector<Peer> peers_;
  std::uint64_t next_region_ = 1;
};

}  // namespace sluice::sim
