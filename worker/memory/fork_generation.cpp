#include "worker/memory/fork_generation.hpp"

#include <atomic>
#include <mutex>
#include <set>

#include <pthread.h>
#include <unistd.h>

namespace sluice {
namespace {

std::atomic<unsigned> generation{0};

/// Never destroyed, as threads may fork while the process ends.
struct Descriptors {
  std::mutex mutex;  // held during a fork
  std::set<int> closed_in_children;

  static Descriptors& all() {
    static auto* const all = new Descriptors;
    return *all;
  }
};

void begin_child() {
  ++generation;
  Descriptors& all = Descriptors::all();
  for (const int descriptor : all.closed_in_children) close(descriptor);
  all.closed_in_children.clear();
  all.mutex.unlock();
}

}  // namespace

unsigned fork_generation() {
  static const int registered =
      pthread_atfork([] { Descriptors::all().mutex.lock(); },
                     [] { Descriptors::all().mutex.unlock(); }, begin_child);
  static_cast<void>(registered);  // it fails only if there is no memory
  return generation.load(std::memory_order_relaxed);
}

ClosedInChildren::ClosedInChildren(int descriptor) : descriptor_(descriptor) {
  fork_generation();
  const std::lock_guard lock(Descriptors::all().mutex);
  Descriptors::all().closed_in_children.insert(descriptor_);
}

ClosedInChildren::~ClosedInChildren() {
  const std::lock_guard lock(Descriptors::all().mutex);
  Descriptors::all().closed_in_children.erase(descriptor_);
}

}  // namespace sluice
