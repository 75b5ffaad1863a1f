// Joining, leaving, and the effects of leaving on others.
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/system/api/check.hpp"
#include "tests/system/api/tensors.hpp"

namespace sluice::api_test {

void check_sum(Communicator& job, const std::string& what) {
  const std::uint32_t block = job.block_elements(ElementType::kFloat32);
  std::vector<float> tensor = input_of<float>(3000, job.rank(), job.world_size(), block);
  job.all_reduce(std::span(tensor)).wait();
  check(wrong_elements(tensor, job.world_size(), block) == 0, what);
}

void joined_and_left_again_and_again(const Setting& setting) {
  for (int life = 0; life < 50; ++life) {
    Communicator job = setting.join(7);
    check_sum(job, "life " + std::to_string(life));
    if (life % 2 == 0) job.leave();  // otherwise the destructor does
  }
}

/// The old object may still live when the job is joined again; two memberships at once are refused.
void rejoined_beside_the_old(const Setting& setting) {
  Communicator job = setting.join(7);
  check_sum(job, "the first life");
  error_of(ErrorCode::kInvalidArgument, "a second communicator of a job that is joined",
           [&setting] { setting.join(7); });
  job.leave();
  Communicator again = setting.join(7);
  check_sum(again, "the second life");
  job = std::move(again);
  check_sum(job, "the second life in the first one's place");
}

void after_leaving(const Setting& setting) {
  Communicator job = setting.join(1);
  check_sum(job, "before leaving");
  job.leave();
  job.leave();
  std::vector<float> tensor(10);
  const Work work = job.all_reduce(std::span(tensor));
  const Error error =
      error_of(ErrorCode::kAborted, "an op after leave()", [&work] { work.wait(); });
  check(work.done() && work.error().has_value(), "the op after leave() has ended with an error");
}

/// The last rank leaves in order; then the others call a collective.
void a_rank_that_left_is_named(const Setting& setting) {
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  Communicator job = setting.join(1);
  check_sum(job, "before");
  if (job.rank() == last) job.leave();
  signal.barrier().wait();
  if (job.rank() == last) return signal.barrier().wait();
  std::vector<float> tensor(10, 1.0F);
  const Work work = job.all_reduce(std::span(tensor));
  const Error error =
      error_of(ErrorCode::kRankLeft, "an op after a rank left", [&work] { work.wait(); });
  check(error.rank() == last, "the rank that left is named");
  check_says(error, "rank " + std::to_string(last) + " left");
  signal.barrier().wait();
}

namespace {

enum class Unwinds { kBeforeAnOp, kWithAnOpPending, kAlready };

/// The last rank: an exception destroys its communicator, or was thrown before it joined. Before
/// that all have a sum, as with an op pending it would end the job at once. They call the next op
/// after that.
void fail(const Setting& setting, Communicator& signal, Unwinds when) {
  struct AtEnd {
    explicit AtEnd(std::function<void()> c) : call(std::move(c)) {}
    ~AtEnd() { call(); }
    const std::function<void()> call;
  };
  try {
    std::optional<AtEnd> guard;
    if (when == Unwinds::kAlready) {
      guard.emplace([&] {
        Communicator job = setting.join(1);
        check_sum(job, "before");
        signal.barrier().wait();
      });
      throw std::runtime_error("thrown before it joins");
    }
    Communicator job = setting.join(1);
    check_sum(job, "before");
    signal.barrier().wait();
    if (when == Unwinds::kWithAnOpPending) job.barrier();
    throw std::runtime_error("thrown after it joined");
  } catch (const std::runtime_error&) {
  }
  signal.barrier().wait();
}

}  // namespace

/// The error of the other ranks says that it was an exception.
void destroyed_by_an_exception(const Setting& setting) {
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  for (const Unwinds when : {Unwinds::kBeforeAnOp, Unwinds::kWithAnOpPending, Unwinds::kAlready}) {
    if (signal.rank() == last) {
      fail(setting, signal, when);
      continue;
    }
    Communicator job = setting.join(1);
    check_sum(job, "before");
    signal.barrier().wait();
    signal.barrier().wait();
    const Error error =
        error_of(ErrorCode::kRankLeft, "an op without a rank", [&] { job.barrier().wait(); });
    check(error.rank() == last, "the rank that is gone is named");
    check_says(error, "rank " + std::to_string(last) +
                          (when == Unwinds::kAlready ? " left the job" : " failed: an exception"));
  }
}

/// The last rank starts an op that rank 0 has not started, and destroys its communicator.
void destroyed_with_ops_pending(const Setting& setting) {
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  std::vector<float> tensor(100'000, 1.0F);
  {
    Communicator job = setting.join(1);
    check_sum(job, "before");
    if (job.rank() == last) {
      Work work = job.all_reduce(std::span(tensor));
      job = setting.join(3);
      job.barrier().wait();
      error_of(ErrorCode::kAborted, "an op of a communicator that is gone", [&] { work.wait(); });
    } else {
      Communicator third = setting.join(3);
      third.barrier().wait();  // the first job has ended now
      const Work work = job.all_reduce(std::span(tensor));
      const Error error =
          error_of(ErrorCode::kRankLeft, "an op that a rank left pending", [&] { work.wait(); });
      check(error.rank() == last, "the rank that ended the job is named");
      check_says(error, "rank " + std::to_string(last) + " ended the job");
      const Work again = job.all_reduce(std::span(tensor));
      error_of(ErrorCode::kRankLeft, "every op after that", [&] { again.wait(); });
    }
  }
  signal.barrier().wait();
  Communicator again = setting.join(1);
  check_sum(again, "the job joined again");
}

/// In the last rank, one thread aborts while another waits for an op that rank 0 never starts. Rank
/// 0 looks for the failure without a call that could report it.
void aborted_by_a_thread(const Setting& setting) {
  using namespace std::chrono_literals;
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  {
    Communicator job = setting.join(1);
    check_sum(job, "before");
    check(!job.failure(), "failure() of a job that goes on");
    signal.barrier().wait();
    const bool aborts = job.rank() == last;
    const ErrorCode expected = aborts ? ErrorCode::kAborted : ErrorCode::kRankLeft;
    std::vector<float> tensor(100'000, 1.0F);
    if (job.rank() == 0) {
      const auto deadline = std::chrono::steady_clock::now() + 60s;
      while (!job.failure() && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(1ms);
    } else {
      const Work work = job.all_reduce(std::span(tensor));
      const std::jthread aborter([&] {
        if (aborts) job.abort("tests do so");
      });
      error_of(expected, "an op of a job that is aborted", [&] { work.wait(); });
      check(job.failure().has_value(), "failure() once an op has failed with it");
    }
    job.abort("too late");
    const auto failure = job.failure();
    check(failure && failure->code() == expected, "failure() tells who ended the job");
    check_says(*failure, aborts ? "this rank aborted the job: tests do so"
                                : "rank " + std::to_string(last) + " ended the job");
    check(aborts || failure->rank() == last, "the rank that aborted is named");
    error_of(expected, "every op after that", [&] { job.barrier().wait(); });
    error_of(expected, "leaving after that", [&] { job.leave(); });
  }
  signal.barrier().wait();
  Communicator again = setting.join(1);
  check_sum(again, "the job joined again");
  again.leave();
  again.abort();
  check(!again.failure(), "failure() after leaving in an orderly way");
}

/// Rank 0 starts an op that the others never start, and waits for nothing.
void ops_that_time_out(const Setting& setting) {
  using namespace std::chrono_literals;
  Communicator signal = setting.join(2);
  std::vector<float> tensor(100'000, 1.0F);
  for (const bool by_setting : {true, false}) {
    JobOptions options = setting.job;
    options.job = 1;
    if (by_setting) options.op_timeout = 50ms;
    Communicator job(setting.context, options);
    signal.barrier().wait();
    Work work;
    if (job.rank() == 0) {
      work = job.all_reduce(std::span(tensor));
      const auto deadline = std::chrono::steady_clock::now() + 60s;
      while (!by_setting && work.stragglers().empty() &&
             std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(1ms);
      if (!by_setting) work.set_timeout(1ms);
    }
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!job.failure() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(1ms);
    const auto failure = job.failure();
    check(failure && failure->code() == ErrorCode::kOpTimedOut, "all ranks learn of a time-out");
    check(failure->op() == 0, "the op that timed out is named");
    check_says(*failure, "was not done");
    check_says(*failure, by_setting ? "within 50 ms" : "within 1 ms");
    if (!by_setting) {
      check_says(*failure, "it waited for rank 1");
      check(failure->rank() == 1, "the first rank that was waited for is named");
    }
    if (work.valid()) error_of(ErrorCode::kOpTimedOut, "that op", [&] { work.wait(); });
    error_of(ErrorCode::kOpTimedOut, "every op after that", [&] { job.barrier().wait(); });
    signal.barrier().wait();
  }
  JobOptions options = setting.job;
  options.job = 1;
  options.op_timeout = 60s;
  Communicator job(setting.context, options);
  check_sum(job, "an op that is done in time");
  const Work done = job.barrier();
  done.wait();
  done.set_timeout(1ms);
  error_of(ErrorCode::kInvalidArgument, "no time-out", [&] { done.set_timeout(-1ms); });
  error_of(ErrorCode::kInvalidArgument, "a day and more", [&] { done.set_timeout(25h); });
  check_sum(job, "an op after one that was done in time");
}

/// The last rank leaves while an op of all ranks is under way: on each rank the op ends, with or
/// without an error, and nobody waits for ever. Then the job is joined again.
void left_during_an_op(const Setting& setting) {
  const std::uint16_t last = setting.job.world_size - 1;
  Communicator signal = setting.join(2);
  for (int life = 0; life < 5; ++life) {
    Communicator job = setting.join(1);
    signal.barrier().wait();  // all have joined
    std::vector<float> tensor(1'000'000, 1.0F);
    const Work work = job.all_reduce(std::span(tensor));
    const bool leaves = job.rank() == last;
    try {
      if (leaves) job.leave();
      check(!leaves || work.done(), "leave() ends the ops");
      work.wait();
      const auto right = static_cast<float>(job.world_size());
      check(tensor.front() == right && tensor.back() == right, "an op that ended well is right");
    } catch (const Error& error) {
      check(error.code() == (leaves ? ErrorCode::kAborted : ErrorCode::kRankLeft), error.what());
      check(leaves || error.rank() == last, "the rank that ended the job is named");
    }
  }
  Communicator again = setting.join(1);
  check_sum(again, "the job joined again");
}

}  // namespace sluice::api_test
