// CPU tensors in memory that the ranks of this host may share: those that a thread makes while
// it asks for that. An allocator stands before PyTorch's own, which serves all others.
#pragma once

#include <cstddef>

namespace sluice_torch {

/// Smaller ones share pages, and cost little to copy.
inline constexpr std::size_t kSharedTensorBytesMin = 4096;

/// From here on storages of CPU tensors that this thread allocates, of kSharedTensorBytesMin and
/// more, are sluice::allocate's, until `end` was called as often. What they are later resized to is
/// where it was then. With Python's lock held. Throws std::runtime_error if another library's
/// allocator has precedence.
void begin_shared_tensors();
void end_shared_tensors() noexcept;

/// Whether ranks of a group of this process may share memory: then it pays.
bool shares_memory();
void note_shared_memory();

/// Shares this thread's tensors while it lives, if that pays and some thread has begun it before.
class SharedTensors {
 public:
  SharedTensors();
  SharedTensors(const SharedTensors&) = delete;
  SharedTensors& operator=(const SharedTensors&) = delete;
  ~SharedTensors();

 private:
  bool began_ = false;
};

}  // namespace sluice_torch
