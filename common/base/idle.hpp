// What a polling loop does when a turn found no work. More polling threads than cores is normal on
// one machine, so the default gives its core away early and sleeps when nothing comes for long.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

#include "common/base/idle_strategy.hpp"

namespace sluice {

/// Tells the core that this thread only waits.
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
  // A peer that shares the core answers within a few of its own turns: yields cover that without
  // the 50 µs that any sleep costs. Alone on its core a thread yields about 0.1 ms before it
  // sleeps.
  static constexpr std::uint32_t kSpins = 16;
  static constexpr std::uint32_t kYields = 200;
  static constexpr std::chrono::microseconds kSleepMin{20};
  static constexpr std::chrono::microseconds kSleepMax{500};

  explicit Idle(IdleStrategy strategy = IdleStrategy::kBackOff, std::uint32_t yields = kYields,
                std::uint32_t spins = kSpins)
      : strategy_(strategy), yields_(yields), spins_(spins) {}

  /// How many turns without work are yielded from now on before one sleeps.
  void set_yields(std::uint32_t yields) { yields_ = yields; }

  void work_done(std::size_t n) {
    if (const auto sleep = sleep_after(n); sleep.count() != 0) std::this_thread::sleep_for(sleep);
  }

  /// As work_done, but leaves it to the caller to sleep: returns for how long, 0 for not at all.
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

  /// Starts over at the spinning end, as after work.
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
