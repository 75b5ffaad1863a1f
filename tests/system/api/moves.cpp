// Collectives that move elements.
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "tests/system/api/bits.hpp"
#include "tests/system/api/check.hpp"

namespace sluice::api_test {
namespace {

template <class T>
void broadcast(Communicator& job, std::uint64_t count) {
  for (std::uint16_t root = 0; root < job.world_size(); ++root) {
    // The other ranks' data must be overwritten.
    std::vector<T> tensor = elements<T>(count, job.rank());
    job.broadcast(std::span(tensor), root).wait();
    check(same<T>(tensor, elements<T>(count, root)),
          "broadcast of " + std::to_string(count) + " " +
              std::string(name(ElementTypeOf<T>::kValue)) + " from " + std::to_string(root));
  }
}

/// The ranks' parts one after the other, and where the part of rank r begins.
template <class T>
struct Gathered {
  explicit Gathered(const std::vector<std::uint64_t>& counts) {
    for (unsigned r = 0; r < counts.size(); ++r) {
      begins.push_back(all.size());
      const std::vector<T> part = elements<T>(counts[r], r);
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  std::vector<std::uint64_t> begins;
  std::vector<T> all;
};

template <class T>
void gather(Communicator& job, const std::vector<std::uint64_t>& counts, bool in_place) {
  const Gathered<T> expected(counts);
  const std::uint64_t count = counts[job.rank()];
  std::vector<T> part = elements<T>(count, job.rank());
  std::vector<T> output = elements<T>(expected.all.size(), 99);
  T* const place = output.data() + expected.begins[job.rank()];
  if (in_place && count != 0) std::memcpy(place, part.data(), count * sizeof(T));
  const void* const input = in_place ? place : part.data();
  job.all_gather(input, output.data(), counts, ElementTypeOf<T>::kValue).wait();
  check(same<T>(output, expected.all), "all_gather of " + std::to_string(output.size()) + " " +
                                           std::string(name(ElementTypeOf<T>::kValue)) +
                                           (in_place ? " in place" : ""));
  check(same<T>(part, elements<T>(count, job.rank())), "all_gather leaves its input");
}

/// As all_gather, but only to the root; then the reverse.
template <class T>
void gather_and_scatter(Communicator& job, const std::vector<std::uint64_t>& counts,
                        std::uint16_t root, bool in_place) {
  constexpr ElementType kType = ElementTypeOf<T>::kValue;
  const bool is_root = job.rank() == root;
  const Gathered<T> expected(counts);
  const std::uint64_t count = counts[job.rank()];
  std::vector<T> part = elements<T>(count, job.rank());
  std::vector<T> whole = is_root ? elements<T>(expected.all.size(), 99) : std::vector<T>();
  T* own = part.data();
  if (is_root && in_place) {
    own = whole.data() + expected.begins[job.rank()];
    std::copy(part.begin(), part.end(), own);
  }
  const std::string what = std::to_string(expected.all.size()) + " " + std::string(name(kType)) +
                           (in_place ? " in place" : "");
  job.gather(own, is_root ? whole.data() : nullptr, counts, kType, root).wait();
  if (is_root) check(same<T>(whole, expected.all), "gather of " + what);
  check(same<T>(part, elements<T>(count, job.rank())), "gather leaves its input");
  std::fill(part.begin(), part.end(), T{});
  job.scatter(is_root ? whole.data() : nullptr, own, counts, kType, root).wait();
  check(same<T>(std::span<const T>(own, count), elements<T>(count, job.rank())),
        "scatter of " + what);
  if (is_root) check(same<T>(whole, expected.all), "scatter leaves its input");
}

/// Rank `from` sends `unit` * (from + 2 * to) elements to rank `to`, but rank 1 sends none to
/// itself.
template <class T>
void exchange(Communicator& job, std::uint64_t unit) {
  const unsigned ranks = job.world_size();
  std::vector<std::uint64_t> counts;
  for (unsigned from = 0; from < ranks; ++from)
    for (unsigned to = 0; to < ranks; ++to)
      counts.push_back(from == 1 && to == 1 ? 0 : unit * (from + 2 * to));
  std::vector<T> input;
  std::vector<T> expected;
  for (unsigned other = 0; other < ranks; ++other) {
    const std::vector<T> sent =
        elements<T>(counts[job.rank() * ranks + other], 10 * job.rank() + other);
    input.insert(input.end(), sent.begin(), sent.end());
    const std::vector<T> got =
        elements<T>(counts[other * ranks + job.rank()], 10 * other + job.rank());
    expected.insert(expected.end(), got.begin(), got.end());
  }
  std::vector<T> output = elements<T>(expected.size(), 99);
  job.all_to_all(input.data(), output.data(), counts, ElementTypeOf<T>::kValue).wait();
  check(same<T>(output, expected), "all_to_all of parts of " + std::to_string(unit) + " " +
                                       std::string(name(ElementTypeOf<T>::kValue)) +
                                       " and multiples");
}

}  // namespace

void broadcasts_from_every_root(const Setting& setting) {
  Communicator job = setting.join(1);
  for (const std::uint64_t count : {0u, 1u, 255u, 256u, 5000u, 300'001u}) {
    broadcast<float>(job, count);
    broadcast<Float16>(job, count);
    broadcast<double>(job, count);
    broadcast<std::uint8_t>(job, count);
  }
}

/// The root's tensor is only read, for example from a file that is mapped read-only.
void broadcasts_what_is_read_only(const Setting& setting) {
  Communicator job = setting.join(1);
  constexpr std::size_t kBytes = 1 << 16;
  const bool is_root = job.rank() == 0;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "memory for a tensor");
  std::memset(memory, is_root ? 7 : 9, kBytes);
  if (is_root) mprotect(memory, kBytes, PROT_READ);
  job.broadcast(memory, kBytes, ElementType::kInt8, 0).wait();
  const auto* const bytes = static_cast<const std::byte*>(memory);
  check(std::all_of(bytes, bytes + kBytes, [](std::byte b) { return b == std::byte{7}; }),
        "broadcast of a read-only tensor");
  munmap(memory, kBytes);
}

void gathers_of_equal_parts(const Setting& setting) {
  Communicator job = setting.join(1);
  const std::uint64_t count = 10'007;
  const Gathered<float> expected(std::vector<std::uint64_t>(job.world_size(), count));
  const std::vector<float> part = elements<float>(count, job.rank());
  std::vector<float> output(expected.all.size(), 99.0F);
  const Work work = job.all_gather(std::span<const float>(part), std::span(output));
  work.wait();
  check(same<float>(output, expected.all), "all_gather of equal parts");
  const OpStatistics cost = work.statistics();
  check(setting.has_hosts ||
            cost.blocks_sent <= count / job.block_elements(ElementType::kFloat32) + 2,
        "a rank sends its own part only");
}

void gathers_of_any_parts(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<std::uint64_t> counts(job.world_size());
  for (const std::uint64_t unit : {0u, 1u, 100u, 12'345u})
    for (const bool in_place : {false, true}) {
      for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = r % 3 == 1 ? 0 : unit * (r + 1);
      gather<float>(job, counts, in_place);
      gather<BFloat16>(job, counts, in_place);
      gather<std::int64_t>(job, counts, in_place);
      gather<std::int8_t>(job, counts, in_place);
    }
}

void scatters_from_every_root(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<std::uint64_t> counts(job.world_size());
  for (std::uint16_t root = 0; root < job.world_size(); ++root)
    for (const std::uint64_t unit : {0u, 1u, 100u, 12'345u})
      for (const bool in_place : {false, true}) {
        for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = r % 3 == 1 ? 0 : unit * (r + 1);
        gather_and_scatter<float>(job, counts, root, in_place);
        gather_and_scatter<std::uint8_t>(job, counts, root, in_place);
      }
}

void parts_for_every_rank(const Setting& setting) {
  Communicator job = setting.join(1);
  for (const std::uint64_t unit : {0u, 1u, 50u, 4'321u}) {
    exchange<float>(job, unit);
    exchange<Float16>(job, unit);
    exchange<double>(job, unit);
    exchange<std::uint8_t>(job, unit);
  }
}

void moves_are_checked(const Setting& setting) {
  Communicator job = setting.join(1);
  std::vector<float> tensor(100);
  const auto refused = [](const std::string& what, const std::function<void()>& call) {
    check_says(error_of(ErrorCode::kInvalidArgument, what, call), what);
  };
  refused("broadcast: root", [&] { job.broadcast(std::span(tensor), job.world_size()); });
  refused("broadcast: a tensor is null",
          [&] { job.broadcast(nullptr, 1, ElementType::kFloat32, 0); });
  refused("all_gather: output has 100 elements", [&] {
    job.all_gather(std::span<const float>(tensor).first(job.world_size() == 1 ? 99 : 100),
                   std::span(tensor));
  });
  const std::vector<std::uint64_t> counts(job.world_size() + 1u, 1);
  refused("counts, world_size",
          [&] { job.all_gather(tensor.data(), tensor.data(), counts, ElementType::kFloat32); });
  const std::vector<std::uint64_t> huge(job.world_size(), std::uint64_t{1} << 62);
  refused("all_gather: ",
          [&] { job.all_gather(tensor.data(), tensor.data() + 1, huge, ElementType::kFloat32); });
  const std::vector<std::uint64_t> fives(job.world_size(), 5);
  refused("overlap", [&] {
    job.all_gather(tensor.data() + 5u * job.rank() + 1, tensor.data(), fives,
                   ElementType::kFloat32);
  });
  refused("reduce: root", [&] {
    job.reduce(tensor.data(), tensor.data(), 100, ElementType::kFloat32, job.world_size());
  });
  refused("reduce_scatter: a tensor is null",
          [&] { job.reduce_scatter(tensor.data(), nullptr, fives, ElementType::kFloat32); });
  refused("reduce_scatter: input and output overlap", [&] {
    job.reduce_scatter(tensor.data(), tensor.data() + 5u * job.rank() + 1, fives,
                       ElementType::kFloat32);
  });
  refused("scatter: a tensor is null",
          [&] { job.scatter(nullptr, tensor.data(), fives, ElementType::kFloat32, job.rank()); });
  const std::size_t pairs = std::size_t{job.world_size()} * job.world_size();
  refused("counts, world_size^2 = " + std::to_string(pairs) + " expected", [&] {
    job.all_to_all(tensor.data(), tensor.data() + 50, std::vector<std::uint64_t>(pairs + 1, 1),
                   ElementType::kFloat32);
  });
  if (job.world_size() > 1)
    refused("all_to_all: input and output overlap", [&] {
      job.all_to_all(tensor.data(), tensor.data(), std::vector<std::uint64_t>(pairs, 1),
                     ElementType::kFloat32);
    });
  ReduceOptions bits;
  bits.reduction = Reduction::kBitOr;
  refused("reduction bor is one of integers, not of float",
          [&] { job.all_reduce(std::span(tensor), bits); });
}

/// Each of these ends the job on all ranks.
void moves_that_ranks_disagree_about(const Setting& setting) {
  std::vector<float> tensor(100);
  const std::vector<float> part(10);
  const auto disagree = [&](const std::string& what, auto&& start) {
    Communicator job = setting.join(9);
    Communicator signal = setting.join(2);
    job.barrier().wait();
    // Otherwise the end of the job may meet a rank without that op's result.
    signal.barrier().wait();
    const Work work = start(job, job.rank() == 0);
    check_says(error_of(ErrorCode::kOpMismatch, what, [&] { work.wait(); }), what);
  };
  disagree("root", [&](Communicator& job, bool first) {
    return job.broadcast(std::span(tensor), first ? 0 : 1);
  });
  disagree("broadcast", [&](Communicator& job, bool first) {
    return first ? job.broadcast(std::span(tensor), 0) : job.barrier();
  });
  disagree("checksum of the ranks' counts", [&](Communicator& job, bool first) {
    std::vector<std::uint64_t> counts(job.world_size(), 0);
    counts[first ? 0 : 1] = 10;  // the sum is the same
    return job.all_gather(part.data(), tensor.data(), counts, ElementType::kFloat32);
  });
}

}  // namespace sluice::api_test
