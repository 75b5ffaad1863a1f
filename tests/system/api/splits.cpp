// split and duplicate: communicators of some ranks, or of all ranks again.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

/// The values of all ranks, by rank.
std::vector<std::int64_t> gathered(Communicator& job, std::int64_t own) {
  std::vector<std::int64_t> all(job.world_size());
  job.all_gather(std::span<const std::int64_t>(&own, 1), std::span(all)).wait();
  return all;
}

/// The numbers `first`, first + step, ... below `end`.
std::vector<std::int64_t> counted(std::int64_t first, std::int64_t step, std::int64_t end) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = first; i < end; i += step) all.push_back(i);
  return all;
}

}  // namespace

/// Even and odd ranks; the even ones in reverse, by their keys.
void splits_into_parts(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::int32_t color = job.rank() % 2;
  Communicator part = job.split(color, color == 0 ? -job.rank() : 5).join();
  std::vector<std::int64_t> expected = counted(color, 2, job.world_size());
  if (color == 0) std::ranges::reverse(expected);
  check(part.world_size() == expected.size() && expected[part.rank()] == job.rank(),
        "this rank's place in its part");
  check(gathered(part, job.rank()) == expected, "the ranks of this part, in order");
  check_sum(part, "a sum of the part");
  check_sum(job, "a sum of the whole");
  const auto ids = gathered(job, part.job_id());
  for (std::uint16_t rank = 0; rank < job.world_size(); ++rank)
    check((ids[rank] == part.job_id()) == (rank % 2 == color), "one id for each part");
  check(job.job_id() == 1 && part.job_id() != 1, "a part's id is not the whole's");
}

/// In a job that one rank joins by number and the others by name.
void splits_that_some_take_no_part_in(const Setting& setting) {
  JobOptions options = setting.job;
  options.job = "bert-large";
  if (options.rank == 0) options.job = options.job.number();
  Communicator job(setting.context, options);
  check(job.job_id() == 108'174'750, "the name's id");
  const SplitWork split = job.split(job.rank() == 0 ? -7 : 3);
  if (job.rank() == 0) {
    check_says(error_of(ErrorCode::kInvalidArgument, "joining no part", [&] { split.join(); }),
               "color is negative, so it joins no part of job 108174750");
  } else {
    Communicator part = split.join();
    check(gathered(part, job.rank()) == counted(1, 1, job.world_size()), "all but rank 0");
    check_says(error_of(ErrorCode::kInvalidArgument, "joined twice", [&] { split.join(); }),
               "(color 3 of job bert-large (108174750)) is joined already by this context");
  }
  check_sum(job, "a sum of the whole");
}

/// Each has its own order of calls.
void duplicates(const Setting& setting) {
  Communicator job = setting.join(1);
  Communicator twin = job.duplicate().join();
  check(twin.rank() == job.rank() && twin.world_size() == job.world_size(), "the same ranks");
  check(twin.job_id() != job.job_id(), "another job");
  std::vector<float> one(20'000, 1.0F), two(20'000, 2.0F);
  Work of_job, of_twin;
  if (job.rank() == 0) of_job = job.all_reduce(std::span(one));
  of_twin = twin.all_reduce(std::span(two));
  of_twin.wait();
  if (job.rank() != 0) of_job = job.all_reduce(std::span(one));
  of_job.wait();
  check(one[7] == job.world_size() && two[7] == 2.0F * job.world_size(), "both sums");
}

/// A part may also be destroyed before it was joined.
void parts_outlive_the_whole(const Setting& setting) {
  std::optional<Communicator> job = setting.join(1);
  Communicator twin = job->duplicate().join();
  const SplitWork split = twin.split(0, -twin.rank());
  split.wait();
  job.reset();
  check_sum(twin, "a sum of the duplicate");
  twin.leave();
  Communicator part = split.join();
  check(part.rank() == part.world_size() - 1 - twin.rank(), "ranks in reverse");
  check_sum(part, "a sum of the part");
}

/// With messages in a part and in others.
void parts_of_parts(const Setting& setting) {
  Communicator job = setting.join(1);
  const SplitWork by_pair = job.split(job.rank() / 2), by_rank = job.split(job.rank());
  Communicator alone = by_rank.join();
  Communicator pair = by_pair.join();
  check(alone.world_size() == 1 && alone.rank() == 0, "a part of one rank");
  check_sum(alone, "a sum of one rank");
  Communicator reverse = pair.split(1'000'000'000, -pair.rank()).join();
  check_sum(reverse, "a sum of a part's part");
  if (reverse.world_size() < 2) return;
  std::vector<std::int64_t> word{job.rank()};
  if (reverse.rank() == 0) reverse.send(std::span(word), 1).wait();
  if (reverse.rank() == 1) reverse.recv(std::span(word), 0).wait();
  check(word[0] == job.rank() + reverse.rank(), "a message of a part");
}

void splits_that_ranks_disagree_about(const Setting& setting) {
  Communicator signal = setting.join(2);
  {
    Communicator job = setting.join(1);
    signal.barrier().wait();  // all have joined
    const SplitWork split = job.rank() == 0 ? job.duplicate() : job.split(0);
    error_of(ErrorCode::kOpMismatch, "a duplicate here and a split there", [&] { split.join(); });
    const SplitWork late = job.split(0);
    error_of(ErrorCode::kOpMismatch, "a split after the job has failed", [&] { late.join(); });
  }
  signal.barrier().wait();
  Communicator left = signal.duplicate().join();
  left.leave();
  error_of(ErrorCode::kAborted, "a split after leaving", [&] { left.split(0).join(); });
  error_of(ErrorCode::kInvalidArgument, "no split", [] { SplitWork().join(); });
}

}  // namespace sluice::api_test
