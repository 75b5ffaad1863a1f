// How one op's tensors pass between a device and host memory: see sluice/device.hpp.
//
// All that the device is to do is given to a stream of the op's own when the op begins, and no
// thread of the host waits for it: kernels mark and copy the blocks that are not zero, and tell by
// a word how far they are; then the stream stands until another word tells that a chunk of the
// result is final, and a kernel takes it. Whoever wants the result lets his own stream wait for
// this one's end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <sluice/device.hpp>

#include "bindings/torch/csrc/device.hpp"

namespace sluice_torch {

/// What ops of one device use one after the other: memory of the host, pinned once, in which the
/// machine's daemons read it too, and streams.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  explicit DevicePool(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~DevicePool();

  Device& device() { return *device_; }

  struct Memory {
    std::byte* host = nullptr;
    std::byte* mapped = nullptr;  ///< as the device sees it
    std::size_t bytes = 0;
  };
  /// Both throw DeviceError.
  Memory take_memory(std::size_t bytes);
  Device::Stream take_stream();
  /// The device uses them until then; null: it does not.
  void give_back(const Memory& memory, Device::Event until);
  void give_back(Device::Stream stream, Device::Event until);

  std::size_t pinned_bytes() const;

 private:
  template <class T>
  struct Used {
    T what;
    Device::Event until;
  };
  Memory make_memory(std::size_t bytes);
  void free_unused();

  const std::shared_ptr<Device> device_;
  mutable std::mutex mutex_;
  std::multimap<std::size_t, Used<Memory>> memory_;  // by size
  std::vector<Used<Device::Stream>> streams_;
  std::size_t pinned_bytes_ = 0;
};

class DeviceCopies final : public sluice::DeviceTensors {
 public:
  /// Goes on after what `caller` was given so far.
  DeviceCopies(std::shared_ptr<DevicePool> pool, Device::Stream caller);
  ~DeviceCopies() override;

  // The memory on the device, which must stay until this is gone; returns that of the host, with
  // elements at the same places. At most one of each; in place: both are one.
  std::byte* input(std::byte* device, std::size_t bytes);
  std::byte* output(std::byte* device, std::size_t bytes);
  std::byte* in_place(std::byte* device, std::size_t bytes);

  /// Gives the stream what is to be done with the results, once they are on the device.
  void then(std::function<void()> give) { then_ = std::move(give); }

  sluice::DeviceWords begin(const sluice::DevicePlan& plan) override;
  bool has_begun() const { return end_ != nullptr; }

  /// The op has failed: nobody waits for results any more.
  void give_up();

  Device::Stream stream() const { return stream_; }
  /// `caller` goes on after the end of all that this has given to its stream.
  void block(Device::Stream caller) const;

  /// Of a chunk: so much that a kernel's start costs little, so little that the first ones are sent
  /// while the last ones are copied.
  static constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

 private:
  struct Side {
    std::byte* device = nullptr;
    std::size_t bytes = 0;
    DevicePool::Memory memory = {};
    std::size_t offset = 0;  ///< in the memory: aligned as on the device
  };
  Side side(std::byte* device, std::size_t bytes);
  void copy_input(const sluice::DevicePlan& plan, sluice::DeviceWords& words);
  void take_results(const sluice::DevicePlan& plan, const sluice::DeviceWords& words);
  void signal(std::uint32_t value);
  void release(std::uint32_t how);
  std::uint32_t* mapped(const void* word) const;

  const std::shared_ptr<DevicePool> pool_;
  Device::Stream stream_;
  std::optional<Side> input_;
  std::optional<Side> output_;
  bool in_place_ = false;
  DevicePool::Memory words_ = {};
  std::uint32_t* arrived_ = nullptr;
  std::uint32_t* final_ = nullptr;
  std::function<void()> then_;
  Device::Event end_;
};

}  // namespace sluice_torch
