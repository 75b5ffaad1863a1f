// A rank of a job that runs until it is told to stop: `steady_job STOP_FILE [ELEMENTS
// [IN_FLIGHT]]`. It sums tensors, IN_FLIGHT at a time, and compares every bit of every sum with the
// sum in rank order. It prints "under way" after the first, and ends with 0 once rank 0 sees
// STOP_FILE; then it prints "sent per sum: " with a number of bytes. With PAIRS=1 in the
// environment it sums the non-zero elements as pairs of keys and elements.
//
// It ends with 1 if a sum is wrong, and with 3 if the library reports an error: "rank 0: CODE
// [about rank R]: MESSAGE". Standard output has, in seconds of CLOCK_MONOTONIC, "waited from A to
// B" for a sum that took long, and "op K failed at T".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <span>
#include <thread>
#include <vector>

#include <sluice/sluice.hpp>

#include "tests/system/steady.hpp"

namespace {

using namespace std::chrono_literals;
using namespace sluice::steady;

constexpr auto kLongWait = 20ms;

/// Blocks of zeros and others, which differ between ranks and turns; sums depend on the order. If
/// there are several ranks, the last has nothing in the second half, so others may end an op before
/// it does.
float input(std::size_t i, std::size_t elements, std::uint16_t rank, std::uint16_t ranks,
            int turn) {
  const bool zero = (i / 256 + rank + static_cast<std::size_t>(turn)) % 3 == 0;
  const bool beyond = ranks > 1 && rank + 1 == ranks && i > elements / 2;
  if (zero || beyond) return 0;
  return static_cast<float>(turn % 1000 + 1) / static_cast<float>(1 + 3 * i + rank);
}

/// Element 0 says whether the rank is done.
void fill(std::span<float> tensor, std::uint16_t rank, std::uint16_t ranks, int turn, bool done) {
  for (std::size_t i = 0; i < tensor.size(); ++i)
    tensor[i] = input(i, tensor.size(), rank, ranks, turn);
  tensor[0] = done ? 1 : 0;
}

/// Hosts with so many ranks sum first.
bool is_sum(std::span<const float> sum, std::uint16_t ranks, std::uint16_t per_host, int turn) {
  for (std::size_t i = 1; i < sum.size(); ++i) {
    float expected = 0;
    for (std::uint16_t rank = 0; rank < ranks;) {
      float of_host = 0;
      for (const int end = std::min(rank + per_host, int{ranks}); rank < end; ++rank)
        of_host += input(i, sum.size(), rank, ranks, turn);
      expected += of_host;
    }
    if (std::memcmp(&sum[i], &expected, sizeof expected) != 0) return false;
  }
  return sum[0] == 0 || sum[0] == 1;
}

std::uint16_t told(const char* variable, std::uint16_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<std::uint16_t>(std::atoi(text));
}

/// A sum that is under way, and its input if it is one of pairs.
struct Pending {
  sluice::Work dense = {};
  sluice::SparseWork sparse = {};
  std::vector<std::uint64_t> keys = {};
  std::vector<float> values = {};
};

class SteadyJob {
 public:
  SteadyJob(std::filesystem::path stop_file, std::size_t elements, std::size_t in_flight)
      : stop_file_(std::move(stop_file)),
        options_(sluice::JobOptions::from_environment()),
        tensors_(in_flight, std::vector<float>(elements)),
        context_(sluice::ContextOptions::from_environment()),
        job_(context_, options_) {}

  /// All ranks start the same number of ops: they see the end in the same sum.
  int run() {
    for (bool done = false; !done || !pending_.empty();) {
      while (!done && pending_.size() < tensors_.size()) start_op();
      const std::vector<float>& sum = wait();
      if (!is_sum(sum, job_.world_size(), ranks_per_host_, ended_)) {
        std::fprintf(stderr, "rank %u: sum %d is wrong\n", job_.rank(), ended_);
        return 1;
      }
      if (ended_++ == 0) std::puts("under way");
      done |= sum[0] != 0;
      std::fflush(stdout);
      std::this_thread::sleep_for(1ms);  // leaves the machine to the tested job
    }
    job_.leave();
    std::printf("sent per sum: %llu\n", static_cast<unsigned long long>(bytes_sent_) /
                                            static_cast<unsigned long long>(ended_));
    return 0;
  }

 private:
  void start_op() {
    const bool done = job_.rank() == 0 && started_ > 0 && std::filesystem::exists(stop_file_);
    std::vector<float>& tensor = tensors_[static_cast<std::size_t>(started_) % tensors_.size()];
    fill(tensor, job_.rank(), job_.world_size(), started_++, done);
    Pending& pending = pending_.emplace_back();
    if (!of_pairs_) {
      pending.dense = job_.all_reduce(std::span(tensor));
      return;
    }
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      if (tensor[i] == 0) continue;
      pending.keys.push_back(i);
      pending.values.push_back(tensor[i]);
    }
    pending.sparse =
        job_.all_reduce({.keys = pending.keys, .values = pending.values.data()}, tensor.size());
  }

  const std::vector<float>& wait() {
    const Clock::time_point begin = Clock::now();
    std::vector<float>& tensor = tensors_[static_cast<std::size_t>(ended_) % tensors_.size()];
    const Pending& pending = pending_.front();
    if (of_pairs_) {
      pending.sparse.wait();
      pending.sparse.copy_to_dense(tensor.data(), tensor.size(), sluice::ElementType::kFloat32);
    } else {
      pending.dense.wait();
    }
    bytes_sent_ +=
        (of_pairs_ ? pending.sparse.statistics() : pending.dense.statistics()).bytes_sent;
    pending_.pop_front();
    if (const auto end = Clock::now(); ended_ > 0 && end - begin > kLongWait)
      std::printf("waited from %.6f to %.6f\n", seconds(begin), seconds(end));
    return tensor;
  }

  const std::filesystem::path stop_file_;
  const sluice::JobOptions options_;         // read before a context waits for daemons
  std::vector<std::vector<float>> tensors_;  // used one after the other
  sluice::Context context_;
  sluice::Communicator job_;
  const std::uint16_t ranks_per_host_ = told("RANKS_PER_HOST", 1);
  const bool of_pairs_ = told("PAIRS", 0) != 0;
  std::deque<Pending> pending_;
  std::uint64_t bytes_sent_ = 0;
  int started_ = 0;
  int ended_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    return SteadyJob(argv[1], argument(argc, argv, 2, 20'000), argument(argc, argv, 3, 1)).run();
  } catch (const sluice::Error& error) {
    tell(error);
    return 3;
  }
}
