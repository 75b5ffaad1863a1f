#include "bindings/torch/csrc/shared_tensors.hpp"

#include <atomic>
#include <exception>

#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include <sluice/error.hpp>
#include <sluice/memory.hpp>

#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

thread_local int depth = 0;
std::atomic<bool> some_group_shares{false};
std::atomic<bool> is_installed{false};

/// As Allocator::raw_deleter promises, of all that this one gives: also what came from the former.
void release(void* memory);

class SharingAllocator final : public at::Allocator {
 public:
  SharingAllocator() : before_(c10::GetCPUAllocator()) {}

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  at::DataPtr allocate(std::size_t bytes) override {
    return allocate_here(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
#else
  at::DataPtr allocate(std::size_t bytes) const override {
    return allocate_here(bytes);
  }
#endif

  at::DeleterFnPtr raw_deleter() const override {
    return before_->raw_deleter() == nullptr ? nullptr : &release;
  }

  at::Allocator& before() const {
    return *before_;
  }

 private:
  at::DataPtr allocate_here(std::size_t bytes) const {
    if (depth == 0 || bytes < kSharedTensorBytesMin) return before_->allocate(bytes);
    try {
      void* const memory = sluice::allocate(bytes);
      return {memory, memory, &release, at::Device(at::kCPU)};
    } catch (const sluice::Error& error) {
      std::rethrow_exception(translated(error));
    }
  }

  at::Allocator* const before_;
};

/// For good: tensors keep the allocator that they were made by.
SharingAllocator& allocator() {
  static SharingAllocator* const made = new SharingAllocator;
  return *made;
}

void release(void* memory) {
  if (sluice::is_allocated(memory))
    sluice::deallocate(memory);
  else
    allocator().before().raw_deleter()(memory);
}

bool install() {
  static const bool has_precedence = [] {
    c10::SetCPUAllocator(&allocator());  // which has no lock but Python's
    return c10::GetCPUAllocator() == &allocator();
  }();
  is_installed = has_precedence;
  return has_precedence;
}

}  // namespace

void begin_shared_tensors() {
  if (!install())
    throw failure("tensors cannot be shared: another library's CPU allocator has precedence");
  ++depth;
}

void end_shared_tensors() noexcept {
  --depth;
}

bool shares_memory() {
  return some_group_shares;
}

void note_shared_memory() {
  some_group_shares = true;
}

SharedTensors::SharedTensors() {
  if (!shares_memory() || !is_installed) return;
  ++depth;
  began_ = true;
}

SharedTensors::~SharedTensors() {
  if (began_) end_shared_tensors();
}

}  // namespace sluice_torch
