// Memory for tensors that the ranks of one host sum where they lie: a process's allocator over
// regions (region.hpp). It takes more regions as it grows. Pages that nobody has written yet cost
// nothing.
//
// A region has a list of free ranges, ordered by offset, with neighbours joined; an allocation
// takes the first that fits. These lists lie outside the region, so a write beyond a tensor damages
// only tensors. Freed pages are kept for the next tensor up to a limit; above it they are returned
// to the system. Regions that are completely free are returned, too, except one.
//
// After fork() the child's arena is private. The child sees what its parent's tensors held, and may
// write and free them without effect on the parent; but no other rank finds them there. What the
// child allocates lies in new regions. A page that the child has not written is still the parent's:
// if the parent writes to it or frees it later, the child may see that. A process made without
// fork()'s handlers, by a bare clone(), shares everything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "worker/memory/region.hpp"

namespace sluice::memory {

/// All functions may be called by any thread.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;  ///< alignment of all memory: a cache line
  static constexpr std::size_t kAlignmentMost = kHugePage;
  static constexpr std::size_t kRegionBytes = std::size_t{64} << 20;

  struct Place {
    std::uint64_t region;  ///< its id
    std::uint64_t offset;  ///< in bytes
    friend bool operator==(const Place&, const Place&) = default;
  };

  /// The arena of this process. It is never destroyed; fork() makes it private in the child.
  static Arena& of_process();

  /// Takes regions of so many bytes, larger ones for larger tensors. Keeps at most so many bytes of
  /// freed pages.
  explicit Arena(std::size_t region_bytes = kRegionBytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Allocates uninitialized memory of `bytes` (0 takes as much as 1). `alignment` is a power of
  /// two of at most kAlignmentMost; otherwise this throws kInvalidArgument. If the system gives no
  /// region, as in a sandbox, it is ordinary memory. Throws kUnavailable, naming the size, if there
  /// is none either.
  std::byte* allocate(std::size_t bytes, std::size_t alignment = kAlignment);
  /// Frees memory from allocate(), called here or in a process from which this one was forked.
  /// Ignores null.
  void deallocate(void* memory) noexcept;

  /// Whether the memory is from allocate(), called here or in a process from which this one was
  /// forked, and was not freed since.
  bool is_allocated(const void* memory) const noexcept;

  /// Where these bytes lie, if they are all allocated in one region. Nothing otherwise, for an
  /// empty span, and for memory that a forked child has from its parent. Costs a lock and a
  /// look-up.
  std::optional<Place> find(std::span<const std::byte> bytes) const;

  /// Grows whenever the result of regions() changes.
  std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }
  /// The regions that find() may name. Whoever holds one keeps its addresses valid, but not its
  /// contents.
  std::vector<std::shared_ptr<const OwnRegion>> regions() const;

  /// Sets a function that some thread calls once, with the reason, when memory in a region is
  /// refused for the first time; it is called now if that has happened. An empty function removes
  /// the former one.
  void tell_refusal_to(std::function<void(const std::string& why)> told);

 private:
  /// Part of a region.
  struct Range {
    std::size_t bytes;
    std::size_t touched;  // of a free range: how many bytes may have pages, at most
  };
  using Ranges = std::map<std::size_t, Range>;  // by offset
  struct Region {
    std::shared_ptr<const OwnRegion> memory;
    dev_t device;  // device and inode of its file: a program may close our descriptor
    ino_t file;
    Ranges used = {};
    Ranges free = {};
    bool is_inherited = false;  // from the parent of a forked child

    std::span<std::byte> bytes() const { return memory->bytes(); }
    bool is_unused() const {
      return free.size() == 1 && free.begin()->second.bytes == bytes().size();
    }
  };
  using Regions = std::map<const std::byte*, Region>;  // by first address

  std::byte* allocate_in_regions(std::size_t bytes, std::size_t alignment);
  std::byte* allocate_elsewhere(std::size_t bytes, std::size_t alignment);
  Regions::iterator grow(std::size_t bytes);
  std::byte* take(Region& region, std::size_t bytes, std::size_t alignment);
  Ranges::iterator put_back(Region& region, Ranges::node_type range);
  void let_go_of_pages(std::unique_lock<std::mutex>& lock, Region& region, Ranges::iterator free);
  std::shared_ptr<const OwnRegion> keep_one_unused(Regions::iterator region);
  std::shared_ptr<const OwnRegion> remove(Regions::iterator region);
  void free_inherited(Regions::iterator region, Ranges::iterator range);
  void refused(const std::string& why);
  void become_private();
  static void make_private(const Region& region);

  const std::size_t region_bytes_;
  mutable std::mutex mutex_;  // guards all that follows; no other lock is taken while it is held
  Regions regions_;
  std::set<const void*> elsewhere_;  // memory outside of regions
  std::size_t touched_ = 0;          // of all free ranges
  // The region that is kept although it is completely free.
  std::optional<const std::byte*> unused_;
  std::string refusal_;
  std::function<void(const std::string&)> told_;
  std::atomic<std::uint64_t> changes_{0};
};

}  // namespace sluice::memory
