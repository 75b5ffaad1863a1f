#include "worker/fork_generation.hpp"

#include <atomic>

#include <pthread.h>

namespace sluice {
namespace {

std::atomic<unsigned> generation{0};

}  // namespace

unsigned fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
  static_cast<void>(registered);  // fails for want of memory only
  return generation.load(std::memory_order_relaxed);
}

}  // namespace sluice
