#include "worker/device_side.hpp"

#include <algorithm>
#include <cassert>

namespace sluice::worker {

DeviceSide::DeviceSide(const DeviceRequest& request) : plan_(request.plan), words_(request.words) {
  assert(words_.arrived != nullptr && words_.final != nullptr && words_.chunk_blocks != 0);
  if (!plan_.is_wanted_in_one) return;
  assert(plan_.wanted_blocks() == 0 ||
         words_.result_blocks.size() >= (std::size_t{plan_.blocks} + 63) / 64);
  for (std::uint32_t b = 0; b < plan_.wanted_blocks(); b += words_.chunk_blocks)
    left_.push_back(std::min(words_.chunk_blocks, plan_.wanted_blocks() - b));
}

void DeviceSide::has_result(BlockIndex first, std::uint64_t count) {
  if (wants_zeros()) return;
  for (std::uint64_t b = first.value; b < first.value + count; ++b)
    words_.result_blocks[b / 64] |= std::uint64_t{1} << (b % 64);
}

void DeviceSide::has_ended(BlockIndex begin, BlockIndex end, std::uint32_t stride) {
  if (wants_zeros()) return;
  const std::uint64_t first = plan_.first_wanted();
  const std::uint64_t last = std::min<std::uint64_t>(first + plan_.wanted_blocks(), end.value);
  std::uint64_t b = begin.value;
  if (b < first) b += (first - b + stride - 1) / stride * stride;
  for (; b < last; b += stride) {
    std::uint32_t& left = left_[(b - first) / words_.chunk_blocks];
    assert(left != 0);
    --left;
  }
  const std::uint32_t before = final_;
  while (final_ < left_.size() && left_[final_] == 0) ++final_;
  if (final_ != before) publish(final_);
}

void DeviceSide::finish() {
  assert(std::ranges::all_of(left_, [](std::uint32_t left) { return left == 0; }));
  if (wants_zeros()) publish(1);
}

/// Unless the device was told not to wait any more.
void DeviceSide::publish(std::uint32_t chunks) {
  const std::atomic_ref word(*words_.final);
  std::uint32_t was = word.load(std::memory_order_relaxed);
  while (was < chunks && !word.compare_exchange_weak(was, chunks, std::memory_order_release)) {
  }
}

}  // namespace sluice::worker
