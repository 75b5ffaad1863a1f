// Many ops, many jobs, many threads; and which of them wait for each other.
#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include <poll.h>

#include "tests/system/api/check.hpp"
#include "tests/system/api/tensors.hpp"

namespace sluice::api_test {
namespace {

using namespace std::chrono_literals;

/// An op under way, with a tensor of its own.
struct Started {
  std::vector<float> tensor;
  Work work;
};

Started begin(Communicator& job, std::uint64_t count) {
  const std::uint32_t block = job.block_elements(ElementType::kFloat32);
  Started started{input_of<float>(count, job.rank(), job.world_size(), block), {}};
  started.work = job.all_reduce(std::span(started.tensor));
  return started;
}

void finish(Communicator& job, const Started& started, const std::string& what) {
  started.work.wait();
  check(started.work.done(), what + ": not done after wait()");
  check(wrong_elements(started.tensor, job.world_size(),
                       job.block_elements(ElementType::kFloat32)) == 0,
        what + ": wrong sum");
}

/// Threads whose failures reach the thread that joins them.
class Threads {
 public:
  void run(std::function<void()> work) {
    threads_.emplace_back([this, work = std::move(work)] {
      try {
        work();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
    });
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

void many_ops_in_flight(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<Started> ops;
  for (std::uint64_t i = 0; i < 200; ++i) ops.push_back(begin(job, i % 7 == 0 ? 60'000 : i * 13));
  for (std::size_t i = ops.size(); i-- > 0;) {  // the thread that waits for the last op serves all
    finish(job, ops[i], "op " + std::to_string(i) + " of many");
    ops[i].work = {};
  }

  // To drop the handle does not cancel the op: a later op of this size runs on every stream after
  // it.
  std::vector<float> unattended(300'000, 1.0F);
  job.all_reduce(std::span(unattended));
  finish(job, begin(job, 300'000), "the op after one without a handle");
  for (const float element : unattended)
    check(element == static_cast<float>(job.world_size()), "an op without a handle");
}

/// Each thread has its own job, and the ranks start the threads in different orders.
void several_jobs_in_several_threads(const Setting& setting) {
  constexpr std::uint32_t kJobs = 4;
  Threads threads;
  for (std::uint32_t i = 0; i < kJobs; ++i) {
    const std::uint32_t id = 100 + (i + setting.job.rank) % kJobs;
    threads.run([&setting, id] {
      Communicator job = setting.join(id);
      for (int turn = 0; turn < 25; ++turn) {
        const Started a = begin(job, id * 40);
        const Started b = begin(job, 3000);
        finish(job, b, "job " + std::to_string(id));
        finish(job, a, "job " + std::to_string(id));
      }
      job.leave();
    });
  }
  threads.join();
}

/// The threads start ops one after the other, in the order on which the ranks must agree, and wait
/// at the same time.
void one_job_from_several_threads(const Setting& setting) {
  constexpr int kThreads = 3;
  constexpr int kTurns = 90;
  Communicator job = setting.join(1);
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  Threads threads;
  for (int t = 0; t < kThreads; ++t)
    threads.run([&, t] {
      for (int mine = t; mine < kTurns; mine += kThreads) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return turn == mine; });
        const Started op = begin(job, static_cast<std::uint64_t>(mine) * 100);
        ++turn;
        changed.notify_all();
        lock.unlock();
        finish(job, op, "op " + std::to_string(mine) + " of thread " + std::to_string(t));
      }
    });
  threads.join();
}

/// Rank 0 alone starts an op of one job; the others start theirs after a barrier of another job.
void wait_for_is_bounded(const Setting& setting) {
  Communicator job = setting.join(1);
  Communicator signal = setting.join(2);
  if (job.rank() != 0) signal.barrier().wait();
  const Started op = begin(job, 1000);
  if (job.rank() == 0) {
    const bool alone = job.world_size() == 1;
    check(op.work.wait_for(100ms) == alone, "wait_for() while other ranks have not started");
    check(op.work.done() == alone, "done() while other ranks have not started");
    if (!alone) {
      error_of(ErrorCode::kInvalidArgument, "error() of a running op", [&] { op.work.error(); });
      error_of(ErrorCode::kInvalidArgument, "statistics() of a running op",
               [&] { op.work.statistics(); });
      std::vector<std::uint16_t> others;
      // Ranks of other hosts are not known before all ranks of this host have called the op.
      const std::uint16_t known =
          setting.has_hosts ? setting.job.local_world_size : job.world_size();
      for (std::uint16_t rank = 1; rank < known; ++rank) others.push_back(rank);
      const auto deadline = std::chrono::steady_clock::now() + 60s;
      while (op.work.stragglers() != others && std::chrono::steady_clock::now() < deadline)
        op.work.wait_for(10ms);
      check(op.work.stragglers() == others, "stragglers() are the ranks that have not started");
      check(job.stragglers() == others, "stragglers() of the communicator");
      check(job.statistics().ops_pending == 1, "statistics() of a pending op");
      check(op.work.progress() == 0, "progress() while nothing has come");
    }
    signal.barrier().wait();
  }
  check(op.work.wait_for(60s), "wait_for() of an op that ends");
  finish(job, op, "an op that was waited for with bounds");
  check(op.work.stragglers().empty(), "stragglers() of an op that is done");
  check(op.work.progress() == 1, "progress() of an op that is done");
  check(job.stragglers().empty(), "stragglers() of a communicator without ops");
  const JobStatistics statistics = job.statistics();
  check(statistics.ops_completed == 1 && statistics.ops_failed == 0 && statistics.ops_pending == 0,
        "statistics() count an op");
  check(
      !setting.has_aggregators || (statistics.packets_sent > 0 && statistics.packets_received > 0),
      "statistics() count packets");
}

void barrier_waits_for_all(const Setting& setting) {
  Communicator job = setting.join(1);
  Communicator signal = setting.join(2);
  const std::uint16_t last = job.world_size() - 1;
  if (job.rank() == last) signal.barrier().wait();
  const Work barrier = job.barrier();
  if (job.rank() != last) {
    check(!barrier.wait_for(100ms), "a barrier ended before the last rank called it");
    signal.barrier().wait();
  }
  barrier.wait();
}

/// Nobody waits for a single op: the queue drives them. Rank 0 has begun a barrier before all sums;
/// the others begin it after them.
void completions_in_the_order_of_ends(const Setting& setting) {
  constexpr std::uint64_t kSums = 50;
  constexpr std::uint64_t kBarrier = 1000;
  Communicator job = setting.join(1);
  Communicator late = setting.join(2);
  const bool begins = job.rank() == 0;
  CompletionQueue queue;
  Work barrier;
  if (begins) queue.add(barrier = late.barrier(), kBarrier);
  std::vector<Started> sums;
  for (std::uint64_t i = 0; i < kSums; ++i) {
    sums.push_back(begin(job, i * 500));
    queue.add(sums.back().work, i);
  }
  CompletionQueue of_some;  // an op may be in two queues, but only once in each
  for (std::uint64_t i = 0; i < kSums; i += 2) of_some.add(sums[i].work, i);
  std::vector<bool> ended(kSums);
  for (std::uint64_t i = 0; i < kSums; ++i) {
    const auto tag = queue.next(60s);
    check(tag && *tag < kSums && !ended[*tag], "the tag of a sum, and each once");
    ended[*tag] = true;
    check(sums[*tag].work.done(), "an op is done when its tag comes");
    if (*tag % 2 == 0) check(of_some.next(0ns).has_value(), "its tag is in both queues");
    finish(job, sums[*tag], "sum " + std::to_string(*tag));
  }
  check(!queue.next(0ns) && !queue.next(1ms), "the queue is empty until the others come");
  if (begins) {
    check(!barrier.done(), "a barrier without the others");
    error_of(ErrorCode::kInvalidArgument, "an op twice in a queue", [&] { queue.add(barrier, 1); });
    CompletionQueue().add(barrier, 1);  // destroyed before the op ends
  }
  job.barrier().wait();
  if (!begins) queue.add(barrier = late.barrier(), kBarrier);
  check(queue.next(60s) == kBarrier, "the tag of the barrier");
  queue.add(barrier, 3);
  check(queue.next(0ns) == 3, "the tag of an op that had ended when it was added");
  error_of(ErrorCode::kInvalidArgument, "no op", [&] { queue.add(Work(), 1); });
}

/// The thread waits while there is nothing to wait for, and while another thread waits for an op.
void completions_wake_a_thread(const Setting& setting) {
  constexpr std::uint64_t kOps = 200;
  Communicator job = setting.join(1);
  CompletionQueue queue;
  queue.interrupt();
  check(!queue.next(60s), "a wait that was interrupted before it began");
  std::uint64_t taken = 0;
  Threads threads;
  threads.run([&] {
    while (queue.next(std::chrono::nanoseconds::max())) ++taken;
  });
  std::vector<Started> ops;
  for (std::uint64_t i = 0; i < kOps; ++i) {
    ops.push_back(begin(job, i * 20));
    queue.add(ops.back().work, i);
    if (i % 2 == 0) finish(job, ops.back(), "op " + std::to_string(i) + " of a queue's");
  }
  for (const Started& op : ops) op.work.wait();
  queue.interrupt();
  threads.join();
  while (queue.next(0ns)) ++taken;
  check(taken == kOps, std::to_string(taken) + " tags of as many ops");
}

/// A queue in an event loop: its descriptor is readable while there is a tag.
void completions_by_a_descriptor(const Setting& setting) {
  Communicator job = setting.join(1);
  const auto can_be_read = [](int descriptor, int timeout_ms) {
    pollfd events{.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&events, 1, timeout_ms) == 1 && events.revents == POLLIN;
  };
  Work pending;
  {
    CompletionQueue queue;
    queue.interrupt();
    const int descriptor = queue.descriptor();
    check(queue.descriptor() == descriptor, "descriptor() is the same again");
    check(can_be_read(descriptor, 0), "a queue that was interrupted before anybody asked");
    check(!queue.next(0ns) && !can_be_read(descriptor, 0), "nothing is left");
    for (std::uint64_t round = 0; round < 50; ++round) {
      const Started first = begin(job, 20 * round);
      const Started second = begin(job, 10);
      queue.add(first.work, 2 * round);
      queue.add(second.work, 2 * round + 1);
      std::vector<std::uint64_t> tags;
      while (tags.size() < 2) {
        check(can_be_read(descriptor, 60'000), "an op has ended");
        while (const auto tag = queue.next(0ns)) tags.push_back(*tag);
      }
      check(tags[0] + tags[1] == 4 * round + 1, "the tags of both ops");
      check(!can_be_read(descriptor, 0), "no tag is left");
      finish(job, first, "the first op of a round");
      finish(job, second, "the second op of a round");
    }
    queue.interrupt();
    check(can_be_read(descriptor, 0) && !queue.next(60s), "an interruption");
    check(!can_be_read(descriptor, 0), "an interruption that was told");
    queue.add(pending = job.barrier(), 1);
  }
  pending.wait();  // its queue was destroyed
}

}  // namespace sluice::api_test
