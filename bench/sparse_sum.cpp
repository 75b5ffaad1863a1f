// Times Communicator::all_reduce as one process per rank, on the pairs that the peers of
// bench/sparse-peers sum (bench/lib/peers/sparse), as a SparseTensor or as the dense vector with
// these elements:
//
//   bench-sparse-sum ELEMENTS PAIRS random|zipf SEED ITERATIONS sparse|dense [check]
//
// Rank 0 prints a line of JSON per iteration, as the peers do. It adds the bytes of the pairs on
// the wire without headers: those of the rank with the most, and those of the sums. `check`
// compares the last iteration's sums with those of the other form; if they differ, the exit status
// is 1. A dense vector is in shared memory.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <malloc.h>

#include <sluice/sluice.hpp>

#include "bench/largest.hpp"
#include "bench/lib/peers/sparse/input.hpp"
#include "common/protocol/keyed.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::uint32_t elements, pairs;
  sparse::Keys keys;
  std::uint32_t seed, iterations;
  bool dense, check;
};
constexpr std::uint32_t kWarmUp = 2;

/// The size of pairs with these keys, as runs on a job's streams, without the headers of runs.
std::size_t wire_bytes(std::span<const std::uint64_t> keys, std::uint64_t key_bound) {
  sluice::Session session;
  session.streams = sluice::defaults::kStreams;
  session.payload_bytes = sluice::defaults::kNetworkMtu - 28;
  const auto geometry = sluice::KeyedGeometry::make(key_bound, 1, sluice::ElementType::kFloat32,
                                                    session, sluice::OpNumber{0});
  std::vector<std::vector<std::uint64_t>> places(geometry->used_streams());
  for (const std::uint64_t key : keys)
    places[geometry->deal(geometry->stripe_of(key)).place].push_back(geometry->local_of(key));
  std::size_t bytes = 0;
  for (const auto& of_place : places)
    for (std::span<const std::uint64_t> left(of_place); !left.empty();) {
      const auto plan = sluice::plan_run(left, run_room(session), geometry->format(), false);
      bytes += plan.bytes - sizeof(sluice::wire::RunHeader);
      left = left.subspan(plan.coding.keys);
    }
  return bytes;
}

class Runner {
 public:
  Runner(const Flags& flags, sluice::Communicator& job)
      : flags_(flags),
        job_(job),
        pairs_(sparse::pairs_of(job.rank(), flags.elements, flags.pairs, flags.keys, flags.seed)),
        values_(pairs_.size()) {
    for (const sparse::Pair& pair : pairs_) keys_.push_back(pair.index);
    if (flags.dense || flags.check) dense_.resize(flags.elements);
  }

  /// Returns whether all sums that were checked are right.
  bool run() {
    bool right = true;
    for (std::uint32_t i = 0; i < kWarmUp + flags_.iterations; ++i) {
      set_values(i);
      sluice::SparseWork sparse;
      job_.barrier().wait();
      const auto start = Clock::now();
      const sluice::Work work = flags_.dense ? sum_dense() : (sparse = sum_sparse());
      work.wait();
      if (!flags_.dense) sparse.keys();  // sorts the sums
      const std::chrono::duration<double, std::micro> time = Clock::now() - start;
      if (flags_.check && i + 1 == kWarmUp + flags_.iterations) {
        if (flags_.dense) sparse = sum_sparse();
        if (!flags_.dense) sum_dense().wait();
        sparse.wait();
        right = is_right(sparse);
      }
      if (i >= kWarmUp) report(work, sparse, i - kWarmUp, time.count());
    }
    return right;
  }

 private:
  void set_values(std::uint32_t step) {
    sparse::set_values(pairs_, job_.rank(), flags_.seed, step);
    std::ranges::transform(pairs_, values_.begin(), &sparse::Pair::value);
    if (dense_.empty()) return;
    std::ranges::fill(dense_, 0.0F);
    for (const sparse::Pair& pair : pairs_) dense_[pair.index] = pair.value;
  }

  sluice::SparseWork sum_sparse() {
    const sluice::SparseTensor tensor{.keys = keys_, .values = values_.data()};
    return job_.all_reduce(tensor, flags_.elements);
  }

  sluice::Work sum_dense() { return job_.all_reduce(std::span(dense_)); }

  /// Whether both forms have the same sums; takes the sums of the dense form.
  bool is_right(const sluice::SparseWork& sparse) {
    const auto keys = sparse.keys();
    const auto sums = sparse.values<float>();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < keys.size(); ++i)
      wrong += std::exchange(dense_[keys[i]], 0.0F) != sums[i] ? 1 : 0;
    wrong += flags_.elements - static_cast<std::size_t>(std::ranges::count(dense_, 0.0F));
    if (wrong != 0)
      std::fprintf(stderr, "sparse: wrong sum: rank %u has %zu wrong\n", job_.rank(), wrong);
    return wrong == 0;
  }

  void report(const sluice::Work& work, const sluice::SparseWork& sparse, std::uint32_t iteration,
              double microseconds) {
    const auto statistics = work.statistics();
    const auto most =
        sluice::bench::largest(job_, {microseconds, static_cast<double>(statistics.bytes_sent),
                                      static_cast<double>(statistics.bytes_received),
                                      static_cast<double>(wire_bytes(keys_, flags_.elements)),
                                      static_cast<double>(statistics.retransmissions)});
    if (job_.rank() != 0) return;
    const std::size_t delivered = flags_.dense ? flags_.elements : sparse.size();
    const std::size_t bound = flags_.dense
                                  ? delivered * sizeof(float)
                                  : std::max(pairs_.size(), delivered) * sizeof(sparse::Pair);
    std::printf(
        "{\"algorithm\": \"%s\", \"ranks\": %u, \"iteration\": %u, \"time_us\": %.3f, "
        "\"sent\": [%.0f], \"received\": [%.0f], \"bound\": %zu, \"delivered\": %zu, "
        "\"pairs_bytes\": %.0f, \"sums_bytes\": %zu, \"retransmits\": %.0f}\n",
        flags_.dense ? "sluice-dense" : "sluice", job_.world_size(), iteration, most[0], most[1],
        most[2], bound, delivered, most[3],
        flags_.dense ? bound : wire_bytes(sparse.keys(), flags_.elements), most[4]);
    std::fflush(stdout);
  }

  const Flags& flags_;
  sluice::Communicator& job_;
  sparse::Pairs pairs_;
  std::vector<std::uint64_t> keys_;
  std::vector<float> values_;
  std::vector<float, sluice::Allocator<float>> dense_;
};

}  // namespace

int main(int count, char** words) {
  // As the peers do: memory that was touched is kept for the next iteration.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  try {
    const std::vector<std::string> arguments(words + 1, words + count);
    if (arguments.size() < 6 || arguments.size() > 7 ||
        (arguments[2] != "random" && arguments[2] != "zipf") ||
        (arguments[5] != "sparse" && arguments[5] != "dense") ||
        (arguments.size() == 7 && arguments[6] != "check"))
      throw std::invalid_argument(
          "expected ELEMENTS PAIRS random|zipf SEED ITERATIONS sparse|dense [check]");
    const auto number = [&](std::size_t i) {
      return static_cast<std::uint32_t>(std::stoul(arguments[i]));
    };
    const Flags flags{
        .elements = number(0),
        .pairs = number(1),
        .keys = arguments[2] == "random" ? sparse::Keys::kRandom : sparse::Keys::kZipf,
        .seed = number(3),
        .iterations = number(4),
        .dense = arguments[5] == "dense",
        .check = arguments.size() == 7};
    sluice::Context context(sluice::ContextOptions::from_environment());
    sluice::Communicator job(context, sluice::JobOptions::from_environment());
    return Runner(flags, job).run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-sparse-sum: %s\n", error.what());
    return 1;
  }
}
