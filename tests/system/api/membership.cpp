// Joining, leaving, and leaving others alone.
#include <span>

#include "tests/system/api/check.hpp"
#include "tests/system/api/tensors.hpp"

namespace sluice::api_test {
namespace {

void check_sum(Communicator& job, const std::string& what) {
  const std::uint32_t block = job.block_elements(ElementType::kFloat32);
  std::vector<float> tensor = input_of<float>(3000, job.rank(), job.world_size(), block);
  job.all_reduce(std::span(tensor)).wait();
  check(wrong_elements(tensor, job.world_size(), block) == 0, what);
}

}  // namespace

void joined_and_left_again_and_again(const Setting& setting) {
  for (int life = 0; life < 50; ++life) {
    Communicator job = setting.join(7);
    check_sum(job, "life " + std::to_string(life));
    if (life % 2 == 0) job.leave();  // else the destructor does
  }
}

/// The old object may still live when the job is joined again; two lives at once are refused.
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

/// The last rank leaves in good order; then the others call a collective.
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

/// The last rank starts an op that rank 0 has not, and destroys its communicator.
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

/// The last rank leaves while an op of all ranks is under way: on each rank the op has ended well
/// or with an error, and nobody waits. Then the job is joined again.
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
