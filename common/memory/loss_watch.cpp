#include "common/memory/loss_watch.hpp"

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <sys/mman.h>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"

namespace sluice::memory {
namespace {

struct Place {
  std::atomic<std::uintptr_t> begin{0};  // 0: nothing is watched here
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> lost{false};
};

// A handler may neither lock nor allocate, so places stay where they are.
std::array<Place, limits::kMaxMappedRegions> places;
std::atomic<std::size_t> places_used{0};  // from the first on, some of them free again

std::mutex mutex;
std::vector<std::size_t> free_places;  // guarded

std::size_t take_place() {
  const std::lock_guard lock(mutex);
  if (!free_places.empty()) {
    const std::size_t place = free_places.back();
    free_places.pop_back();
    return place;
  }
  const std::size_t place = places_used.load();
  if (place == places.size())
    throw Error(ErrorCode::kUnavailable,
                "peers' shared memory: " + std::to_string(place) + " regions are mapped already");
  places_used.store(place + 1);
  return place;
}

}  // namespace

LossWatch::LossWatch(std::span<const std::byte> mapping) : place_(take_place()) {
  Place& place = places[place_];
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data());
  place.lost.store(false);
  place.end.store(begin + mapping.size());
  place.begin.store(begin);
}

// Nobody accesses the mapping any more. A handler that looks for another address meanwhile may see
// this place: it is nobody's while `begin` is 0.
LossWatch::~LossWatch() {
  places[place_].begin.store(0);
  const std::lock_guard lock(mutex);
  free_places.push_back(place_);
}

const std::atomic<bool>& LossWatch::lost() const {
  return places[place_].lost;
}

// All of it: huge pages cannot be replaced by part, and nothing of it is worth keeping. Nobody
// unmaps it meanwhile, as whoever accesses it holds its region.
bool replace_lost_mapping(const void* address) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::size_t used = places_used.load();
  for (std::size_t i = 0; i < used; ++i) {
    Place& place = places[i];
    const std::uintptr_t begin = place.begin.load();
    const std::uintptr_t end = place.end.load();
    // Read once more: another mapping may have come to this place between the two.
    if (begin == 0 || at < begin || at >= end || place.begin.load() != begin) continue;
    void* const mapping = reinterpret_cast<void*>(begin);
    place.lost.store(true);  // before another lane can read zeros
    if (mmap(mapping, end - begin, PROT_READ,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != mapping)
      return false;
    return true;
  }
  return false;
}

}  // namespace sluice::memory
