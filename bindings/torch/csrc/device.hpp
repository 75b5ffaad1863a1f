// A device as copies between its memory and the host's need it. CUDA's is in cuda_device.cpp; tests
// have one that runs the same kernels on threads of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

namespace sluice_torch {

/// What the device, or its driver, has refused: which call, of what, and why.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kernel { kMark, kGather, kScatter, kSignal };
inline constexpr const char* kKernelNames[] = {"sluice_mark", "sluice_gather", "sluice_scatter",
                                               "sluice_signal"};

class Device {
 public:
  using Stream = void*;                 ///< the driver's handle; null: the default stream
  using Event = std::shared_ptr<void>;  ///< what a stream was given until it was recorded

  virtual ~Device() = default;

  /// Locks memory, whole pages, and maps it. Returns its address for kernels.
  virtual std::byte* pin(std::span<std::byte> memory) = 0;
  virtual void unpin(std::span<std::byte> memory) noexcept = 0;

  virtual Stream make_stream() = 0;
  /// `arguments`: their addresses, as the kernel has them. Returns at once, as all that follow do.
  virtual void launch(Kernel kernel, Stream stream, std::uint32_t warps,
                      std::span<void* const> arguments) = 0;
  /// The stream stands until the word, in pinned memory, is at least so much.
  virtual void wait_for_word(Stream stream, const std::uint32_t* word, std::uint32_t least) = 0;
  virtual Event record(Stream stream) = 0;
  virtual void wait_for_event(Stream stream, const Event& event) = 0;
  virtual bool is_over(const Event& event) = 0;
  /// The stream's work is recorded into a graph.
  virtual bool is_captured(Stream stream) = 0;
};

}  // namespace sluice_torch
