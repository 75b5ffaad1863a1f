// How fast one machine can sum: what Sluice's shared memory is measured against. Ranks and a
// process that sums, all forked from this one; fp32, dense. The summing process reads each rank's
// tensor where it lies, writes each sum once into a window that all ranks see, and they copy out of
// it. With `slots` the tensors are private, and ranks first copy them into slots, piece by piece.
// Nothing is lost, nobody fails, no block is zero: this is a ceiling, not a design.
//
//   bench-shared-sum RANKS MIB RUNS {tensors|slots}     prints milliseconds, one run a line
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sluice/types.hpp>

#include "common/memory/region.hpp"
#include "common/numeric/kernels.hpp"

namespace {

using sluice::memory::OwnRegion;
using Word = std::atomic<std::uint32_t>;

constexpr std::size_t kRanksMost = 64;
constexpr std::size_t kPieceBytes = 256 << 10;
constexpr std::size_t kPieceElements = kPieceBytes / sizeof(float);
constexpr std::uint32_t kWindowPieces = 64;  // 16 MiB
constexpr std::uint32_t kSlotsOfRank = 2;    // 512 KiB

/// How far everybody is, in pieces since the program began. Each word has a cache line of its own.
struct Progress {
  struct alignas(128) Counter {
    Word pieces{0};
  };
  Counter summed;
  Counter given[kRanksMost];   // lies where the summing process may read it
  Counter copied[kRanksMost];  // out of the window
};

void wake(Word& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void advance(Word& word, std::uint32_t to) {
  word.store(to, std::memory_order_release);
  wake(word);
}

/// Until it is `at_least` so much. There are more processes than cores: sleeps soon.
void await(Word& word, std::uint32_t at_least) {
  for (int spins = 0;;) {
    const std::uint32_t now = word.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(now - at_least) >= 0) return;
    if (++spins < 200) continue;
    syscall(SYS_futex, &word, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

struct Plan {
  std::uint32_t ranks = 0;
  std::uint32_t pieces = 0;  // of a tensor
  std::uint32_t runs = 0;
  bool slots = false;
};

/// What a rank shares, and what all do.
struct Shared {
  Progress& progress;
  float* window;
  std::vector<float*> of_rank;  // its tensor, or its slots
};

void sum(const Plan& plan, const Shared& shared) {
  const auto& kernels =
      sluice::numeric::block_reduction(sluice::ElementType::kFloat32, sluice::Reduction::kSum);
  constexpr std::size_t kBlock = 4096;  // elements: an accumulator that stays in the first cache
  alignas(sluice::numeric::kAccumulatorAlignment) static float accumulator[kBlock];
  for (std::uint32_t done = 0; done < plan.runs * plan.pieces; ++done) {
    for (std::uint32_t r = 0; r < plan.ranks; ++r) {
      await(shared.progress.given[r].pieces, done + 1);
      if (done >= kWindowPieces) await(shared.progress.copied[r].pieces, done - kWindowPieces + 1);
    }
    const std::uint32_t at = plan.slots ? done % kSlotsOfRank : done % plan.pieces;
    float* const out = shared.window + std::size_t{done % kWindowPieces} * kPieceElements;
    for (std::size_t begin = 0; begin < kPieceElements; begin += kBlock) {
      const std::size_t from = std::size_t{at} * kPieceElements + begin;
      for (std::uint32_t r = 0; r < plan.ranks; ++r) {
        const auto* const in = reinterpret_cast<const std::byte*>(shared.of_rank[r] + from);
        (r == 0 ? kernels.load : kernels.combine)(accumulator, in, kBlock);
      }
      kernels.store(reinterpret_cast<std::byte*>(out + begin), accumulator, kBlock, plan.ranks);
    }
    advance(shared.progress.summed.pieces, done + 1);
  }
}

void check(const float* tensor, const Plan& plan) {
  const auto expected = static_cast<float>(plan.ranks * (plan.ranks + 1) / 2);
  for (std::size_t i = 0; i < std::size_t{plan.pieces} * kPieceElements; ++i) {
    if (tensor[i] == expected) continue;
    std::fprintf(stderr, "bench-shared-sum: element %zu is %g, not %g\n", i, tensor[i], expected);
    std::_Exit(1);
  }
}

void take_part(std::uint32_t rank, const Plan& plan, const Shared& shared,
               const std::function<void()>& barrier) {
  const std::size_t elements = std::size_t{plan.pieces} * kPieceElements;
  std::vector<float> own(plan.slots ? elements : 0);
  float* const tensor = plan.slots ? own.data() : shared.of_rank[rank];
  Word& given = shared.progress.given[rank].pieces;
  for (std::uint32_t run = 0; run < plan.runs; ++run) {
    std::fill_n(tensor, elements, static_cast<float>(rank + 1));
    barrier();
    const auto start = std::chrono::steady_clock::now();
    const std::uint32_t base = run * plan.pieces;
    std::uint32_t sent = 0;
    const auto give = [&](std::uint32_t until) {
      for (; sent < until; ++sent)
        std::copy_n(tensor + std::size_t{sent} * kPieceElements, kPieceElements,
                    shared.of_rank[rank] + (base + sent) % kSlotsOfRank * kPieceElements);
      advance(given, base + sent);
    };
    if (!plan.slots) advance(given, base + plan.pieces);
    for (std::uint32_t piece = 0; piece < plan.pieces; ++piece) {
      if (plan.slots) give(std::min(plan.pieces, piece + kSlotsOfRank));
      await(shared.progress.summed.pieces, base + piece + 1);
      std::copy_n(shared.window + std::size_t{(base + piece) % kWindowPieces} * kPieceElements,
                  kPieceElements, tensor + std::size_t{piece} * kPieceElements);
      advance(shared.progress.copied[rank].pieces, base + piece + 1);
    }
    barrier();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (rank == 0) std::printf("%.3f\n", time.count()), std::fflush(stdout);
    check(tensor, plan);
  }
}

/// All ranks meet. The counter says who has come, in all rounds together.
std::function<void()> barrier_of(Word& arrivals, std::uint32_t ranks) {
  return [&arrivals, ranks, round = std::uint32_t{0}]() mutable {
    const std::uint32_t all = ++round * ranks;
    if (arrivals.fetch_add(1) + 1 == all) wake(arrivals);
    await(arrivals, all);
  };
}

void run(const Plan& plan) {
  const auto make = [](std::size_t bytes) {
    return OwnRegion("bench-shared-sum", bytes, OwnRegion::Writers::kTrusted);
  };
  const auto floats = [](const OwnRegion& region) {
    return reinterpret_cast<float*>(region.bytes().data());
  };
  const OwnRegion progress = make(sizeof(Progress) + sizeof(Progress::Counter));
  auto* const counters = new (progress.bytes().data()) Progress;
  auto* const arrivals = new (progress.bytes().data() + sizeof(Progress)) Progress::Counter;
  const OwnRegion window = make(kWindowPieces * kPieceBytes);
  std::vector<OwnRegion> regions;
  Shared shared{*counters, floats(window), {}};
  for (std::uint32_t r = 0; r < plan.ranks; ++r) {
    regions.push_back(make((plan.slots ? kSlotsOfRank : plan.pieces) * kPieceBytes));
    shared.of_rank.push_back(floats(regions.back()));
  }
  const auto fork_to = [](const auto& work) {
    if (fork() == 0) {
      work();
      std::_Exit(0);
    }
  };
  fork_to([&] { sum(plan, shared); });
  for (std::uint32_t r = 0; r < plan.ranks; ++r)
    fork_to([&] { take_part(r, plan, shared, barrier_of(arrivals->pieces, plan.ranks)); });
  int status = 0;
  bool failed = false;
  while (wait(&status) > 0) failed |= status != 0;
  if (failed) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc == 5 ? argv[4] : "";
  if (how != "tensors" && how != "slots") {
    std::fprintf(stderr, "usage: bench-shared-sum RANKS MIB RUNS {tensors|slots}\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::atoi(argv[i])); };
  const Plan plan{.ranks = number(1),
                  .pieces = number(2) * static_cast<std::uint32_t>((1 << 20) / kPieceBytes),
                  .runs = number(3),
                  .slots = how == "slots"};
  if (plan.ranks < 1 || plan.ranks > kRanksMost || plan.pieces < kSlotsOfRank || plan.runs < 1) {
    std::fprintf(stderr, "bench-shared-sum: 1..%zu ranks, 1 MiB and 1 run at least expected\n",
                 kRanksMost);
    return 2;
  }
  run(plan);
}
