#include "worker/engine/device_side.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "common/numeric/kernels.hpp"

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

void DeviceSide::has_ended(BlockIndex b) {
  const std::uint32_t first = plan_.first_wanted();
  if (b.value < first || b.value - first >= plan_.wanted_blocks()) return;
  std::uint32_t& left = left_[(b.value - first) / words_.chunk_blocks];
  assert(left != 0);
  --left;
}

void DeviceSide::publish_final() {
  const std::uint32_t before = final_;
  while (final_ < left_.size() && left_[final_] == 0) ++final_;
  if (final_ != before) publish(final_);
}

void DeviceSide::finish() {
  assert(std::ranges::all_of(left_, [](std::uint32_t left) { return left == 0; }));
  if (wants_zeros()) publish(1);
}

/// Does nothing if the device was told to stop waiting.
void DeviceSide::publish(std::uint32_t chunks) {
  const std::atomic_ref word(*words_.final);
  std::uint32_t was = word.load(std::memory_order_relaxed);
  while (was < chunks && !word.compare_exchange_weak(was, chunks, std::memory_order_release)) {
  }
}

// ------------------------------------------------------------- an op's tensors as a whole
bool has_arrived(const OpRequest& request) {
  if (!request.device) return true;
  const DeviceSide side(*request.device);
  const DevicePlan& plan = request.device->plan;
  const std::uint32_t blocks = plan.held_blocks();
  return side.has_bitmap() &&
         (blocks == 0 || side.has_arrived(BlockIndex{plan.first_held() + blocks - 1}));
}

namespace {

/// Calls f(first element, behind the last one) for each of so many blocks from `first` on, as far
/// as it is in [begin, end).
template <class F>
void for_each_block(const DevicePlan& plan, std::uint32_t first, std::uint32_t blocks,
                    const ElementRange& within, F&& f) {
  for (std::uint32_t block = first; block < first + blocks; ++block) {
    const std::uint64_t begin = std::uint64_t{block} * plan.block_elements;
    f(block, ElementRange{std::max(begin, within.begin),
                          std::min(begin + plan.block_elements, within.end)});
  }
}

}  // namespace

/// The device has not copied zero blocks. They are set to zero here, as they may be read together
/// with others.
void take_from_device(OpRequest& request) {
  const DevicePlan& plan = request.device->plan;
  const std::span<const std::uint64_t> nonzero = request.device->words.nonzero_blocks;
  auto* const input = const_cast<std::byte*>(request.input);  // memory of the one that copies
  const std::size_t size = element_bytes(request.type);
  for_each_block(plan, plan.first_held(), plan.held_blocks(), {plan.held_begin, plan.held_end},
                 [&](std::uint32_t block, const ElementRange& range) {
                   if ((nonzero[block / 64] >> (block % 64) & 1) == 0)
                     std::memset(input + (range.begin - plan.held_begin) * size, 0,
                                 (range.end - range.begin) * size);
                 });
  request.nonzero_blocks = nonzero;
  request.device.reset();
}

/// The device takes the blocks of the sums that are not zero, and clears the others itself.
void give_to_device(const OpRequest& request) {
  const DevicePlan& plan = request.device->plan;
  DeviceSide side(*request.device);
  const std::size_t size = element_bytes(request.type);
  for_each_block(
      plan, plan.first_wanted(), plan.wanted_blocks(), {plan.wanted_begin, plan.wanted_end},
      [&](std::uint32_t block, const ElementRange& range) {
        std::uint64_t is_nonzero = 0;
        const std::uint64_t elements = range.end - range.begin;
        numeric::mark_nonzero_blocks({request.output + (range.begin - plan.wanted_begin) * size,
                                      elements, static_cast<std::uint32_t>(elements), plan.type},
                                     0, 1, &is_nonzero);
        if (is_nonzero != 0) side.has_result(BlockIndex{block}, 1);
      });
  if (!side.wants_zeros()) {
    for (std::uint32_t b = 0; b < plan.wanted_blocks(); ++b)
      side.has_ended(BlockIndex{plan.first_wanted() + b});
    side.publish_final();
  }
  side.finish();
}

}  // namespace sluice::worker
