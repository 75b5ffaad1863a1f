// Times Communicator::all_reduce of a SparseTensor, once per rank, on the pairs that the peers of
// bench/sparse-peers sum (bench/lib/peers/sparse):
//
//   bench-sparse-sum ELEMENTS PAIRS random|zipf SEED ITERATIONS [check]
//
// Rank 0 prints a line of JSON per iteration, as they do. `check` compares the last one's sums with
// a dense all_reduce; wrong ones end with status 1.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <malloc.h>

#include <sluice/sluice.hpp>

#include "bench/largest.hpp"
#include "bench/lib/peers/sparse/input.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::uint32_t elements, pairs;
  sparse::Keys keys;
  std::uint32_t seed, iterations;
  bool check;
};
constexpr std::uint32_t kWarmUp = 2;

class Runner {
 public:
  Runner(const Flags& flags, sluice::Communicator& job)
      : flags_(flags),
        job_(job),
        pairs_(sparse::pairs_of(job.rank(), flags.elements, flags.pairs, flags.keys, flags.seed)),
        values_(pairs_.size()) {
    for (const sparse::Pair& pair : pairs_) keys_.push_back(pair.index);
  }

  /// Whether all sums that were checked are right.
  bool run() {
    bool right = true;
    for (std::uint32_t i = 0; i < kWarmUp + flags_.iterations; ++i) {
      sparse::set_values(pairs_, job_.rank(), flags_.seed, i);
      std::transform(pairs_.begin(), pairs_.end(), values_.begin(),
                     [](const sparse::Pair& pair) { return pair.value; });
      job_.barrier().wait();
      const auto start = Clock::now();
      const sluice::SparseTensor tensor{.keys = keys_, .values = values_.data()};
      const sluice::SparseWork work = job_.all_reduce(tensor, flags_.elements);
      work.wait();
      work.keys();  // puts the sums in order
      const std::chrono::duration<double, std::micro> time = Clock::now() - start;
      const bool last = i + 1 == kWarmUp + flags_.iterations;
      if (flags_.check && last) right &= is_right(work);
      if (i >= kWarmUp) report(work, i - kWarmUp, time.count());
    }
    return right;
  }

 private:
  /// Against the sum of the dense vectors.
  bool is_right(const sluice::SparseWork& work) {
    std::vector<float> dense(flags_.elements);
    for (const sparse::Pair& pair : pairs_) dense[pair.index] = pair.value;
    job_.all_reduce(std::span(dense)).wait();
    const auto keys = work.keys();
    const auto sums = work.values<float>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < keys.size(); ++i)
      wrong += std::exchange(dense[keys[i]], 0.0F) != sums[i] ? 1 : 0;
    wrong += flags_.elements - static_cast<std::size_t>(std::ranges::count(dense, 0.0F));
    if (wrong != 0)
      std::fprintf(stderr, "sparse: wrong sum: rank %u has %zu wrong\n", job_.rank(), wrong);
    return wrong == 0;
  }

  void report(const sluice::SparseWork& work, std::uint32_t iteration, double microseconds) {
    const auto statistics = work.statistics();
    const auto most =
        sluice::bench::largest(job_, {microseconds, static_cast<double>(statistics.bytes_sent),
                                      static_cast<double>(statistics.bytes_received)});
    if (job_.rank() != 0) return;
    std::printf(
        "{\"algorithm\": \"sluice\", \"ranks\": %u, \"iteration\": %u, \"time_us\": %.3f, "
        "\"sent\": [%.0f], \"received\": [%.0f], \"bound\": %zu, \"delivered\": %zu}\n",
        job_.world_size(), iteration, most[0], most[1], most[2],
        std::max(pairs_.size(), work.size()) * sizeof(sparse::Pair), work.size());
    std::fflush(stdout);
  }

  const Flags& flags_;
  sluice::Communicator& job_;
  sparse::Pairs pairs_;
  std::vector<std::uint64_t> keys_;
  std::vector<float> values_;
};

}  // namespace

int main(int count, char** words) {
  // As the peers do: memory once touched is kept for the next iteration.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  try {
    const std::vector<std::string> arguments(words + 1, words + count);
    if (arguments.size() < 5 || arguments.size() > 6 ||
        (arguments[2] != "random" && arguments[2] != "zipf") ||
        (arguments.size() == 6 && arguments[5] != "check"))
      throw std::invalid_argument("expected ELEMENTS PAIRS random|zipf SEED ITERATIONS [check]");
    const auto number = [&](std::size_t i) {
      return static_cast<std::uint32_t>(std::stoul(arguments[i]));
    };
    const Flags flags{
        .elements = number(0),
        .pairs = number(1),
        .keys = arguments[2] == "random" ? sparse::Keys::kRandom : sparse::Keys::kZipf,
        .seed = number(3),
        .iterations = number(4),
        .check = arguments.size() == 6};
    sluice::Context context(sluice::ContextOptions::from_environment());
    sluice::Communicator job(context, sluice::JobOptions::from_environment());
    return Runner(flags, job).run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-sparse-sum: %s\n", error.what());
    return 1;
  }
}
