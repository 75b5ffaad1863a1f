// Prints the core-to-core latency: the median time, in nanoseconds, in which a cache line goes from
// one core to another and back. On shared hosts it changes within seconds, and rates change with
// it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <pthread.h>

namespace {

constexpr std::uint32_t kBatches = 64;
constexpr std::uint32_t kRoundTrips = 1000;  // per batch
constexpr std::uint32_t kAll = kBatches * kRoundTrips;

/// Odd: the other thread's turn. It is alone on its cache line, and on the one that is fetched with
/// it.
alignas(128) std::atomic<std::uint32_t> turn{0};

void pin_this_thread(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) == 0) return;
  std::fprintf(stderr, "core-distance: core %d cannot be used\n", core);
  std::exit(1);
}

void wait_for(std::uint32_t value) {
  while (turn.load(std::memory_order_acquire) != value) {
  }
}

void answer_from(int core) {
  pin_this_thread(core);
  for (std::uint32_t trip = 0; trip < kAll; ++trip) {
    wait_for(2 * trip + 1);
    turn.store(2 * trip + 2, std::memory_order_release);
  }
}

/// Nanoseconds per round trip, for each batch.
std::vector<double> ask_from(int core) {
  using Clock = std::chrono::steady_clock;
  pin_this_thread(core);
  std::vector<double> times;
  for (std::uint32_t trip = 0; trip < kAll;) {
    const auto start = Clock::now();
    for (const std::uint32_t end = trip + kRoundTrips; trip < end; ++trip) {
      turn.store(2 * trip + 1, std::memory_order_release);
      wait_for(2 * trip + 2);
    }
    const std::chrono::duration<double, std::nano> time = Clock::now() - start;
    times.push_back(time.count() / kRoundTrips);
  }
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: core-distance CORE CORE\n");
    return 2;
  }
  std::thread far(answer_from, std::atoi(argv[2]));
  std::vector<double> times = ask_from(std::atoi(argv[1]));
  far.join();
  const auto middle = times.begin() + kBatches / 2;
  std::nth_element(times.begin(), middle, times.end());
  std::printf("%.1f\n", *middle);
}
