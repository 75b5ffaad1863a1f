// A rank of a job that goes on until it is told: `steady_job STOP_FILE [ELEMENTS]`. It sums tensors
// and checks every element of every sum; says "under way" after the first; and ends with 0 once
// STOP_FILE exists, as rank 0 sees it. Ends with 1 when a sum is wrong, and with 3 when the library
// reports an error: "rank 0: CODE [about rank R]: MESSAGE".
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <thread>
#include <vector>

#include <sluice/sluice.hpp>

namespace {

using namespace std::chrono_literals;

/// Blocks of zeros, ones and more, differing between ranks and turns. Element 0: the rank is done.
void fill(std::span<std::int32_t> tensor, std::uint16_t rank, int turn, bool done) {
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const bool zero = (i / 256 + rank + static_cast<std::size_t>(turn)) % 3 == 0;
    tensor[i] = zero ? 0 : static_cast<std::int32_t>(i) * (rank + 1) + turn;
  }
  tensor[0] = done;
}

bool is_sum(std::span<const std::int32_t> sum, std::uint16_t ranks, int turn) {
  std::vector<std::int32_t> expected(sum.size());
  std::vector<std::int32_t> input(sum.size());
  for (std::uint16_t rank = 0; rank < ranks; ++rank) {
    fill(input, rank, turn, false);
    for (std::size_t i = 0; i < sum.size(); ++i) expected[i] += input[i];
  }
  expected[0] = sum[0];
  return std::equal(sum.begin(), sum.end(), expected.begin());
}

int run(const std::filesystem::path& stop_file, std::size_t elements) {
  const auto options = sluice::JobOptions::from_environment();
  sluice::Context context(sluice::ContextOptions::from_environment());
  sluice::Communicator job(context, options);
  std::vector<std::int32_t> tensor(elements);
  for (int turn = 0; turn == 0 || tensor[0] == 0; ++turn) {
    const bool done = job.rank() == 0 && turn > 0 && std::filesystem::exists(stop_file);
    fill(tensor, job.rank(), turn, done);
    job.all_reduce(std::span(tensor)).wait();
    if (!is_sum(tensor, job.world_size(), turn)) {
      std::fprintf(stderr, "rank %u: sum %d is wrong\n", job.rank(), turn);
      return 1;
    }
    if (turn == 0) std::puts("under way");
    std::fflush(stdout);
    std::this_thread::sleep_for(1ms);  // leaves the machine to the job that a test is about
  }
  job.leave();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    return run(argv[1], argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 20'000);
  } catch (const sluice::Error& error) {
    const char* const rank = std::getenv("SLUICE_RANK");
    const std::string about =
        error.rank() ? " about rank " + std::to_string(*error.rank()) : std::string();
    std::fprintf(stderr, "rank %s: %s%s: %s\n", rank == nullptr ? "?" : rank,
                 std::string(name(error.code())).c_str(), about.c_str(), error.what());
    return 3;
  }
}
