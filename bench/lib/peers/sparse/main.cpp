// Sparse AllReduce algorithms of the literature, with MPI: mpirun -n RANKS sparse [--FLAG VALUE]...
//
// Each rank has pairs. A run is timed from there to the sum, as pairs or dense, on every rank. The
// algorithms alternate on the same data. Rank 0 prints a line of JSON for each iteration: the
// slowest rank's microseconds, the bytes that each rank sent and received, and the bytes that the
// algorithm promises as `bound`. Wrong sums are reported on stderr, and the exit status is 1 then.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <malloc.h>
#include <mpi.h>

#include "bench/lib/peers/sparse/algorithm.hpp"
#include "bench/lib/peers/sparse/check.hpp"
#include "bench/lib/peers/sparse/input.hpp"
#include "bench/lib/peers/sparse/network.hpp"
#include "bench/lib/peers/sparse/self_test.hpp"
#include "bench/lib/peers/sparse/sparse_flags.hpp"
#include "bench/lib/peers/sparse/sparse_stream.hpp"

namespace sparse {
namespace {

class Runner {
 public:
  Runner(const Flags& flags, Network& network)
      : flags_(flags), network_(network), job_{&network,   flags.elements, pairs_of_density(flags),
                                               flags.seed, flags.tau,      flags.tau_prime} {}

  /// Whether all sums were right.
  bool run() {
    const std::size_t count = flags_.algorithms.size();
    for (std::size_t i = 0; i < count; ++i) run(flags_.algorithms[(flags_.first + i) % count]);
    return wrong_ == 0;
  }

 private:
  void run(const std::string& name) {
    const std::unique_ptr<Algorithm> algorithm = make_algorithm(name, job_);
    Input input{pairs_for(*algorithm), {}};
    const int warmup = std::max(int(flags_.warmup), algorithm->settling_steps());
    const int end = warmup + int(flags_.iterations);
    for (int iteration = 0; iteration < end; ++iteration) {
      next_step(*algorithm, input, iteration);
      const bool checked = flags_.checks == Checks::kEvery ||
                           (flags_.checks == Checks::kLast && iteration + 1 == end);
      Dense contributed = checked ? dense_of(input) : Dense();
      if (checked) algorithm->add_kept(1, contributed);
      const auto [sum, seconds] = timed(*algorithm, input);
      const Traffic traffic = network_.take_traffic();
      if (checked) {
        algorithm->add_kept(-1, contributed);
        check_sum(name, *algorithm, sum, contributed, iteration);
      }
      if (iteration >= warmup) report(name, *algorithm, sum, iteration - warmup, seconds, traffic);
    }
  }

  /// The pairs for k are kept, as drawing them takes longer than many runs.
  Pairs pairs_for(const Algorithm& algorithm) {
    if (algorithm.nonzeros() != job_.k) return draw(algorithm.nonzeros());
    if (pairs_.empty()) pairs_ = draw(job_.k);
    return pairs_;
  }

  Pairs draw(std::size_t count) const {
    return pairs_of(network_.rank(), flags_.elements, count, flags_.keys, flags_.seed);
  }

  void next_step(const Algorithm& algorithm, Input& input, int step) const {
    set_values(input.pairs, network_.rank(), flags_.seed, std::uint64_t(step));
    if (algorithm.starts_dense()) input.values = dense_of(input);
  }

  Dense dense_of(const Input& input) const {
    Dense values = zeros(flags_.elements);
    add_pairs(input.pairs, 0, values);
    return values;
  }

  static std::pair<Stream, double> timed(Algorithm& algorithm, const Input& input) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    Stream sum = algorithm.sum(input);
    const double seconds = MPI_Wtime() - start;
    // No rank prepares its next run while others are still at this one.
    MPI_Barrier(MPI_COMM_WORLD);
    return {std::move(sum), seconds};
  }

  /// Compares with Open MPI's own sum of what each rank gave: its input, and the difference between
  /// before and after of what it keeps.
  void check_sum(const std::string& name, const Algorithm& algorithm, const Stream& sum,
                 const Dense& contributed, int iteration) {
    Dense exact(flags_.elements);
    MPI_Allreduce(contributed.data(), exact.data(), int(flags_.elements), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    const Dense allowed = algorithm.allowed_errors(contributed, exact);
    complain(name, iteration, check(sum, exact, allowed));
    if (algorithm.delivers_k())
      complain(name, iteration, check_delivered(sum.pairs.size(), job_.k));
  }

  void complain(const std::string& name, int iteration, const Verdict& verdict) {
    std::uint64_t wrong = verdict.wrong;
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    wrong_ += wrong;
    if (verdict.wrong > 0)
      std::fprintf(stderr, "sparse: wrong sum: %s, rank %d, iteration %d: %zu wrong; %s\n",
                   name.c_str(), network_.rank(), iteration, verdict.wrong, verdict.first.c_str());
  }

  void report(const std::string& name, const Algorithm& algorithm, const Stream& sum, int iteration,
              double seconds, Traffic traffic) const {
    double slowest = 0;
    MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    const std::string sent = gathered(traffic.sent), received = gathered(traffic.received);
    if (network_.rank() != 0) return;
    std::printf(
        "{\"algorithm\": \"%s\", \"ranks\": %d, \"elements\": %u, \"pairs\": %zu, \"keys\": \"%s\","
        " \"seed\": %llu, \"iteration\": %d, \"time_us\": %.3f, \"sent\": [%s], \"received\": [%s],"
        " \"bound\": %.0f, \"dense\": %s, \"delivered\": %zu}\n",
        name.c_str(), network_.ranks(), flags_.elements, job_.k,
        flags_.keys == Keys::kRandom ? "random" : "zipf", (unsigned long long)flags_.seed,
        iteration, slowest * 1e6, sent.c_str(), received.c_str(), algorithm.bound_bytes(),
        sum.is_dense ? "true" : "false", sum.is_dense ? sum.values.size() : sum.pairs.size());
    std::fflush(stdout);
  }

  /// Every rank's number, with commas.
  std::string gathered(std::uint64_t number) const {
    std::vector<std::uint64_t> numbers(std::size_t(network_.ranks()));
    MPI_Gather(&number, 1, MPI_UINT64_T, numbers.data(), 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    std::string text;
    for (const std::uint64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
    return text;
  }

  const Flags& flags_;
  Network& network_;
  Job job_;
  Pairs pairs_;
  std::uint64_t wrong_ = 0;
};

int run(int count, char** words) {
  Network network;
  try {
    const Flags flags = parse_flags(count, words);
    if (flags.self_test) return self_test() ? 0 : 1;
    if (network.ranks() < 2)
      throw UsageError("ranks " + std::to_string(network.ranks()) + ": expected 2 or more");
    return Runner(flags, network).run() ? 0 : 1;
  } catch (const UsageError& error) {
    if (network.rank() == 0) std::fprintf(stderr, "sparse: %s\n", error.what());
    return 2;
  }
}

}  // namespace
}  // namespace sparse

int main(int count, char** words) {
  // Memory that was touched is kept for the next iteration, which then has no page faults.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  MPI_Init(&count, &words);
  const int status = sparse::run(count, words);
  MPI_Finalize();
  return status;
}
