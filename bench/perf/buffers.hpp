// Memory for the tensors of all rows.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "bench/perf/perf_options.hpp"

namespace sluice::perf {

/// Uninitialized; the deleter is that of its kind.
using TensorMemory = std::unique_ptr<std::byte, void (*)(void*) noexcept>;

/// Takes at least one byte. Large memory is aligned to huge pages and asks for them, whatever the
/// kind. Throws Error{kUnavailable}.
TensorMemory take_memory(MemoryKind kind, std::size_t bytes);

/// Memory for the largest tensor, twice if results go out of place.
class Buffers {
 public:
  explicit Buffers(const Options& options);  ///< throws as take_memory

  /// Where an op reads, and where it writes; in place, it is the same memory.
  std::span<std::byte> input(std::size_t bytes) { return {input_.get(), bytes}; }
  std::span<std::byte> output(std::size_t bytes, bool in_place) {
    return {in_place ? input_.get() : output_.get(), bytes};
  }

 private:
  TensorMemory input_;
  TensorMemory output_;
};

}  // namespace sluice::perf
