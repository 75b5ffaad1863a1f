#include "bindings/torch/csrc/cuda_device.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include <dlfcn.h>

namespace sluice_torch {
namespace {

// ------------------------------------------------------------------------------- what is looked up
using Result = int;  // CUresult, nvrtcResult
using Handle = void*;
using DevicePointer = unsigned long long;

constexpr Result kSuccess = 0;
constexpr Result kNotReady = 600;

// Of cuda.h, whose numbers never change.
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CU_DEVICE_ATTRIBUTE_...
constexpr int kCanWaitForValues = 92, kCanMapHostMemory = 19;
constexpr unsigned kPortable = 1, kDeviceMap = 2;  // CU_MEMHOSTREGISTER_...
constexpr unsigned kNonBlocking = 1;               // CU_STREAM_NON_BLOCKING
constexpr unsigned kWithoutTiming = 2;             // CU_EVENT_DISABLE_TIMING
constexpr unsigned kAtLeast = 0;                   // CU_STREAM_WAIT_VALUE_GEQ
constexpr int kCaptureNone = 0;                    // CU_STREAM_CAPTURE_STATUS_NONE

class Library {
 public:
  Library(const std::string& what, const std::vector<std::string>& names) : what_(what) {
    for (const std::string& name : names)
      if (handle_ == nullptr) handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw DeviceError(what + " is not found: none of " + list(names));
  }

  template <class F>
  void find(F*& function, std::initializer_list<const char*> names) const {
    find_if_there(function, names);
    if (function == nullptr)
      throw DeviceError(what_ + " has no " + std::string(*names.begin()) +
                        "; a newer one is expected");
  }
  template <class F>
  void find_if_there(F*& function, std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (function == nullptr) function = reinterpret_cast<F*>(dlsym(handle_, name));
  }

 private:
  static std::string list(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  std::string what_;
  void* handle_ = nullptr;  // for good
};

struct Driver {
  Result (*init)(unsigned) = nullptr;
  Result (*device_get)(int*, int) = nullptr;
  Result (*device_get_attribute)(int*, int, int) = nullptr;
  Result (*context_retain)(Handle*, int) = nullptr;
  Result (*context_push)(Handle) = nullptr;
  Result (*context_pop)(Handle*) = nullptr;
  Result (*module_load)(Handle*, const void*) = nullptr;
  Result (*module_get_function)(Handle*, Handle, const char*) = nullptr;
  Result (*launch_kernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, Handle, void**, void**) = nullptr;
  Result (*launch_host_function)(Handle, void (*)(void*), void*) = nullptr;
  Result (*stream_create)(Handle*, unsigned) = nullptr;
  Result (*stream_wait_event)(Handle, Handle, unsigned) = nullptr;
  Result (*stream_wait_value)(Handle, DevicePointer, std::uint32_t, unsigned) = nullptr;
  Result (*stream_is_capturing)(Handle, int*) = nullptr;
  Result (*event_create)(Handle*, unsigned) = nullptr;
  Result (*event_record)(Handle, Handle) = nullptr;
  Result (*event_query)(Handle) = nullptr;
  Result (*event_destroy)(Handle) = nullptr;
  Result (*host_register)(void*, std::size_t, unsigned) = nullptr;
  Result (*host_unregister)(void*) = nullptr;
  Result (*host_pointer)(DevicePointer*, void*, unsigned) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*error_text)(Result, const char**) = nullptr;

  Driver() {
    const Library library("CUDA's driver", {"libcuda.so.1", "libcuda.so"});
    library.find(init, {"cuInit"});
    library.find(device_get, {"cuDeviceGet"});
    library.find(device_get_attribute, {"cuDeviceGetAttribute"});
    library.find(context_retain, {"cuDevicePrimaryCtxRetain"});
    library.find(context_push, {"cuCtxPushCurrent_v2"});
    library.find(context_pop, {"cuCtxPopCurrent_v2"});
    library.find(module_load, {"cuModuleLoadData"});
    library.find(module_get_function, {"cuModuleGetFunction"});
    library.find(launch_kernel, {"cuLaunchKernel"});
    library.find_if_there(launch_host_function, {"cuLaunchHostFunc"});
    library.find(stream_create, {"cuStreamCreate"});
    library.find(stream_wait_event, {"cuStreamWaitEvent"});
    library.find_if_there(stream_wait_value, {"cuStreamWaitValue32_v2"});
    library.find(stream_is_capturing, {"cuStreamIsCapturing"});
    library.find(event_create, {"cuEventCreate"});
    library.find(event_record, {"cuEventRecord"});
    library.find(event_query, {"cuEventQuery"});
    library.find(event_destroy, {"cuEventDestroy_v2"});
    library.find(host_register, {"cuMemHostRegister_v2"});
    library.find(host_unregister, {"cuMemHostUnregister"});
    library.find(host_pointer, {"cuMemHostGetDevicePointer_v2"});
    library.find(error_name, {"cuGetErrorName"});
    library.find(error_text, {"cuGetErrorString"});
  }

  void check(Result result, const std::string& call) const {
    if (result == kSuccess) return;
    const char *name = nullptr, *text = nullptr;
    error_name(result, &name);
    error_text(result, &text);
    throw DeviceError("CUDA refuses " + call + ": " + (text == nullptr ? "unknown" : text) + " (" +
                      (name == nullptr ? "error " + std::to_string(result) : name) + ")");
  }
};

// ------------------------------------------------------------------------------------- the kernels
#define SLUICE_KERNELS(...) #__VA_ARGS__
constexpr const char* kKernelText =
#include "bindings/torch/csrc/device_area.inc"
#include "bindings/torch/csrc/device_kernels.inc"
    ;
#undef SLUICE_KERNELS

constexpr unsigned kLanes = 32;
constexpr unsigned kWarpsOfBlock = 4;

constexpr const char* kPrelude = R"(
#define SLUICE_KERNEL extern "C" __global__ void
#define SLUICE_INLINE __device__ inline
#define SLUICE_LANES 32u
#define SLUICE_LANE (threadIdx.x % 32u)
#define SLUICE_WARP (blockIdx.x * (blockDim.x / 32u) + threadIdx.x / 32u)
#define SLUICE_ANY(x) (__any_sync(0xffffffffu, x) != 0)
#define SLUICE_LOAD(word) (*(const volatile unsigned*)(word))
#define SLUICE_STORE(word, value) (__threadfence_system(), *(volatile unsigned*)(word) = (value))
)";

struct Compiler {
  Result (*create)(Handle*, const char*, const char*, int, const char* const*,
                   const char* const*) = nullptr;
  Result (*destroy)(Handle*) = nullptr;
  Result (*compile)(Handle, int, const char* const*) = nullptr;
  Result (*ptx_size)(Handle, std::size_t*) = nullptr;
  Result (*ptx)(Handle, char*) = nullptr;
  Result (*log_size)(Handle, std::size_t*) = nullptr;
  Result (*log)(Handle, char*) = nullptr;

  explicit Compiler(std::vector<std::string> names) {
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"})
      names.emplace_back(name);
    const Library library("CUDA's compiler at run time, NVRTC,", names);
    library.find(create, {"nvrtcCreateProgram"});
    library.find(destroy, {"nvrtcDestroyProgram"});
    library.find(compile, {"nvrtcCompileProgram"});
    library.find(ptx_size, {"nvrtcGetPTXSize"});
    library.find(ptx, {"nvrtcGetPTX"});
    library.find(log_size, {"nvrtcGetProgramLogSize"});
    library.find(log, {"nvrtcGetProgramLog"});
  }
};

}  // namespace

std::string compile_kernels(int capability, const std::vector<std::string>& libraries) {
  const Compiler compiler(libraries);
  const std::string text = std::string(kPrelude) + kKernelText;
  Handle program = nullptr;
  if (compiler.create(&program, text.c_str(), "sluice.cu", 0, nullptr, nullptr) != kSuccess)
    throw DeviceError("NVRTC takes no program");
  const std::string target = "--gpu-architecture=compute_" + std::to_string(capability);
  const std::array<const char*, 2> options{target.c_str(), "--std=c++14"};
  const Result result = compiler.compile(program, options.size(), options.data());
  std::string ptx;
  std::size_t size = 0;
  if (result != kSuccess) {
    std::string log;
    if (compiler.log_size(program, &size) == kSuccess && size > 1) {
      log.resize(size);
      compiler.log(program, log.data());
    }
    compiler.destroy(&program);
    throw DeviceError("NVRTC does not compile the kernels for " + target + ": " + log.c_str());
  }
  if (compiler.ptx_size(program, &size) == kSuccess) {
    ptx.resize(size);
    compiler.ptx(program, ptx.data());
  }
  compiler.destroy(&program);
  if (ptx.empty()) throw DeviceError("NVRTC has made nothing of the kernels for " + target);
  return ptx;
}

// -------------------------------------------------------------------------------------- the device
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, const std::vector<std::string>& libraries) {
    driver_.check(driver_.init(0), "cuInit");
    int device = 0;
    driver_.check(driver_.device_get(&device, index), "cuDeviceGet " + std::to_string(index));
    const auto attribute = [&](int which) {
      int value = 0;
      driver_.check(driver_.device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
      return value;
    };
    if (attribute(kCanMapHostMemory) == 0)
      throw DeviceError("GPU " + std::to_string(index) + " cannot map host memory");
    waits_for_values_ = driver_.stream_wait_value != nullptr && attribute(kCanWaitForValues) != 0;
    if (!waits_for_values_ && driver_.launch_host_function == nullptr)
      throw DeviceError("CUDA's driver has neither cuStreamWaitValue32 nor cuLaunchHostFunc");
    driver_.check(driver_.context_retain(&context_, device), "cuDevicePrimaryCtxRetain");
    const std::string ptx =
        compile_kernels(10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor), libraries);
    const Current current(*this);
    Handle module = nullptr;
    driver_.check(driver_.module_load(&module, ptx.c_str()), "cuModuleLoadData");
    for (std::size_t i = 0; i < kernels_.size(); ++i)
      driver_.check(driver_.module_get_function(&kernels_[i], module, kKernelNames[i]),
                    "cuModuleGetFunction " + std::string(kKernelNames[i]));
  }

  std::byte* pin(std::span<std::byte> memory) override {
    const Current current(*this);
    driver_.check(driver_.host_register(memory.data(), memory.size(), kPortable | kDeviceMap),
                  "to pin " + std::to_string(memory.size()) + " bytes of host memory");
    DevicePointer mapped = 0;
    driver_.check(driver_.host_pointer(&mapped, memory.data(), 0), "cuMemHostGetDevicePointer");
    return reinterpret_cast<std::byte*>(mapped);
  }

  void unpin(std::span<std::byte> memory) noexcept override {
    try {
      const Current current(*this);
      driver_.host_unregister(memory.data());
    } catch (const DeviceError&) {  // the context is gone, and has let go of it
    }
  }

  Stream make_stream() override {
    const Current current(*this);
    Handle stream = nullptr;
    driver_.check(driver_.stream_create(&stream, kNonBlocking), "cuStreamCreate");
    return stream;
  }

  void launch(Kernel kernel, Stream stream, std::uint32_t warps,
              std::span<void* const> arguments) override {
    const Current current(*this);
    const unsigned blocks = (warps + kWarpsOfBlock - 1) / kWarpsOfBlock;
    const auto which = static_cast<std::size_t>(kernel);
    driver_.check(driver_.launch_kernel(kernels_[which], blocks, 1, 1, kWarpsOfBlock * kLanes, 1, 1,
                                        0, stream, const_cast<void**>(arguments.data()), nullptr),
                  "cuLaunchKernel of " + std::string(kKernelNames[which]));
  }

  void wait_for_word(Stream stream, const std::uint32_t* word, std::uint32_t least) override {
    const Current current(*this);
    if (waits_for_values_) {
      DevicePointer mapped = 0;
      driver_.check(driver_.host_pointer(&mapped, const_cast<std::uint32_t*>(word), 0),
                    "cuMemHostGetDevicePointer");
      driver_.check(driver_.stream_wait_value(stream, mapped, least, kAtLeast),
                    "cuStreamWaitValue32");
      return;
    }
    auto awaited = std::make_unique<Awaited>(Awaited{word, least});
    driver_.check(driver_.launch_host_function(stream, &Awaited::wait, awaited.get()),
                  "cuLaunchHostFunc");
    static_cast<void>(awaited.release());
  }

  Event record(Stream stream) override {
    const Current current(*this);
    Handle event = nullptr;
    driver_.check(driver_.event_create(&event, kWithoutTiming), "cuEventCreate");
    Event kept(event, [this](void* over) { destroy(over); });
    driver_.check(driver_.event_record(event, stream), "cuEventRecord");
    return kept;
  }

  void wait_for_event(Stream stream, const Event& event) override {
    const Current current(*this);
    driver_.check(driver_.stream_wait_event(stream, event.get(), 0), "cuStreamWaitEvent");
  }

  bool is_over(const Event& event) override {
    const Current current(*this);
    const Result result = driver_.event_query(event.get());
    if (result == kNotReady) return false;
    driver_.check(result, "cuEventQuery");
    return true;
  }

  bool is_captured(Stream stream) override {
    const Current current(*this);
    int status = kCaptureNone;
    return driver_.stream_is_capturing(stream, &status) == kSuccess && status != kCaptureNone;
  }

 private:
  /// Makes the GPU's primary context, which PyTorch uses, the thread's current one.
  class Current {
   public:
    explicit Current(CudaDevice& device) : driver_(device.driver_) {
      driver_.check(driver_.context_push(device.context_), "cuCtxPushCurrent");
    }
    ~Current() {
      Handle before = nullptr;
      driver_.context_pop(&before);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
  };

  /// Where streams cannot wait for a word themselves, a thread of the driver does.
  struct Awaited {
    const std::uint32_t* word;
    std::uint32_t least;

    static void wait(void* what) {
      const std::unique_ptr<Awaited> self(static_cast<Awaited*>(what));
      const std::atomic_ref word(const_cast<std::uint32_t&>(*self->word));
      while (word.load(std::memory_order_acquire) < self->least)
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  };

  void destroy(void* event) noexcept {
    try {
      const Current current(*this);
      driver_.event_destroy(event);
    } catch (const DeviceError&) {  // with its context
    }
  }

  const Driver driver_;
  Handle context_ = nullptr;  // retained for good: PyTorch does so, too
  bool waits_for_values_ = false;
  std::array<Handle, std::size(kKernelNames)> kernels_{};
};

}  // namespace

std::shared_ptr<Device> open_cuda(int index, const std::vector<std::string>& libraries) {
  return std::make_shared<CudaDevice>(index, libraries);
}

}  // namespace sluice_torch
