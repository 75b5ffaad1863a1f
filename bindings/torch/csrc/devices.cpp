#include "bindings/torch/csrc/devices.hpp"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/CPUAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include "bindings/torch/csrc/cuda_device.hpp"
#include "bindings/torch/csrc/errors.hpp"

namespace sluice_torch {
namespace {

/// CUDAStream::stream() of PyTorch's CUDA library, which this is not linked with, as not every
/// PyTorch has one: the driver's handle. A CUDAStream is a c10::Stream and nothing else.
using StreamHandle = Device::Stream(const c10::Stream*);
StreamHandle* stream_handle() {
  static StreamHandle* const function = [] {
    void* const library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    void* const found =
        library == nullptr ? nullptr : dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv");
    return reinterpret_cast<StreamHandle*>(found);
  }();
  return function;
}

/// PyTorch brings NVRTC along, and knows where it is.
std::vector<std::string> compilers() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&c10::GetCPUAllocator), &info) == 0) return {};
  const std::string library = info.dli_fname;
  return {library.substr(0, library.rfind('/') + 1) + "libcaffe2_nvrtc.so"};
}

/// As PyTorch tells a stream that was made without it: by its handle.
c10::Stream as_stream(at::Device device, Device::Stream stream) {
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream));
}

c10::impl::VirtualGuardImpl guard_of(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

std::shared_ptr<DevicePool> open(at::Device device) {
  try {
    if (stream_handle() == nullptr) throw DeviceError("PyTorch does not tell the driver's streams");
    return std::make_shared<DevicePool>(open_cuda(device.index(), compilers()));
  } catch (const DeviceError& error) {
    TORCH_WARN("sluice: tensors on ", device.str(), " are copied whole: ", error.what());
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<DevicePool> pool_of(at::Device device) {
  if (device.type() != at::kCUDA) return nullptr;
  static std::mutex mutex;
  static auto* const pools = new std::map<int, std::shared_ptr<DevicePool>>;  // for good
  const std::lock_guard lock(mutex);
  const auto found = pools->find(device.index());
  return found != pools->end() ? found->second : (*pools)[device.index()] = open(device);
}

Device::Stream current_stream(at::Device device) {
  const c10::Stream stream = guard_of(device).getStream(device);
  return stream_handle()(&stream);
}

void keep(const at::Tensor& tensor, Device::Stream stream) {
  guard_of(tensor.device())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), as_stream(tensor.device(), stream));
}

void with_stream(at::Device device, Device::Stream stream, const std::function<void()>& f) {
  const c10::StreamGuard guard(as_stream(device, stream));
  f();
}

void give_to_stream(at::Device device, Device::Stream stream, std::function<void()> f) {
  with_stream(device, stream, f);
}

void refuse_capture(const std::string& call, at::Device device) {
  const auto pool = pool_of(device);
  if (pool && pool->device().is_captured(current_stream(device)))
    refuse(call, "the current stream of " + device.str() +
                     " is captured into a CUDA graph, in which the other ranks cannot take part; "
                     "a call outside of the capture expected");
}

}  // namespace sluice_torch
