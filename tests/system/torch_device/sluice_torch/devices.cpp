// PyTorch's CPU as a device: its tensors pass through pinned memory as those of CUDA do, with the
// same kernels, on streams that are threads and take time. The caller's stream is its thread.
#include "bindings/torch/csrc/devices.hpp"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "bindings/torch/csrc/errors.hpp"
#include "tests/unit/fake_device.hpp"

namespace sluice_torch {
namespace {

/// A number from the environment; 0 if it is not set.
std::size_t setting(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::stoul(text);
}

fake::FakeDevice& device() {
  static auto* const device = [] {
    // Never destroyed.
    auto* const made = new std::shared_ptr(std::make_shared<fake::FakeDevice>());
    if (const std::size_t most = setting("FAKE_PINNED_MOST")) (*made)->pinned_most = most;
    if (const std::size_t us = setting("FAKE_DELAY_US"))
      (*made)->delay = [us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); };
    return made;
  }();
  return **device;
}

}  // namespace

std::shared_ptr<DevicePool> pool_of(at::Device place) {
  if (!place.is_cpu()) return nullptr;
  static auto* const pool =
      new auto(std::make_shared<DevicePool>(std::shared_ptr<Device>(&device(), [](Device*) {})));
  return *pool;
}

Device::Stream current_stream(at::Device) {
  return nullptr;
}

void keep(const at::Tensor&, Device::Stream) {}  // the work on the stream holds them

/// Futures that are completed so are complete for this thread, which is all callers' stream.
void with_stream(at::Device, Device::Stream stream, const std::function<void()>& f) {
  device().drain(stream);
  f();
}

void give_to_stream(at::Device, Device::Stream stream, std::function<void()> f) {
  device().give(stream, std::move(f));
}

void refuse_capture(const std::string& call, at::Device) {
  if (std::getenv("FAKE_CAPTURE") != nullptr) refuse(call, "captured");
}

}  // namespace sluice_torch
