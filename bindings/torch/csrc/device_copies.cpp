#include "bindings/torch/csrc/device_copies.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <utility>

#include <sluice/error.hpp>
#include <sluice/memory.hpp>

namespace sluice_torch {
namespace {

#define SLUICE_KERNELS(...) __VA_ARGS__
#include "bindings/torch/csrc/device_area.inc"
#undef SLUICE_KERNELS

constexpr std::size_t kPage = 4096;
/// Of larger memory so much is rounded up to, that ops of about the same size use the same.
constexpr std::size_t kLargePage = std::size_t{2} << 20;
/// Of memory that was given back more is not taken for an op than this many times what it needs.
constexpr std::size_t kMostWaste = 2;
/// To which kernels like memory to be aligned.
constexpr std::size_t kWidest = 16;
/// Of what is written without regard to blocks.
constexpr std::uint64_t kPieceBytes = 4096;
/// In place of `final`: begin() has failed on its way.
constexpr std::uint32_t kCancelled = sluice::DeviceWords::kReleased - 1;

std::size_t rounded_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

/// The bits of 8 bytes of elements that tell them from 0. Of floats the sign does not.
std::uint64_t mask_of(sluice::ElementType type) {
  if (!sluice::is_float(type)) return ~std::uint64_t{0};
  const std::size_t bytes = sluice::element_bytes(type);
  std::uint64_t signs = 0;
  for (std::size_t i = 1; i <= 8 / bytes; ++i) signs |= std::uint64_t{1} << (i * bytes * 8 - 1);
  return ~signs;
}

template <class... T>
void launch(Device& device, Kernel kernel, Device::Stream stream, std::uint32_t warps,
            T... arguments) {
  const std::array<void*, sizeof...(T)> addresses{static_cast<void*>(&arguments)...};
  if (warps != 0) device.launch(kernel, stream, warps, addresses);
}

}  // namespace

// ---------------------------------------------------------------------------------- what is reused
DevicePool::~DevicePool() {
  for (auto& [bytes, used] : memory_) {
    device_->unpin({used.what.host, used.what.bytes});
    sluice::deallocate(used.what.host);
  }
}

DevicePool::Memory DevicePool::take_memory(std::size_t bytes) {
  const std::size_t needed = rounded_up(bytes, bytes < kLargePage ? kPage : kLargePage);
  const std::lock_guard lock(mutex_);
  for (auto found = memory_.lower_bound(needed);
       found != memory_.end() && found->first <= kMostWaste * needed; ++found) {
    if (found->second.until && !device_->is_over(found->second.until)) continue;
    const Memory memory = found->second.what;
    memory_.erase(found);
    return memory;
  }
  try {
    return make_memory(needed);
  } catch (const DeviceError&) {
    free_unused();
  } catch (const sluice::Error&) {
    free_unused();
  }
  return make_memory(needed);
}

/// With the lock held.
DevicePool::Memory DevicePool::make_memory(std::size_t bytes) {
  auto* const host = static_cast<std::byte*>(sluice::allocate(bytes, kPage));
  try {
    const Memory memory{host, device_->pin({host, bytes}), bytes};
    pinned_bytes_ += bytes;
    return memory;
  } catch (const DeviceError& error) {
    sluice::deallocate(host);
    throw DeviceError(std::string(error.what()) + "; this process has " +
                      std::to_string(pinned_bytes_) + " bytes pinned for copies already");
  }
}

/// With the lock held.
void DevicePool::free_unused() {
  std::erase_if(memory_, [&](auto& entry) {
    const Used<Memory>& used = entry.second;
    if (used.until && !device_->is_over(used.until)) return false;
    device_->unpin({used.what.host, used.what.bytes});
    sluice::deallocate(used.what.host);
    pinned_bytes_ -= used.what.bytes;
    return true;
  });
}

Device::Stream DevicePool::take_stream() {
  const std::lock_guard lock(mutex_);
  for (auto used = streams_.begin(); used != streams_.end(); ++used) {
    if (used->until && !device_->is_over(used->until)) continue;
    const Device::Stream stream = used->what;
    streams_.erase(used);
    return stream;
  }
  return device_->make_stream();
}

void DevicePool::give_back(const Memory& memory, Device::Event until) {
  if (memory.host == nullptr) return;
  const std::lock_guard lock(mutex_);
  memory_.emplace(memory.bytes, Used<Memory>{memory, std::move(until)});
}

void DevicePool::give_back(Device::Stream stream, Device::Event until) {
  const std::lock_guard lock(mutex_);
  streams_.push_back({stream, std::move(until)});
}

std::size_t DevicePool::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

// --------------------------------------------------------------------------------------- of one op
DeviceCopies::DeviceCopies(std::shared_ptr<DevicePool> pool, Device::Stream caller)
    : pool_(std::move(pool)), stream_(pool_->take_stream()) {
  Device& device = pool_->device();
  device.wait_for_event(stream_, device.record(caller));
}

DeviceCopies::~DeviceCopies() {
  if (!has_begun()) release(kCancelled);
  Device::Event until = end_;
  try {
    if (!until) until = pool_->device().record(stream_);
  } catch (const DeviceError&) {  // the device is lost, and runs nothing any more
  }
  if (input_) pool_->give_back(input_->memory, until);
  if (output_ && !in_place_) pool_->give_back(output_->memory, until);
  pool_->give_back(words_, until);
  pool_->give_back(stream_, until);
}

DeviceCopies::Side DeviceCopies::side(std::byte* device, std::size_t bytes) {
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(device) % kWidest;
  return {device, bytes, pool_->take_memory(bytes + offset), offset};
}

std::byte* DeviceCopies::input(std::byte* device, std::size_t bytes) {
  assert(!input_);
  input_ = side(device, bytes);
  return input_->memory.host + input_->offset;
}

std::byte* DeviceCopies::output(std::byte* device, std::size_t bytes) {
  assert(!output_);
  output_ = side(device, bytes);
  return output_->memory.host + output_->offset;
}

std::byte* DeviceCopies::in_place(std::byte* device, std::size_t bytes) {
  std::byte* const host = input(device, bytes);
  output_ = input_;
  in_place_ = true;
  return host;
}

std::uint32_t* DeviceCopies::mapped(const void* word) const {
  const auto offset = static_cast<const std::byte*>(word) - words_.host;
  return reinterpret_cast<std::uint32_t*>(words_.mapped + offset);
}

void DeviceCopies::signal(std::uint32_t value) {
  launch(pool_->device(), Kernel::kSignal, stream_, 1, mapped(arrived_), value);
}

/// The words lie apart, each in a line of the cache of its own: `arrived`, `final`, and the
/// bitmaps.
sluice::DeviceWords DeviceCopies::begin(const sluice::DevicePlan& plan) {
  constexpr std::size_t kLine = 64;
  const std::size_t words = (std::size_t{plan.blocks} + 63) / 64;
  const std::size_t bitmap = rounded_up(words * sizeof(std::uint64_t), kLine);
  words_ = pool_->take_memory(2 * kLine + 2 * bitmap);
  std::memset(words_.host, 0, 2 * kLine + 2 * bitmap);
  arrived_ = reinterpret_cast<std::uint32_t*>(words_.host);
  final_ = reinterpret_cast<std::uint32_t*>(words_.host + kLine);
  auto* const bits = reinterpret_cast<std::uint64_t*>(words_.host + 2 * kLine);
  const std::size_t block = plan.block_elements * sluice::element_bytes(plan.type);
  sluice::DeviceWords all{
      .chunk_blocks = static_cast<std::uint32_t>(std::max<std::size_t>(1, kChunkBytes / block)),
      .arrived = arrived_,
      .nonzero_blocks = {bits, words},
      .result_blocks = {bits + bitmap / sizeof(std::uint64_t), words},
      .final = final_};
  copy_input(plan, all);
  take_results(plan, all);
  if (then_) then_();
  end_ = pool_->device().record(stream_);
  return all;
}

void DeviceCopies::copy_input(const sluice::DevicePlan& plan, sluice::DeviceWords& words) {
  const std::uint32_t blocks = plan.held_blocks();
  const std::uint32_t first = plan.first_held();
  if (blocks == 0) return signal(1);
  const std::uint64_t size = sluice::element_bytes(plan.type);
  assert(input_ && input_->bytes == (plan.held_end - plan.held_begin) * size);
  const Area area{.device = reinterpret_cast<unsigned char*>(input_->device),
                  .host = reinterpret_cast<unsigned char*>(input_->memory.mapped + input_->offset),
                  .begin = plan.held_begin * size,
                  .end = plan.held_end * size,
                  .block = plan.block_elements * size,
                  .mask = mask_of(plan.type),
                  .bits = mapped(words.nonzero_blocks.data())};
  Device& device = pool_->device();
  const std::uint32_t first_word = first / 32;
  const std::uint32_t word_count = (first + blocks - 1) / 32 - first_word + 1;
  launch(device, Kernel::kMark, stream_, word_count, area, first_word, word_count);
  signal(1);
  for (std::uint32_t b = 0, chunk = 0; b < blocks; b += words.chunk_blocks) {
    const std::uint32_t count = std::min(words.chunk_blocks, blocks - b);
    launch(device, Kernel::kGather, stream_, count, area, first + b, count);
    signal(1 + ++chunk);
  }
}

void DeviceCopies::take_results(const sluice::DevicePlan& plan, const sluice::DeviceWords& words) {
  const std::uint64_t size = sluice::element_bytes(plan.type);
  const std::uint64_t bytes = (plan.wanted_end - plan.wanted_begin) * size;
  if (bytes == 0) return;
  assert(output_ && output_->bytes == bytes);
  Area area{.device = reinterpret_cast<unsigned char*>(output_->device),
            .host = reinterpret_cast<unsigned char*>(output_->memory.mapped + output_->offset),
            .begin = plan.wanted_begin * size,
            .end = plan.wanted_end * size,
            .block = plan.block_elements * size,
            .mask = 0,
            .bits = mapped(words.result_blocks.data())};
  std::uint32_t first = plan.first_wanted();
  std::uint32_t blocks = plan.wanted_blocks();
  std::uint32_t chunk_blocks = words.chunk_blocks;
  if (!plan.is_wanted_in_one) {
    area.begin = 0;
    area.end = bytes;
    area.block = kPieceBytes;
    area.bits = nullptr;
    first = 0;
    chunk_blocks = blocks = static_cast<std::uint32_t>((bytes + kPieceBytes - 1) / kPieceBytes);
  }
  Device& device = pool_->device();
  for (std::uint32_t b = 0, chunk = 0; b < blocks; b += chunk_blocks) {
    const std::uint32_t count = std::min(chunk_blocks, blocks - b);
    device.wait_for_word(stream_, final_, ++chunk);
    launch(device, Kernel::kScatter, stream_, count, area, first + b, count,
           static_cast<const std::uint32_t*>(mapped(final_)),
           std::uint32_t{sluice::DeviceWords::kReleased});
  }
}

void DeviceCopies::give_up() {
  release(sluice::DeviceWords::kReleased);
}

void DeviceCopies::release(std::uint32_t how) {
  if (final_ != nullptr) std::atomic_ref(*final_).store(how, std::memory_order_release);
}

void DeviceCopies::block(Device::Stream caller) const {
  if (end_) pool_->device().wait_for_event(caller, end_);
}

}  // namespace sluice_torch
