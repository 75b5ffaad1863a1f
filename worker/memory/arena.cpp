#include "worker/memory/arena.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sluice/error.hpp>

namespace sluice::memory {
namespace {

constexpr std::size_t kMostBytes = std::numeric_limits<std::size_t>::max() / 4;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

/// The pages that lie completely in a range.
std::span<std::byte> whole_pages(std::span<std::byte> region, std::size_t offset,
                                 std::size_t bytes) {
  const std::size_t first = round_up(offset, page_bytes());
  const std::size_t end = (offset + bytes) / page_bytes() * page_bytes();
  return first < end ? region.subspan(first, end - first) : region.first(0);
}

/// Returns pages to the system, also if another rank has them mapped.
void punch(std::span<std::byte> pages) {
  // If that fails, they stay, which does no harm.
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_REMOVE);
}

/// Checks whether the system would give so much ordinary memory. It gives a memfd of any size, and
/// kills the process that fills it.
void require_memory(std::size_t bytes) {
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    throw Error(ErrorCode::kUnavailable,
                "no memory for " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  munmap(address, bytes);
}

/// The region in which an address lies, or the end.
template <class Regions>
auto region_of(Regions& regions, const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  const auto after = regions.upper_bound(byte);
  if (after == regions.begin()) return regions.end();
  const auto region = std::prev(after);
  return byte < region->first + region->second.bytes().size() ? region : regions.end();
}

}  // namespace

Arena& Arena::of_process() {
  static Arena* const arena = new Arena;  // what lies there may outlive main()
  static const int registered = pthread_atfork([] { arena->mutex_.lock(); },  //
                                               [] { arena->mutex_.unlock(); },
                                               [] {
                                                 arena->become_private();
                                                 arena->mutex_.unlock();
                                               });
  static_cast<void>(registered);  // it fails only if there is no memory
  return *arena;
}

Arena::Arena(std::size_t region_bytes) : region_bytes_(region_bytes) {}

Arena::~Arena() = default;

std::byte* Arena::allocate(std::size_t bytes, std::size_t alignment) {
  if (!std::has_single_bit(alignment) || alignment > kAlignmentMost)
    throw Error(ErrorCode::kInvalidArgument, "an alignment of " + std::to_string(alignment) +
                                                 " bytes: a power of two expected, 1.." +
                                                 std::to_string(kAlignmentMost));
  if (bytes > kMostBytes)
    throw Error(ErrorCode::kUnavailable, "no memory for " + std::to_string(bytes) + " bytes");
  // A large one shares no page with others, so that all its pages can be returned to the system.
  const std::size_t unit = std::max(alignment, bytes < page_bytes() ? kAlignment : page_bytes());
  const std::size_t rounded =
      round_up(std::max<std::size_t>(bytes, 1), bytes < page_bytes() ? kAlignment : page_bytes());
  try {
    return allocate_in_regions(rounded, unit);
  } catch (const Error& error) {
    std::byte* const memory = allocate_elsewhere(rounded, unit);
    refused(error.what());
    return memory;
  }
}

std::byte* Arena::allocate_in_regions(std::size_t bytes, std::size_t alignment) {
  std::shared_ptr<const OwnRegion> gone;
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [first, region] : regions_) {
      memory = region.is_inherited ? nullptr : take(region, bytes, alignment);
      if (memory != nullptr) return memory;
    }
    if (unused_) gone = remove(regions_.find(*unused_));  // it is too small
    memory = take(grow(bytes)->second, bytes, alignment);
  }
  if (gone) punch(gone->bytes());
  return memory;
}

/// Throws Error kUnavailable.
Arena::Regions::iterator Arena::grow(std::size_t bytes) {
  const std::size_t rounded = round_up(std::max(bytes, region_bytes_), kHugePage);
  require_memory(rounded);
  auto memory =
      std::make_shared<const OwnRegion>("sluice-arena", rounded, OwnRegion::Writers::kTrusted);
  madvise(memory->bytes().data(), rounded, MADV_HUGEPAGE);  // a hint
  struct stat file {};
  fstat(memory->descriptor().get(), &file);
  const std::byte* const first = memory->bytes().data();
  assert(std::bit_cast<std::uintptr_t>(first) % kAlignmentMost == 0);
  Region region{std::move(memory), file.st_dev, file.st_ino};
  region.free.emplace(0, Range{rounded, 0});
  const auto added = regions_.emplace(first, std::move(region)).first;
  ++changes_;
  return added;
}

/// Takes the first free range with room for it; null if there is none.
std::byte* Arena::take(Region& region, std::size_t bytes, std::size_t alignment) {
  for (auto& [offset, free] : region.free) {
    const std::size_t start = round_up(offset, alignment);
    if (start + bytes > offset + free.bytes) continue;
    const std::size_t before = start - offset;
    const std::size_t after = free.bytes - before - bytes;
    Ranges parts;  // first all that may fail if there is no memory
    parts.emplace(start, Range{bytes, 0});
    if (after > 0) parts.emplace(start + bytes, Range{after, std::min(free.touched, after)});
    touched_ -= free.touched;
    free = {before, std::min(free.touched, before)};
    touched_ += free.touched;
    if (before == 0) region.free.erase(offset);
    region.used.insert(parts.extract(start));
    if (after > 0) {
      touched_ += parts.begin()->second.touched;
      region.free.merge(parts);
    }
    std::byte* const first = region.bytes().data();
    if (unused_ == first) unused_.reset();
    return first + start;
  }
  return nullptr;
}

std::byte* Arena::allocate_elsewhere(std::size_t bytes, std::size_t alignment) {
  if (bytes >= kHugePage) require_memory(bytes);  // a sanitizer would end the process
  void* const memory = std::aligned_alloc(alignment, round_up(bytes, alignment));
  if (memory == nullptr)
    throw Error(ErrorCode::kUnavailable,
                "no memory for " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  const std::lock_guard lock(mutex_);
  elsewhere_.insert(memory);
  return static_cast<std::byte*>(memory);
}

void Arena::deallocate(void* memory) noexcept {
  if (memory == nullptr) return;
  std::shared_ptr<const OwnRegion> gone;  // unmapped without the lock, as that takes time
  {
    std::unique_lock lock(mutex_);
    const auto found = region_of(regions_, memory);
    if (found == regions_.end()) {
      const bool is_ours = elsewhere_.erase(memory) == 1;
      assert(is_ours && "freed twice, or not of sluice::allocate");
      lock.unlock();
      std::free(memory);
      return;
    }
    Region& region = found->second;
    const auto range = region.used.find(static_cast<std::byte*>(memory) - found->first);
    assert(range != region.used.end() && "freed twice, or not of sluice::allocate");
    if (region.is_inherited) return free_inherited(found, range);
    range->second.touched = range->second.bytes;
    touched_ += range->second.bytes;
    const auto free = put_back(region, region.used.extract(range));
    if (touched_ > region_bytes_) let_go_of_pages(lock, region, free);
    if (region.is_unused()) gone = keep_one_unused(found);
  }
  if (gone) punch(gone->bytes());
}

bool Arena::is_allocated(const void* memory) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto region = region_of(regions_, memory);
  if (region == regions_.end()) return elsewhere_.contains(memory);
  return region->second.used.contains(static_cast<const std::byte*>(memory) - region->first);
}

/// Joins the range with its neighbours. Needs no memory.
Arena::Ranges::iterator Arena::put_back(Region& region, Ranges::node_type range) {
  const auto put = region.free.insert(std::move(range)).position;
  const auto join_next = [&region](Ranges::iterator at) {
    const auto next = std::next(at);
    if (next == region.free.end() || at->first + at->second.bytes != next->first) return;
    at->second.bytes += next->second.bytes;
    at->second.touched += next->second.touched;
    region.free.erase(next);
  };
  join_next(put);
  if (put == region.free.begin()) return put;
  const auto before = std::prev(put);
  const bool joins = before->first + before->second.bytes == put->first;
  join_next(before);
  return joins ? before : put;
}

/// Releases the lock meanwhile; the range is out of the list, so nobody can take it.
void Arena::let_go_of_pages(std::unique_lock<std::mutex>& lock, Region& region,
                            Ranges::iterator free) {
  auto range = region.free.extract(free);
  touched_ -= std::exchange(range.mapped().touched, 0);
  const auto pages = whole_pages(region.bytes(), range.key(), range.mapped().bytes);
  lock.unlock();
  punch(pages);
  lock.lock();
  put_back(region, std::move(range));
}

/// Keeps one unused region, so that a program that frees a tensor and takes the next one does not
/// share a new region each time. Returns the region that is removed.
std::shared_ptr<const OwnRegion> Arena::keep_one_unused(Regions::iterator region) {
  const auto former = std::exchange(unused_, region->first);
  return former && former != region->first ? remove(regions_.find(*former)) : nullptr;
}

std::shared_ptr<const OwnRegion> Arena::remove(Regions::iterator region) {
  assert(region != regions_.end() && region->second.is_unused());
  touched_ -= region->second.free.begin()->second.touched;
  auto memory = std::move(region->second.memory);
  if (unused_ == region->first) unused_.reset();
  regions_.erase(region);
  ++changes_;
  return memory;
}

/// A child does not give out memory of its parent again; it only returns it.
void Arena::free_inherited(Regions::iterator region, Ranges::iterator range) {
  const auto pages = whole_pages(region->second.bytes(), range->first, range->second.bytes);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_DONTNEED);  // the child's copies
  region->second.used.erase(range);
  if (region->second.used.empty()) regions_.erase(region);
}

std::optional<Arena::Place> Arena::find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  const auto found = region_of(regions_, bytes.data());
  if (bytes.empty() || found == regions_.end() || found->second.is_inherited) return std::nullopt;
  const Ranges& used = found->second.used;
  const std::size_t offset = bytes.data() - found->first;
  auto range = used.upper_bound(offset);
  if (range == used.begin()) return std::nullopt;
  std::size_t end = std::prev(range)->first + std::prev(range)->second.bytes;
  if (end <= offset) return std::nullopt;
  for (; range != used.end() && range->first == end; ++range) {
    if (end - offset >= bytes.size()) break;
    end += range->second.bytes;
  }
  if (end - offset < bytes.size()) return std::nullopt;
  return Place{found->second.memory->id(), offset};
}

std::vector<std::shared_ptr<const OwnRegion>> Arena::regions() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const OwnRegion>> all;
  for (const auto& [first, region] : regions_)
    if (!region.is_inherited) all.push_back(region.memory);
  return all;
}

void Arena::refused(const std::string& why) {
  std::function<void(const std::string&)> told;
  {
    const std::lock_guard lock(mutex_);
    if (!refusal_.empty()) return;
    refusal_ = why;
    told = told_;
  }
  if (told) told(why);
}

void Arena::tell_refusal_to(std::function<void(const std::string& why)> told) {
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    told_ = told;
    why = refusal_;
  }
  if (told && !why.empty()) told(why);
}

/// Runs in the child, whose only thread this is. The lock was taken before the fork.
void Arena::become_private() {
  for (auto region = regions_.begin(); region != regions_.end();) {
    const auto next = std::next(region);
    if (region->second.used.empty()) {
      regions_.erase(region);
    } else if (!region->second.is_inherited) {  // otherwise it is of a grandparent
      make_private(region->second);
      region->second.is_inherited = true;
    }
    region = next;
  }
  unused_.reset();
  touched_ = 0;
  ++changes_;
}

/// Maps the same contents at the same place. Pages that this process writes become copies.
void Arena::make_private(const Region& region) {
  const std::span<std::byte> bytes = region.bytes();
  const int descriptor = region.memory->descriptor().get();
  struct stat file {};
  // The program may have closed our descriptor, and another file may have its number.
  const bool is_ours =
      fstat(descriptor, &file) == 0 && file.st_dev == region.device && file.st_ino == region.file;
  if (is_ours && mmap(bytes.data(), bytes.size(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, descriptor, 0) != MAP_FAILED)
    return;
  void* const copy = mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert(copy != MAP_FAILED && "no memory for what a forked process inherits");
  for (const auto& [offset, range] : region.used)
    std::memcpy(static_cast<std::byte*>(copy) + offset, bytes.data() + offset, range.bytes);
  [[maybe_unused]] const void* const moved =
      mremap(copy, bytes.size(), bytes.size(), MREMAP_MAYMOVE | MREMAP_FIXED, bytes.data());
  assert(moved == bytes.data());
}

}  // namespace sluice::memory
