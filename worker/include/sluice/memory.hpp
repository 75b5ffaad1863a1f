// Memory for tensors.
//
//   std::vector<float, sluice::Allocator<float>> gradients(1'000'000);
//
// It lies where the ranks of a job that are on this host may read and write it, so that they sum
// such a tensor in place (docs/hosts.md). Else it is as any memory; where the system shares none,
// as in some sandboxes, it is ordinary memory.
//
// After fork() the child has its parent's tensors as they are, and what it writes is its own. A
// page that it has not written shows what the parent writes there later, or zeros once the parent
// has freed it: what a child needs for long it should copy. Large tensors lie in huge pages where
// the kernel has some for shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
#pragma once

#include <cstddef>
#include <limits>
#include <new>

namespace sluice {

/// Uninitialized memory, of `bytes` and aligned to a multiple of `alignment` bytes, a power of two
/// of at most 2 MiB. Never null, also for 0 bytes. Freed by `deallocate`. Throws Error
/// kInvalidArgument for another alignment, kUnavailable naming the size if there is no memory.
void* allocate(std::size_t bytes, std::size_t alignment = 64);

/// What `allocate` gave, here or in a process that this one was forked from, or null.
void deallocate(void* memory) noexcept;

/// Whether `deallocate` takes this: what `allocate` gave and nobody has freed since. For libraries
/// that free what others may have allocated.
bool is_allocated(const void* memory) noexcept;

/// For containers of the standard library. Throws as they expect it: std::bad_alloc for more
/// elements than there can be, else as `allocate`.
template <class T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) noexcept {}  // NOLINT: containers convert them

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_array_new_length();
    return static_cast<T*>(sluice::allocate(count * sizeof(T), alignof(T) < 64 ? 64 : alignof(T)));
  }
  void deallocate(T* memory, std::size_t) noexcept { sluice::deallocate(memory); }

  template <class U>
  friend bool operator==(const Allocator&, const Allocator<U>&) noexcept {
    return true;
  }
};

}  // namespace sluice
