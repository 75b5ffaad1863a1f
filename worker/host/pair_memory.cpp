#include "worker/host/pair_memory.hpp"

#include <algorithm>
#include <new>

#include "worker/memory/arena.hpp"

namespace sluice::worker::host {
namespace {

/// How many later requests memory may stay unused before it is freed: two sums make a dozen
/// requests.
constexpr std::uint64_t kKept = 16;
/// 1/kMore more is taken than was asked for, as the next sum may have somewhat more pairs. A kept
/// block serves no request for less than 1/kLeastPart of it, except if the block is small.
constexpr std::size_t kMore = 8, kLeastPart = 2;
constexpr std::size_t kFew = std::size_t{64} << 10;

}  // namespace

PairPool::~PairPool() {
  for (const Spare& spare : spare_) memory::Arena::of_process().deallocate(spare.memory);
}

PairPool::Memory PairPool::take(const std::shared_ptr<PairPool>& pool, std::size_t bytes) {
  const Spare spare = pool->take(bytes);
  const auto give_back = [pool, all = spare.bytes](std::byte* memory) {
    pool->give_back(memory, all);
  };
  return {spare.memory, give_back};
}

PairPool::Spare PairPool::take(std::size_t bytes) {
  const auto fits = [bytes](const Spare& spare) {
    return spare.bytes >= bytes && spare.bytes / kLeastPart <= std::max(bytes, kFew);
  };
  {
    const std::lock_guard lock(mutex_);
    ++taken_;
    if (const auto found = std::ranges::find_if(spare_, fits); found != spare_.end()) {
      const Spare spare = *found;
      spare_.erase(found);
      return spare;
    }
  }
  const std::size_t all = bytes + bytes / kMore;
  return {.memory = memory::Arena::of_process().allocate(all), .bytes = all, .since = 0};
}

/// Memory that cannot be kept is freed.
void PairPool::give_back(std::byte* memory, std::size_t bytes) noexcept {
  if (fork_generation() != generation_) return memory::Arena::of_process().deallocate(memory);
  std::list<Spare> old;
  try {
    const std::lock_guard lock(mutex_);
    spare_.push_back({memory, bytes, taken_});
    while (spare_.front().since + kKept < taken_) old.splice(old.end(), spare_, spare_.begin());
  } catch (const std::bad_alloc&) {
    memory::Arena::of_process().deallocate(memory);
  }
  for (const Spare& spare : old) memory::Arena::of_process().deallocate(spare.memory);
}

}  // namespace sluice::worker::host
