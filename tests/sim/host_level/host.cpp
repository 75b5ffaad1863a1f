#include "tests/sim/host_level/host.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "tests/sim/bug.hpp"

namespace sluice::sim {
namespace {

constexpr std::uint64_t kMostSlices = 2'000'000;

}  // namespace

/// Between the two halves of a call, others may go on, too.
class SimulatedBoard final : public worker::host::Board {
 public:
  SimulatedBoard(Host& host, LocalRank self) : host_(host), self_(self) {}

  void set(Word word, std::uint64_t value) override {
    host_.step();
    std::uint64_t& stored = mate(self_).words[static_cast<std::size_t>(word)];
    require(value > stored, "a word does not rise");
    stored = value;
    host_.resting_ = 0;
    host_.step();
  }
  std::uint64_t word(LocalRank of, Word word) const override {
    host_.step();
    return mate(of).words[static_cast<std::size_t>(word)];
  }

  void call(OpNumber op, const Call& call) override {
    host_.step();
    Host::Entry& entry = entry_of(self_, op);
    entry.op.reset();
    host_.step();
    entry.call = call;
    entry.op = op;
    host_.resting_ = 0;
    host_.step();
  }
  bool has_called(LocalRank rank, OpNumber op) const override {
    host_.step();
    return entry_of(rank, op).op == op;
  }
  Call called(LocalRank rank, OpNumber op) const override {
    const Call first = entry_of(rank, op).call;
    require(entry_of(rank, op).op == op, "a call is read that is not there");
    host_.step();
    require(entry_of(rank, op).op == op, "a call was replaced while it was read");
    return first;
  }

  void tell_farewell(const AbortInfo& why) override {
    host_.step();
    mate(self_).farewell = why;
  }
  AbortInfo farewell(LocalRank of) const override {
    host_.step();
    return mate(of).farewell;
  }

  std::byte* bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) override {
    host_.step();
    const auto found = mate(rank).regions.find(place.region);
    if (found == mate(rank).regions.end() || place.offset > found->second.size() ||
        bytes > found->second.size() - place.offset)
      return nullptr;
    return found->second.data() + place.offset;
  }
  std::byte* slot(LocalRank of, std::uint64_t piece) override {
    host_.step();
    return mate(of).slots.data() + piece % host_.sizes.slots * host_.sizes.slot_bytes;
  }

  Copied read(LocalRank from, std::span<const Transfer> transfers) override {
    for (const Transfer& transfer : transfers) {
      host_.step();
      const Copied copied = reach(from, transfer);
      if (copied != Copied::kAll) return copied;
      std::memcpy(transfer.here, memory_at(transfer), transfer.bytes);
      ++host_.reads;
    }
    return Copied::kAll;
  }
  /// Begins in one step with what was looked at before.
  Copied write(LocalRank to, std::span<const Transfer> transfers) override {
    require(!mate(to).has_parted, "a rank that has parted is written to");
    for (const Transfer& transfer : transfers) {
      const Copied copied = reach(to, transfer);
      if (copied != Copied::kAll) return copied;
      std::memcpy(memory_at(transfer), transfer.here, transfer.bytes);
      ++host_.writes;
      host_.step();
    }
    return Copied::kAll;
  }

  void tell_blocks(std::uint64_t piece, std::uint64_t blocks) override {
    host_.step();
    at(mate(self_).blocks, piece) = {piece, blocks};
  }
  std::uint64_t blocks(LocalRank of, std::uint64_t piece) const override {
    host_.step();
    return read(mate(of).blocks, piece);
  }
  void tell_sums(std::uint64_t piece, std::uint64_t blocks) override {
    host_.step();
    at(mate(self_).sums, piece) = {piece, blocks};
  }
  std::uint64_t sums(LocalRank of, std::uint64_t piece) const override {
    host_.step();
    return read(mate(of).sums, piece);
  }

  void tell_count(LocalRank of, std::uint64_t blocks) override {
    host_.step();
    mate(self_).counts[of] = blocks;
  }
  std::uint64_t count(LocalRank by, LocalRank of) const override {
    host_.step();
    return mate(by).counts[of];
  }

  void part() override { mate(self_).has_parted = true; }

 private:
  static Host::Blocks& at(std::vector<Host::Blocks>& ring, std::uint64_t piece) {
    return ring[piece % ring.size()];
  }
  static std::uint64_t read(std::vector<Host::Blocks>& ring, std::uint64_t piece) {
    require(at(ring, piece).piece == piece, "blocks of another piece are read");
    return at(ring, piece).blocks;
  }
  static std::byte* memory_at(const Transfer& transfer) {
    return reinterpret_cast<std::byte*>(transfer.there);
  }
  Copied reach(LocalRank rank, const Transfer& transfer) const {
    require(rank != self_, "a rank reaches its own process");
    if (mate(rank).is_dead) return Copied::kProcessGone;
    const std::byte* const begin = memory_at(transfer);
    const auto& mapped = mate(rank).mapped;
    require(std::any_of(mapped.begin(), mapped.end(),
                        [&](const std::span<std::byte>& memory) {
                          return begin >= memory.data() &&
                                 begin + transfer.bytes <= memory.data() + memory.size();
                        }),
            "a rank reaches beyond a tensor");
    return mate(rank).is_unmapped ? Copied::kNotMapped : Copied::kAll;
  }
  Host::Mate& mate(LocalRank rank) const { return host_.mates_[rank]; }
  Host::Entry& entry_of(LocalRank rank, OpNumber op) const {
    return mate(rank).calls[op % host_.sizes.calls];
  }

  Host& host_;
  const LocalRank self_;
};

Host::Host(const HostSizes& sizes_given, std::uint64_t seed)
    : sizes(sizes_given), random(seed), mates_(sizes.ranks) {
  leave_chance_ = random.pick({0.05, 0.3, 0.8});
  for (Mate& mate : mates_) {
    mate.calls.resize(sizes.calls);
    mate.slots.resize(sizes.slots * sizes.slot_bytes);
    mate.blocks.resize(sizes.blocks);
    mate.sums.resize(sizes.blocks);
    mate.counts.resize(sizes.ranks + 1u);
  }
}

/// Whoever still runs is unwound.
Host::~Host() {
  is_over_ = true;
  for (Mate& mate : mates_)
    if (mate.fiber && !mate.fiber->ended()) mate.fiber->go_on();
}

void Host::start(LocalRank rank, std::function<void()> body) {
  mates_[rank].fiber = std::make_unique<Fiber>([this, rank, body = std::move(body)] {
    try {
      if (!is_over_) body();
    } catch (const Died&) {
      mates_[rank].is_dead = true;
    } catch (const std::exception& problem) {
      problem_ = "rank " + std::to_string(rank) + ": " + problem.what();
    }
  });
}

bool Host::ended() const {
  return std::all_of(mates_.begin(), mates_.end(), [](const Mate& m) { return m.fiber->ended(); });
}

void Host::run() {
  for (std::uint64_t slice = 0; !ended(); ++slice) {
    require(slice < kMostSlices, "it does not end");
    running_ = static_cast<LocalRank>(random.below(mates_.size()));
    Mate& mate = mates_[running_];
    if (mate.fiber->ended() || now < mate.stopped_until) {
      if (random.chance(0.1)) now += std::chrono::microseconds(10);
      continue;
    }
    now += std::chrono::nanoseconds(random.below(2000));
    mate.fiber->go_on();
    if (!problem_.empty()) throw Bug(problem_);
    // Nobody has anything to do but to wait for the time.
    if (resting_ > 4 * mates_.size()) {
      now += std::chrono::microseconds(random.below(5000));
      resting_ = 0;
    }
  }
}

void Host::step() {
  Mate& mate = mates_[running_];
  if (is_over_) throw Died{};
  if (mate.steps_to_unmap && (*mate.steps_to_unmap)-- == 0) {
    mate.steps_to_unmap.reset();
    mate.is_unmapped = true;
  }
  if (mate.steps_to_death && (*mate.steps_to_death)-- == 0) throw Died{};
  if (mate.steps_to_stop && (*mate.steps_to_stop)-- == 0) {
    mate.steps_to_stop.reset();
    mate.was_stopped = true;
    mate.stopped_until = now + mate.stop_time;
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

std::uint64_t Host::share(LocalRank rank, std::span<std::byte> memory) {
  mates_[rank].regions.emplace(next_region_, memory);
  return next_region_++;
}

std::unique_ptr<worker::host::Board> Host::board_of(LocalRank rank) {
  return std::make_unique<SimulatedBoard>(*this, rank);
}

}  // namespace sluice::sim
