// Memory for tensors: see sluice/memory.hpp.
#include <sluice/memory.hpp>

#include "worker/memory/arena.hpp"

namespace sluice {

void* allocate(std::size_t bytes, std::size_t alignment) {
  return memory::Arena::of_process().allocate(bytes, alignment);
}

void deallocate(void* memory) noexcept {
  memory::Arena::of_process().deallocate(memory);
}

bool is_allocated(const void* memory) noexcept {
  return memory::Arena::of_process().is_allocated(memory);
}

}  // namespace sluice
