// What a polling loop does when a turn found no work. On one machine there are often more polling
// threads than cores, so by default a loop yields its core early, and sleeps if nothing comes for a
// long time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

#include "common/base/idle_strategy.hpp"

namespace sluice {

/// Tells the core that this thread is only waiting.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// One per polling thread: call `work_done` once per turn with the number of things the turn did.
class Idle {
 public:
  // A peer that shares the core answers within a few of its own turns. Yields are enough for that,
  // without the 50 µs that any sleep costs. A thread alone on its core yields for about 0.1 ms
  // before it sleeps.
  static constexpr std::uint32_t kSpins = 16;
  static constexpr std::uint32_t kYields = 200;
  static constexpr std::chrono::microseconds kSleepMin{20};
  static constexpr std::chrono::microseconds kSleepMax{500};

  explicit Idle(IdleStrategy strategy = IdleStrategy::kBackOff, std::uint32_t yields = kYields,
                std::uint32_t spins = kSpins)
      : strategy_(strategy), yields_(yields), spins_(spins) {}

  /// Sets after how many turns without work the loop sleeps instead of yielding.
  void set_yields(std::uint32_t yields) { yields_ = yields; }

  void work_done(std::size_t n) {
    if (const auto sleep = sleep_after(n); sleep.count() != 0) std::this_thread::sleep_for(sleep);
  }

  /// As work_done, but the caller sleeps: returns how long, 0 for not at all.
  std::chrono::microseconds sleep_after(std::size_t n) {
    if (n != 0) {
      reset();
    } else if (strategy_ == IdleStrategy::kBusySpin) {
      cpu_relax();
    } else if (strategy_ == IdleStrategy::kYield) {
      std::this_thread::yield();
    } else {
      return back_off();
    }
    return {};
  }

  /// Starts again with spinning, as after work.
  void reset() {
    idle_turns_ = 0;
    sleep_ = kSleepMin;
  }

 private:
  std::chrono::microseconds back_off() {
    if (idle_turns_ >= spins_ + yields_)
      return std::exchange(sleep_, std::min(sleep_ * 2, kSleepMax));
    if (idle_turns_++ < spins_)
      cpu_relax();
    else
      std::this_thread::yield();
    return {};
  }

  IdleStrategy strategy_;
  std::uint32_t yields_;
  std::uint32_t spins_;
  std::uint32_t idle_turns_ = 0;
  std::chrono::microseconds sleep_ = kSleepMin;
};

}  // namespace sluice
