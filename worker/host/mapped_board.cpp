#include "worker/host/mapped_board.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include <sluice/error.hpp>

namespace sluice::worker::host {
namespace {

constexpr std::size_t kLine = 128;  // two cache lines: neighbours are fetched together

/// How many bytes of a call are copied: cache lines that nobody needs are not passed on.
std::size_t published_bytes_of(const Call& call) {
  return offsetof(Call, elements) + std::min<std::size_t>(call.inline_bytes, kInlineBytes);
}

Copied copied(int error) {
  return error == 0 ? Copied::kAll : error == ESRCH ? Copied::kProcessGone : Copied::kNotMapped;
}

}  // namespace

// What a rank publishes. Zeros are valid. Another process may write anything, so a reader copies
// all of it before it looks at it.
struct alignas(kLine) MappedBoard::Published {
  std::array<std::atomic<std::uint64_t>, kWords> words;
  std::atomic<std::uint32_t> asleep;
  alignas(kLine) AbortInfo farewell;
  std::array<std::atomic<std::uint64_t>, kMaxRanks + 1> counts;
  std::array<std::atomic<std::uint64_t>, kMaxRanks> negative_zeros;
};

struct alignas(kLine) MappedBoard::Entry {
  std::atomic<std::uint64_t> number;  // of the op, plus one; 0: none
  Call call;
};

/// The bitmaps of one piece: of what was given, and of what was summed.
struct MappedBoard::Blocks {
  std::atomic<std::uint64_t> given, summed;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::is_trivially_copyable_v<Call> && std::is_trivially_copyable_v<AbortInfo>);

std::size_t MappedBoard::published_bytes(const BoardSizes& sizes) {
  return sizeof(Published) + sizes.calls * sizeof(Entry) + sizes.blocks * sizeof(Blocks);
}

MappedBoard::MappedBoard(const BoardSizes& sizes, std::vector<RankMemory> of_rank, LocalRank self,
                         Calls calls)
    : sizes_(sizes), of_rank_(std::move(of_rank)), self_(self), calls_(std::move(calls)) {
  for (const RankMemory& memory : of_rank_)
    if (memory.published.size() < published_bytes(sizes_) ||
        memory.slots.size() < sizes_.slots_bytes())
      throw Error(ErrorCode::kInvalidArgument,
                  "a rank of this host shares " + std::to_string(memory.published.size()) +
                      " and " + std::to_string(memory.slots.size()) + " bytes; " +
                      std::to_string(published_bytes(sizes_)) + " and " +
                      std::to_string(sizes_.slots_bytes()) + " expected: is it of another build?");
}

MappedBoard::Published& MappedBoard::published(LocalRank rank) const {
  return *reinterpret_cast<Published*>(of_rank_[rank].published.data());
}

MappedBoard::Entry& MappedBoard::entry(LocalRank rank, OpNumber op) const {
  std::byte* const first = of_rank_[rank].published.data() + sizeof(Published);
  return reinterpret_cast<Entry*>(first)[op % sizes_.calls];
}

MappedBoard::Blocks& MappedBoard::blocks_of(LocalRank rank, std::uint64_t piece) const {
  std::byte* const first =
      of_rank_[rank].published.data() + sizeof(Published) + sizes_.calls * sizeof(Entry);
  return reinterpret_cast<Blocks*>(first)[piece % sizes_.blocks];
}

void MappedBoard::set(Word word, std::uint64_t value) {
  published(self_).words[static_cast<std::size_t>(word)].store(value, std::memory_order_release);
  has_published_ = true;
}

std::uint64_t MappedBoard::word(LocalRank of, Word word) const {
  return published(of).words[static_cast<std::size_t>(word)].load(std::memory_order_acquire);
}

void MappedBoard::call(OpNumber op, const Call& call) {
  Entry& mine = entry(self_, op);
  std::memcpy(static_cast<void*>(&mine.call), &call, published_bytes_of(call));
  mine.number.store(op + 1, std::memory_order_release);
  has_published_ = true;
}

bool MappedBoard::has_called(LocalRank rank, OpNumber op) const {
  return entry(rank, op).number.load(std::memory_order_acquire) == op + 1;
}

Call MappedBoard::called(LocalRank rank, OpNumber op) const {
  const Call& theirs = entry(rank, op).call;
  Call call;
  std::memcpy(static_cast<void*>(&call), &theirs, offsetof(Call, elements));
  const std::size_t length = published_bytes_of(call) - offsetof(Call, elements);
  std::memcpy(call.elements.data(), theirs.elements.data(), length);
  return call;
}

void MappedBoard::tell_farewell(const AbortInfo& why) {
  published(self_).farewell = why;
}

AbortInfo MappedBoard::farewell(LocalRank of) const {
  return published(of).farewell;
}

std::byte* MappedBoard::bytes_at(LocalRank rank, const Place& place, std::uint64_t bytes) {
  const std::span<std::byte> region = calls_.find_region(rank, place.region);
  if (place.offset > region.size() || bytes > region.size() - place.offset) return nullptr;
  return region.data() + place.offset;
}

std::byte* MappedBoard::slot(LocalRank of, std::uint64_t piece) {
  return of_rank_[of].slots.data() + piece % sizes_.slots * sizes_.slot_bytes;
}

Copied MappedBoard::read(LocalRank from, std::span<const Transfer> transfers) {
  return copied(calls_.process_of(from).read(transfers));
}

Copied MappedBoard::write(LocalRank to, std::span<const Transfer> transfers) {
  return copied(calls_.process_of(to).write(transfers));
}

// The words that say that a piece is given, or summed, are published after these.
void MappedBoard::tell_blocks(std::uint64_t piece, std::uint64_t blocks) {
  blocks_of(self_, piece).given.store(blocks, std::memory_order_relaxed);
}

std::uint64_t MappedBoard::blocks(LocalRank of, std::uint64_t piece) const {
  return blocks_of(of, piece).given.load(std::memory_order_relaxed);
}

void MappedBoard::tell_sums(std::uint64_t piece, std::uint64_t blocks) {
  blocks_of(self_, piece).summed.store(blocks, std::memory_order_relaxed);
}

std::uint64_t MappedBoard::sums(LocalRank of, std::uint64_t piece) const {
  return blocks_of(of, piece).summed.load(std::memory_order_relaxed);
}

void MappedBoard::tell_count(LocalRank of, std::uint64_t blocks) {
  published(self_).counts[of].store(blocks, std::memory_order_relaxed);
}

std::uint64_t MappedBoard::count(LocalRank by, LocalRank of) const {
  return published(by).counts[of].load(std::memory_order_relaxed);
}

void MappedBoard::tell_negative_zeros(LocalRank of, std::uint64_t pieces) {
  published(self_).negative_zeros[of].store(pieces, std::memory_order_relaxed);
}

std::uint64_t MappedBoard::negative_zeros(LocalRank by, LocalRank of) const {
  return published(by).negative_zeros[of].load(std::memory_order_relaxed);
}

/// Either the peer sees what we published, or we see that it is asleep.
void MappedBoard::wake_peers() {
  if (!std::exchange(has_published_, false)) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (LocalRank peer = 0; peer < of_rank_.size(); ++peer)
    if (peer != self_ && published(peer).asleep.load(std::memory_order_relaxed) != 0)
      calls_.wake(peer);
}

void MappedBoard::fall_asleep() {
  published(self_).asleep.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void MappedBoard::wake_up() {
  published(self_).asleep.store(0, std::memory_order_relaxed);
}

}  // namespace sluice::worker::host
