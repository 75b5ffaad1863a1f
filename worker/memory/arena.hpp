// Memory for tensors that the ranks of one host sum where they lie: a process's allocator over
// regions (region.hpp). It takes further ones as it grows; pages that nobody has written yet cost
// nothing.
//
// A region has a list of free ranges, by offset, neighbours joined; the first that fits is taken.
// What it knows of a region lies elsewhere, so that who writes beyond a tensor spoils tensors only.
// Freed pages are kept for the next tensor up to a bound, and go back to the system beyond it. A
// region that is wholly free goes, too, but one.
//
// After fork() the child's arena is private: it sees what its parent's tensors held, and may write
// and free them without the parent's notice, but no other rank finds them there, and what the child
// allocates lies in regions of its own. A page that the child has not written is still the
// parent's: what the parent writes to it later, or its release, may show in the child. A process
// made without fork()'s handlers, by a bare clone(), shares all.
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

/// For any thread.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;  ///< of all memory: a cache line
  static constexpr std::size_t kAlignmentMost = kHugePage;
  static constexpr std::size_t kRegionBytes = std::size_t{64} << 20;

  struct Place {
    std::uint64_t region;  ///< its id
    std::uint64_t offset;  ///< in bytes
    friend bool operator==(const Place&, const Place&) = default;
  };

  /// The process's own, which is never destroyed, and the one that is made private by fork().
  static Arena& of_process();

  /// Takes regions of so many bytes, or of more for what is larger; keeps as many of freed pages.
  explicit Arena(std::size_t region_bytes = kRegionBytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Uninitialized memory, of `bytes` (0 takes as much as 1). `alignment` is a power of two of at
  /// most kAlignmentMost, else this throws kInvalidArgument. Where the system gives no region, as
  /// in a sandbox, it is ordinary memory. Throws kUnavailable, naming the size, if there is none
  /// either.
  std::byte* allocate(std::size_t bytes, std::size_t alignment = kAlignment);
  /// What allocate() gave, here or in a process that this one was forked from, or null.
  void deallocate(void* memory) noexcept;

  /// Whether allocate() gave this, here or in a process that this one was forked from, and it was
  /// not freed since.
  bool is_allocated(const void* memory) const noexcept;

  /// Where bytes lie that are all allocated in one region; none for others, for none, and for what
  /// a forked child has from its parent. Costs a lock and a look-up.
  std::optional<Place> find(std::span<const std::byte> bytes) const;

  /// Rises whenever regions() would tell something new.
  std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }
  /// Those that find() may name. Who holds one keeps its addresses, not what lay there.
  std::vector<std::shared_ptr<const OwnRegion>> regions() const;

  /// Has `told` called, by any thread, once: why memory was not to be had in a region, when that
  /// happens first, or now if it has. An empty one takes the place of the former.
  void tell_refusal_to(std::function<void(const std::string& why)> told);

 private:
  /// Part of a region.
  struct Range {
    std::size_t bytes;
    std::size_t touched;  // of free ones: so many may have pages, at most
  };
  using Ranges = std::map<std::size_t, Range>;  // by offset
  struct Region {
    std::shared_ptr<const OwnRegion> memory;
    dev_t device;  // of its file, with the next: for a program may close our descriptor
    ino_t file;
    Ranges used = {};
    Ranges free = {};
    bool is_inherited = false;  // by a forked child

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
  mutable std::mutex mutex_;  // of all that follows; nothing else is locked while it is held
  Regions regions_;
  std::set<const void*> elsewhere_;         // ordinary memory
  std::size_t touched_ = 0;                 // of all free ranges
  std::optional<const std::byte*> unused_;  // the region that is kept though it is wholly free
  std::string refusal_;
  std::function<void(const std::string&)> told_;
  std::atomic<std::uint64_t> changes_{0};
};

}  // namespace sluice::memory
