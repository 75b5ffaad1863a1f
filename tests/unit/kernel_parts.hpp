// What tests of SIMD kernels share: the instruction sets of this machine, and memory between pages
// that may not be touched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <hwy/targets.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/numeric/kernels.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::parts {

// ---------------------------------------------------------------- instruction sets

inline void choose_targets(std::int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// The targets whose kernels differ: what the machine has and the library was built for.
inline const std::vector<std::int64_t>& distinct_targets() {
  static const std::vector<std::int64_t> kTargets = [] {
    std::vector<std::int64_t> targets;
    std::set<std::string> names;
    choose_targets(0);
    for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
      choose_targets(rest & -rest);
      if (names.insert(numeric::simd_target()).second) targets.push_back(rest & -rest);
    }
    choose_targets(0);
    return targets;
  }();
  return kTargets;
}

class TargetScope {
 public:
  explicit TargetScope(std::int64_t target) { choose_targets(target); }
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;
  ~TargetScope() { choose_targets(0); }
};

// ---------------------------------------------------------------- memory with fences

/// `capacity` or a little more bytes between two pages that fault.
class FencedMemory {
 public:
  explicit FencedMemory(std::size_t capacity) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    size_ = (capacity + page - 1) / page * page;
    mapped_ = size_ + 2 * page;
    base_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base_ != MAP_FAILED);
    begin_ = static_cast<std::byte*>(base_) + page;
    REQUIRE(mprotect(begin_, size_, PROT_READ | PROT_WRITE) == 0);
  }
  FencedMemory(const FencedMemory&) = delete;
  FencedMemory& operator=(const FencedMemory&) = delete;
  ~FencedMemory() { munmap(base_, mapped_); }

  std::byte* begin() const { return begin_; }

  /// Room for `size` bytes: up to the upper fence, one byte below it, up from the lower fence, ...
  static constexpr int kPlacements = 4;
  std::byte* place(int placement, std::size_t size) const {
    switch (placement) {
      case 0:
        return begin_ + size_ - size;
      case 1:
        return begin_ + size_ - size - 1;
      case 2:
        return begin_;
      default:
        return begin_ + 1;
    }
  }

  void fill(std::byte value) { std::fill_n(begin_, size_, value); }
  /// True when all bytes but the `size` from `data` on have the value.
  bool holds_around(const std::byte* data, std::size_t size, std::byte value) const {
    const auto same = [value](std::byte b) { return b == value; };
    return std::all_of(static_cast<const std::byte*>(begin_), data, same) &&
           std::all_of(data + size, static_cast<const std::byte*>(begin_) + size_, same);
  }

 private:
  void* base_ = nullptr;
  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;
};

}  // namespace sluice::parts
