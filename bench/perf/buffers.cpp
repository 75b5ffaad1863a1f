#include "bench/perf/buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <sys/mman.h>

#include <sluice/sluice.hpp>

namespace sluice::perf {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kCacheLine = 64;

void free_ordinary(void* memory) noexcept {
  std::free(memory);
}

/// As a program's own allocator returns it, but in huge pages if the kernel has some.
std::byte* allocate_ordinary(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = rounded >= bytes ? std::aligned_alloc(alignment, rounded) : nullptr;
  if (memory == nullptr)
    throw Error(ErrorCode::kUnavailable, "no memory for " + std::to_string(bytes) + " bytes");
  if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);  // a hint
  return static_cast<std::byte*>(memory);
}

}  // namespace

TensorMemory take_memory(MemoryKind kind, std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  if (kind == MemoryKind::kOrdinary) return {allocate_ordinary(bytes, alignment), free_ordinary};
  return {static_cast<std::byte*>(allocate(bytes, alignment)), deallocate};
}

Buffers::Buffers(const Options& options)
    : input_(take_memory(options.memory, options.max_bytes)),
      output_(options.in_place.front() ? TensorMemory(nullptr, free_ordinary)
                                       : take_memory(options.memory, options.max_bytes)) {}

}  // namespace sluice::perf
