#include "common/net/interrupt_thread.hpp"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include <rte_alarm.h>

#include "common/net/stuck_peer.hpp"

namespace sluice::net {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kLaterUs = 5;
constexpr std::chrono::milliseconds kReadingPeriod{100};
constexpr std::chrono::seconds kReleasing{2};

struct Call {
  explicit Call(std::function<void()> w) : what(std::move(w)) {}

  std::mutex mutex;
  std::packaged_task<void()> what;
  bool given_up = false;
};
using SharedCall = std::shared_ptr<Call>;

bool set_alarm(const SharedCall& call, rte_eal_alarm_callback step) {
  auto argument = std::make_unique<SharedCall>(call);
  if (rte_eal_alarm_set(kLaterUs, step, argument.get()) != 0) return false;
  (void)argument.release();
  return true;
}

// Not inlined in any build: tests/races_of_dpdk.supp names it.
[[gnu::noinline]] SharedCall take(void* argument) {
  return *std::unique_ptr<SharedCall>(static_cast<SharedCall*>(argument));
}

void run(void* argument) {
  const SharedCall call = take(argument);
  const std::lock_guard lock(call->mutex);
  if (!call->given_up) call->what();
}

// An alarm that a driver has set before this is due within a microsecond, before ours. When ours is
// due, too, DPDK runs both without an interrupt in between, so no further alarm can be set between
// them.
void run_last(void* argument) {
  if (!set_alarm(take(argument), run)) return;
  const Clock::time_point due = Clock::now() + std::chrono::microseconds(2 * kLaterUs);
  while (Clock::now() < due) {
  }
}

}  // namespace

bool run_on_interrupt_thread(std::function<void()> what, Duration time_limit) {
  const auto call = std::make_shared<Call>(std::move(what));
  auto end = call->what.get_future();
  if (!set_alarm(call, run_last)) return false;
  const Clock::time_point deadline = Clock::now() + time_limit + kReleasing;
  for (Duration wait = time_limit; end.wait_for(wait) != std::future_status::ready;
       wait = kReadingPeriod) {
    end_wait(find_thread(kInterruptThread));
    if (Clock::now() < deadline) continue;
    const std::unique_lock not_begun(call->mutex, std::try_to_lock);
    if (not_begun) call->given_up = true;
    if (not_begun && end.wait_for(Duration(0)) != std::future_status::ready) return false;
  }
  end.get();
  return true;
}

}  // namespace sluice::net
