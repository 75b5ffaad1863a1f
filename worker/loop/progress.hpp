// The progress loop, which polls a context's ports and memberships. One thread at a time runs it.
//
// DPDK and the engines are only used by a thread that holds the loop's lock. Normally that is the
// progress thread, which polls for ever. A thread that calls wait() drives the loop itself until
// its op is done, so that a small op costs no switch of threads. Meanwhile the progress thread
// takes a turn only now and then, so that keep-alives are sent whatever the caller's thread does. A
// thread that waits in a CompletionQueue drives the loop, too, if no other thread does. A thread
// that starts an op takes the lock for a moment and sends the first packets itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sluice/sluice.hpp>

#include "common/base/idle.hpp"
#include "common/base/time.hpp"
#include "common/log/logger.hpp"
#include "worker/job/membership.hpp"
#include "worker/job/process_figures.hpp"
#include "worker/loop/attachment.hpp"
#include "worker/loop/timeline.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {

/// What the progress loop serves: one membership in a job. The caller of each function holds the
/// loop's lock.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  virtual Membership& membership() = 0;
  /// Called after its turn: takes what is complete, and starts what is due. Returns false if there
  /// was nothing.
  virtual bool after_turn(Time now) = 0;
  /// The ranks for which one of its ops waits, ascending, as far as is known.
  virtual std::vector<std::uint16_t> stragglers(OpNumber op) const = 0;
  // Which share of an op that is not done is done, 0..1.
  virtual double progress(OpNumber op) const = 0;
  virtual void set_timeout(OpNumber op, const worker::OpTimeout& timeout) = 0;
  /// Nothing for a part of another membership.
  virtual std::optional<JobFigures> figures() const { return std::nullopt; }
};

class Progress {
  /// The longest sleep where ports signal frames: timers and links are looked at in between.
  static constexpr std::chrono::milliseconds kEventWait{1};
  /// The longest sleep while an op waits for its tensor to come from a device, which gives no
  /// signal.
  static constexpr std::chrono::microseconds kDeviceWait{50};

 public:
  explicit Progress(const ContextOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Runs f(attachment, now) with the loop's lock held, then sends what it queued. Throws
  /// kUnavailable in a forked child.
  template <class F>
  auto with_lock(F&& f) {
    refuse_if_inherited();
    claims_.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    claims_.fetch_sub(1, std::memory_order_relaxed);
    const Flush flush{*attachment_};
    return f(*attachment_, now());
  }

  /// Drives the loop until `done()` or `deadline`; returns done(). Throws kUnavailable in a forked
  /// child.
  template <class Done>
  bool drive(Done&& done, Time deadline) {
    refuse_if_inherited();
    const Waiting waiting(waiters_);
    return take_turns(std::forward<Done>(done), deadline);
  }

  /// Drives the loop only while no other thread does: two threads that alternate gain nothing.
  /// Returns as soon as another one drives.
  template <class Done>
  void drive_alone(Done&& done, Time deadline) {
    refuse_if_inherited();
    int nobody = 0;
    if (!waiters_.compare_exchange_strong(nobody, 1)) return;
    const Waiting waiting(waiters_, std::adopt_lock);
    take_turns([&] { return done() || waiters_.load(std::memory_order_relaxed) > 1; }, deadline);
  }
  bool is_driven() const { return waiters_.load(std::memory_order_relaxed) != 0; }

  /// Adds and removes what the loop serves. The caller holds the lock. A job id can have one
  /// client: otherwise this throws kInvalidArgument, naming `whose`.
  void add(LoopClient& client, const std::string& whose);
  void remove(LoopClient& client);

  /// Whether this process was forked from the one that made this object. Only the latter may use
  /// it.
  bool inherited() const { return generation_ != fork_generation(); }
  void refuse_if_inherited() const;  ///< Throws kUnavailable there.

  /// See Context.
  void start_timeline(const std::string& file);
  void stop_timeline();
  Timeline& timeline() { return *timeline_; }  ///< the caller holds the lock
  /// A job is joined as this rank, which may open the timeline's file. The caller holds the lock.
  void joins_as(std::uint16_t rank, Time now);
  ProcessFigures figures();

  static Time now();
  std::size_t aggregators() const { return attachment_->aggregators(); }
  const ContextOptions& options() const { return options_; }
  const std::shared_ptr<spdlog::logger>& logger() const { return logger_; }

  /// Reserves the packet buffers that a job needs and returns their number. For each stream these
  /// are `history` results, one packet that arrives and one that is sent; and as many again before
  /// encryption if the job `may_encrypt`. The caller holds the lock. Throws kUnavailable, naming
  /// `whose`, if there are too few.
  std::size_t reserve_buffers(const std::string& whose, std::size_t streams, std::size_t history,
                              bool may_encrypt);
  void release_buffers(std::size_t count) {
    assert(count <= reserved_buffers_);
    reserved_buffers_ -= count;
  }

 private:
  struct Flush {
    Attachment& attachment;
    ~Flush() { attachment.flush(); }
  };
  struct Waiting {
    explicit Waiting(std::atomic<int>& count) : count_(count) { ++count_; }
    Waiting(std::atomic<int>& count, std::adopt_lock_t) : count_(count) {}  // it is counted already
    ~Waiting() { --count_; }
    std::atomic<int>& count_;
  };

  template <class Done>
  bool take_turns(Done&& done, Time deadline) {
    Idle idle = waiting_idle();
    while (!done()) {
      std::size_t work = 0;
      const bool claimed = claims_.load(std::memory_order_relaxed) != 0;  // others get the lock
      if (std::unique_lock lock(mutex_, std::defer_lock); !claimed && lock.try_lock())
        work = turn();
      if (deadline != kNever && now() >= deadline) return done();
      idle.set_yields(yields());
      rest(idle.sleep_after(work), 1, done);
    }
    return true;
  }

  Idle waiting_idle() const;
  std::uint32_t yields() const;
  std::size_t turn();
  std::size_t receive(Time& now);
  void receive_groups(Time now);
  void notify_begun();
  void run();
  void sleep_while_others_drive();

  bool prepare_to_sleep(int drivers, net::RxEvents& events);

  /// Sleeps so long; if the ports signal frames, until there are some. `drivers` is 1 for a thread
  /// that drives the loop, and 0 for the progress thread.
  template <class Done>
  void rest(std::chrono::microseconds sleep, int drivers, Done&& done) {
    if (sleep.count() == 0) return;
    if (awaits_device_.load(std::memory_order_relaxed))
      return std::this_thread::sleep_for(std::min(sleep, kDeviceWait));
    net::RxEvents events;
    if (!prepare_to_sleep(drivers, events) || done()) return;
    if (events.empty())
      std::this_thread::sleep_for(sleep);
    else
      events.wait(kEventWait);
  }

  const unsigned generation_ = fork_generation();
  const ContextOptions options_;
  const IdleStrategy idle_;
  const std::shared_ptr<spdlog::logger> logger_;
  std::unique_ptr<Timeline> timeline_;       // guarded by mutex_
  std::optional<std::uint16_t> first_rank_;  // of this process in a job; guarded by mutex_
  std::unique_ptr<Attachment> attachment_;
  std::vector<LoopClient*> clients_;
  std::mutex mutex_;
  std::atomic<int> claims_{0};   // threads that want the lock for a moment
  std::atomic<int> waiters_{0};  // threads that drive the loop
  std::atomic<bool> stop_{false};
  std::atomic<bool> awaits_much_{false};
  std::atomic<bool> awaits_device_{false};
  std::size_t reserved_buffers_ = 0;
  Time last_turn_ = now();       // guarded by mutex_
  std::uint64_t unclaimed_ = 0;  // datagrams for no job of ours; guarded by mutex_
  std::thread thread_;
};

}  // namespace sluice
