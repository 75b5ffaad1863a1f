// A device for tests: its memory is the host's, its kernels are the GPU's, compiled as C++, and
// each stream is a thread, which takes its time. Its default stream is whichever thread uses it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/torch/csrc/device.hpp"

namespace sluice_torch::fake {

inline thread_local unsigned warp = 0;

// NOLINTBEGIN: the kernels' language has no C++ casts by name, and no std::
#define SLUICE_KERNELS(...) __VA_ARGS__
#define SLUICE_KERNEL inline void
#define SLUICE_INLINE inline
#define SLUICE_LANES 1u
#define SLUICE_LANE 0u
#define SLUICE_WARP ::sluice_torch::fake::warp
#define SLUICE_ANY(x) (x)
#define SLUICE_LOAD(word) \
  std::atomic_ref(const_cast<unsigned&>(*(word))).load(std::memory_order_acquire)
#define SLUICE_STORE(word, value) std::atomic_ref(*(word)).store(value, std::memory_order_release)
#include "bindings/torch/csrc/device_area.inc"
#include "bindings/torch/csrc/device_kernels.inc"
#undef SLUICE_KERNELS
#undef SLUICE_KERNEL
#undef SLUICE_INLINE
#undef SLUICE_LANES
#undef SLUICE_LANE
#undef SLUICE_WARP
#undef SLUICE_ANY
#undef SLUICE_LOAD
#undef SLUICE_STORE
// NOLINTEND

class FakeDevice final : public Device {
 public:
  ~FakeDevice() override { end(); }

  /// Its threads do what they were given, and end. Nothing may be given to its streams after that.
  void end() {
    for (auto& stream : streams_) stream->end();
    streams_.clear();
  }

  /// More than so many bytes cannot be pinned.
  std::size_t pinned_most = std::numeric_limits<std::size_t>::max();
  /// What a stream's thread does before each thing that it was given.
  std::function<void()> delay = [] { std::this_thread::yield(); };
  std::atomic<bool> captures{false};
  std::atomic<std::size_t> launches{0};

  std::size_t pinned() const { return pinned_; }
  std::size_t streams() const { return streams_.size(); }

  std::byte* pin(std::span<std::byte> memory) override {
    if (pinned_ + memory.size() > pinned_most)
      throw DeviceError("the fake device refuses to pin " + std::to_string(memory.size()) +
                        " bytes of host memory");
    pinned_ += memory.size();
    return memory.data();
  }
  void unpin(std::span<std::byte> memory) noexcept override { pinned_ -= memory.size(); }

  Stream make_stream() override {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<Queue>(*this));
    return streams_.back().get();
  }

  void launch(Kernel kernel, Stream stream, std::uint32_t warps,
              std::span<void* const> arguments) override {
    ++launches;
    give(stream, [kernel, warps, arguments = copy_of(kernel, arguments)] {
      for (warp = 0; warp < warps; ++warp) run(kernel, arguments);
    });
  }

  void wait_for_word(Stream stream, const std::uint32_t* word, std::uint32_t least) override {
    give(stream, [word, least] {
      const std::atomic_ref value(const_cast<std::uint32_t&>(*word));
      while (value.load(std::memory_order_acquire) < least) std::this_thread::yield();
    });
  }

  Event record(Stream stream) override {
    auto event = std::make_shared<std::atomic<bool>>(stream == nullptr);
    if (stream != nullptr)
      give(stream, [event] {
        event->store(true, std::memory_order_release);
        event->notify_all();
      });
    return event;
  }
  void wait_for_event(Stream stream, const Event& event) override {
    const auto wait = [over = std::static_pointer_cast<std::atomic<bool>>(event)] {
      over->wait(false, std::memory_order_acquire);
    };
    if (stream == nullptr)
      wait();
    else
      give(stream, wait);
  }
  bool is_over(const Event& event) override {
    return std::static_pointer_cast<std::atomic<bool>>(event)->load(std::memory_order_acquire);
  }
  bool is_captured(Stream) override { return captures; }

  static void give(Stream stream, std::function<void()> what) {
    static_cast<Queue*>(stream)->give(std::move(what));
  }
  /// Until the stream has done what it was given.
  void drain(Stream stream) { wait_for_event(nullptr, record(stream)); }

 private:
  using Arguments = std::vector<std::vector<std::byte>>;

  class Queue {
   public:
    explicit Queue(FakeDevice& device) : device_(device), thread_([this] { run(); }) {}

    void give(std::function<void()> what) {
      const std::lock_guard lock(mutex_);
      given_.push_back(std::move(what));
      changed_.notify_one();
    }
    /// After all that it was given.
    void end() {
      give({});
      thread_.join();
    }

   private:
    void run() {
      for (;;) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !given_.empty(); });
        const auto what = std::move(given_.front());
        given_.pop_front();
        lock.unlock();
        if (!what) return;
        device_.delay();
        what();
      }
    }

    FakeDevice& device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> given_;
    std::thread thread_;
  };

  /// As the driver copies them when a kernel is launched.
  static Arguments copy_of(Kernel kernel, std::span<void* const> arguments) {
    static const std::vector<std::vector<std::size_t>> sizes{
        {sizeof(Area), 4, 4}, {sizeof(Area), 4, 4}, {sizeof(Area), 4, 4, 8, 4}, {8, 4}};
    Arguments copies;
    for (const std::size_t size : sizes[static_cast<std::size_t>(kernel)]) {
      const auto* const bytes = static_cast<const std::byte*>(arguments[copies.size()]);
      copies.emplace_back(bytes, bytes + size);
    }
    return copies;
  }
  template <class T>
  static T argument(const Arguments& arguments, std::size_t i) {
    T value;
    std::memcpy(&value, arguments[i].data(), sizeof value);
    return value;
  }
  static void run(Kernel kernel, const Arguments& all) {
    const auto number = [&](std::size_t i) { return argument<unsigned>(all, i); };
    switch (kernel) {
      case Kernel::kMark:
        return sluice_mark(argument<Area>(all, 0), number(1), number(2));
      case Kernel::kGather:
        return sluice_gather(argument<Area>(all, 0), number(1), number(2));
      case Kernel::kScatter:
        return sluice_scatter(argument<Area>(all, 0), number(1), number(2),
                              argument<const unsigned*>(all, 3), number(4));
      case Kernel::kSignal:
        return sluice_signal(argument<unsigned*>(all, 0), number(1));
    }
  }

  std::atomic<std::size_t> pinned_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Queue>> streams_;
};

}  // namespace sluice_torch::fake
