#include "common/memory/closing.hpp"

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace sluice::memory {
namespace {

/// A peer whose file cannot be interrupted (FUSE) may block one of them each.
constexpr int kThreads = 4;
constexpr long kInterruptPeriodNs = 100'000'000;

/// Interrupts the calling thread again and again, which ends a wait for a socket's data to be sent.
class Interrupter {
 public:
  Interrupter() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGURG;
    event._sigev_un._tid = gettid();
    made_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

  void run(bool on) {
    const timespec period{0, on ? kInterruptPeriodNs : 0};
    const itimerspec setting{period, period};
    if (made_) timer_settime(timer_, 0, &setting, nullptr);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

/// Never destroyed, as its threads may wait for ever.
class Closer {
 public:
  void start() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(SIGURG, &action, nullptr);  // without SA_RESTART
    // Other signals are for the process: its threads inherit the mask of this one.
    sigset_t others, before;
    sigfillset(&others);
    sigdelset(&others, SIGURG);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    for (int i = 0; i < kThreads; ++i)
      std::thread([this] {
        pthread_setname_np(pthread_self(), "closing");
        work();
      }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void take(int descriptor) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(descriptor);
    }
    changed_.notify_one();
  }

 private:
  [[noreturn]] void work() {
    Interrupter interrupter;
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      const int descriptor = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      interrupter.run(true);
      ::close(descriptor);
      interrupter.run(false);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> waiting_;
};

std::atomic<Closer*> closer{nullptr};

}  // namespace

void close_on_own_threads() {
  static Closer* const started = [] {
    auto* const made = new Closer;
    made->start();
    return made;
  }();
  closer.store(started, std::memory_order_release);
}

void close_of_peer(int descriptor) noexcept {
  Closer* const of_daemon = closer.load(std::memory_order_acquire);
  if (of_daemon)
    of_daemon->take(descriptor);
  else
    ::close(descriptor);
}

}  // namespace sluice::memory
