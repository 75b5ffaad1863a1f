#include "tests/sim/host_level/shared_memory.hpp"

#include <algorithm>
#include <cstring>

#include "tests/sim/bug.hpp"

namespace sluice::sim {

/// Other ranks may also continue between the two halves of a call.
class SimulatedBoard final : public worker::host::Board {
 public:
  SimulatedBoard(SharedMemory& memory, LocalRank self) : memory_(memory), self_(self) {}

  void set(Word word, std::uint64_t value) override {
    step();
    std::uint64_t& stored = peer(self_).words[static_cast<std::size_t>(word)];
    require(value > stored, "a word does not rise");
    stored = value;
    memory_.on_change(self_);
    step();
  }
  std::uint64_t word(LocalRank of, Word word) const override {
    step();
    return peer(of).words[static_cast<std::size_t>(word)];
  }

  void call(OpNumber op, const Call& call) override {
    step();
    SharedMemory::Entry& entry = entry_of(self_, op);
    entry.op.reset();
    step();
    entry.call = call;
    entry.op = op;
    memory_.on_change(self_);
    step();
  }
  bool has_called(LocalRank rank, OpNumber op) const override {
    step();
    return entry_of(rank, op).op == op;
  }
  Call called(LocalRank rank, OpNumber op) const override {
    const Call first = entry_of(rank, op).call;
    require(entry_of(rank, op).op == op, "a call is read that is not there");
    step();
    require(entry_of(rank, op).op == op, "a call was replaced while it was read");
    return first;
  }

  void tell_farewell(const AbortInfo& why) override {
    step();
    peer(self_).farewell = why;
  }
  AbortInfo farewell(LocalRank of) const override {
    step();
    return peer(of).farewell;
  }

  std::byte* bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) override {
    step();
    const auto found = peer(rank).regions.find(place.region);
    if (found == peer(rank).regions.end() || place.offset > found->second.size() ||
        bytes > found->second.size() - place.offset)
      return nullptr;
    return found->second.data() + place.offset;
  }
  std::byte* slot(LocalRank of, std::uint64_t piece) override {
    step();
    return peer(of).slots.data() + piece % memory_.sizes.slots * memory_.sizes.slot_bytes;
  }

  Copied read(LocalRank from, std::span<const Transfer> transfers) override {
    for (const Transfer& transfer : transfers) {
      step();
      const Copied copied = reach(from, transfer);
      if (copied != Copied::kAll) return copied;
      std::memcpy(transfer.here, memory_at(transfer), transfer.bytes);
      ++memory_.reads;
    }
    return Copied::kAll;
  }
  /// The check before it and its start are one step.
  Copied write(LocalRank to, std::span<const Transfer> transfers) override {
    require(!peer(to).has_parted, "a rank that has parted is written to");
    for (const Transfer& transfer : transfers) {
      const Copied copied = reach(to, transfer);
      if (copied != Copied::kAll) return copied;
      std::memcpy(memory_at(transfer), transfer.here, transfer.bytes);
      ++memory_.writes;
      step();
    }
    return Copied::kAll;
  }

  void tell_blocks(std::uint64_t piece, std::uint64_t blocks) override {
    step();
    at(peer(self_).blocks, piece) = {piece, blocks};
  }
  std::uint64_t blocks(LocalRank of, std::uint64_t piece) const override {
    step();
    return read(peer(of).blocks, piece);
  }
  void tell_sums(std::uint64_t piece, std::uint64_t blocks) override {
    step();
    at(peer(self_).sums, piece) = {piece, blocks};
  }
  std::uint64_t sums(LocalRank of, std::uint64_t piece) const override {
    step();
    return read(peer(of).sums, piece);
  }

  void tell_count(LocalRank of, std::uint64_t blocks) override {
    step();
    peer(self_).counts[of] = blocks;
  }
  std::uint64_t count(LocalRank by, LocalRank of) const override {
    step();
    return peer(by).counts[of];
  }
  void tell_negative_zeros(LocalRank of, std::uint64_t pieces) override {
    step();
    peer(self_).negative_zeros[of] = pieces;
  }
  std::uint64_t negative_zeros(LocalRank by, LocalRank of) const override {
    step();
    return peer(by).negative_zeros[of];
  }

  void part() override { peer(self_).has_parted = true; }

 private:
  void step() const { memory_.on_step(self_); }
  static SharedMemory::Blocks& at(std::vector<SharedMemory::Blocks>& ring, std::uint64_t piece) {
    return ring[piece % ring.size()];
  }
  static std::uint64_t read(std::vector<SharedMemory::Blocks>& ring, std::uint64_t piece) {
    require(at(ring, piece).piece == piece, "blocks of another piece are read");
    return at(ring, piece).blocks;
  }
  static std::byte* memory_at(const Transfer& transfer) {
    return reinterpret_cast<std::byte*>(transfer.there);
  }
  Copied reach(LocalRank rank, const Transfer& transfer) const {
    require(rank != self_, "a rank reaches its own process");
    if (peer(rank).is_dead) return Copied::kProcessGone;
    const std::byte* const begin = memory_at(transfer);
    const auto& mapped = peer(rank).mapped;
    require(std::any_of(mapped.begin(), mapped.end(),
                        [&](const std::span<std::byte>& memory) {
                          return begin >= memory.data() &&
                                 begin + transfer.bytes <= memory.data() + memory.size();
                        }),
            "a rank reaches beyond a tensor");
    return peer(rank).is_unmapped ? Copied::kNotMapped : Copied::kAll;
  }
  SharedMemory::Peer& peer(LocalRank rank) const { return memory_.peers_[rank]; }
  SharedMemory::Entry& entry_of(LocalRank rank, OpNumber op) const {
    return peer(rank).calls[op % memory_.sizes.calls];
  }

  SharedMemory& memory_;
  const LocalRank self_;
};

SharedMemory::SharedMemory(const HostSizes& sizes_given) : sizes(sizes_given), peers_(sizes.ranks) {
  for (Peer& peer : peers_) {
    peer.calls.resize(sizes.calls);
    peer.slots.resize(sizes.slots * sizes.slot_bytes);
    peer.blocks.resize(sizes.blocks);
    peer.sums.resize(sizes.blocks);
    peer.counts.resize(sizes.ranks + 1u);
    peer.negative_zeros.resize(sizes.ranks);
  }
}

std::unique_ptr<worker::host::Board> SharedMemory::board_of(LocalRank rank) {
  return std::make_unique<SimulatedBoard>(*this, rank);
}

std::uint64_t SharedMemory::share(LocalRank rank, std::span<std::byte> memory) {
  peers_[rank].regions.emplace(next_region_, memory);
  return next_region_++;
}

void SharedMemory::unmap(LocalRank rank, std::span<std::byte> memory) {
  std::vector<std::span<std::byte>>& mapped = peers_[rank].mapped;
  const auto found = std::ranges::find_if(mapped, [memory](const auto& each) {
    return each.data() == memory.data() && each.size() == memory.size();
  });
  if (found != mapped.end()) mapped.erase(found);
}

}  // namespace sluice::sim
