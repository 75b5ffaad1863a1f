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
#include <sys/mman.h>
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
constexpr std::uint32_t kLargePieces = 64;   // 16 MiB
constexpr std::uint32_t kBatch = 4;
constexpr std::uint32_t kSlotsOfRank = 4;  // 1 MiB: as Sluice

/// What processes wait for. Each word that one of them writes has a cache line of its own.
struct alignas(128) Line {
  Word word{0};
};

/// How far everybody is, in pieces since the program began, and who sleeps until what.
struct Progress {
  struct Party {
    Line given;                                ///< lies where the summing process may read it
    Line copied;                               ///< out of the window
    std::atomic<std::int64_t> nanoseconds{0};  ///< of its last run
  };
  struct Sleeper {
    Line asleep;  ///< 1: sleeps on it
    Line until;   ///< so many pieces
  };
  Line summed;
  Party rank[kRanksMost];
  Sleeper sleeper[kRanksMost];
  Sleeper summing_sleeper;
  Line arrivals;  ///< at barriers
};

void futex(Word& word, int operation, std::uint32_t value) {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

/// Until `is_there(need)`. There are more processes than cores: sleeps soon, and then until there
/// is more to do, `is_there(enough)`, so that little is slept. Who makes it true calls wake_if().
template <class IsThere>
void await(Progress::Sleeper& self, std::uint32_t need, std::uint32_t enough, IsThere&& is_there) {
  for (int spins = 0; spins < 200; ++spins)
    if (is_there(need)) return;
  self.until.word.store(enough);
  for (;;) {
    self.asleep.word.store(1);
    if (is_there(enough)) break;
    futex(self.asleep.word, FUTEX_WAIT, 1);
  }
  self.asleep.word.store(0);
}

/// After the store on which it depends: both are sequentially consistent, so that one of the two
/// sees the other.
template <class IsThere>
void wake_if(Progress::Sleeper& sleeper, IsThere&& is_there) {
  if (sleeper.asleep.word.load() == 0 || !is_there(sleeper.until.word.load())) return;
  if (sleeper.asleep.word.exchange(0) == 1) futex(sleeper.asleep.word, FUTEX_WAKE, 1);
}

struct Plan {
  std::uint32_t ranks = 0;
  std::uint32_t pieces = 0;  // of a tensor
  std::uint32_t runs = 0;
  bool slots = false;

  /// Who has slept goes on with as many. Two parties that wait for each other's last piece would
  /// wait for ever: together at most what there is room for.
  std::uint32_t batch() const { return slots ? kSlotsOfRank / 2 : kBatch; }
  /// `pieces_more` from `done` on, within the run to which the piece `done` belongs.
  std::uint32_t within_run(std::uint32_t done, std::uint32_t pieces_more) const {
    return std::min(done + pieces_more, (done / pieces + 1) * pieces);
  }
};

/// What a rank shares, and what all do.
struct Shared {
  Progress& progress;
  float* window;
  std::vector<float*> of_rank;  // its tensor, or its slots

  /// Whether the pieces below `until` lie there, and have room in the window.
  bool can_sum(std::uint32_t ranks, std::uint32_t until) const {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const Progress::Party& rank = progress.rank[r];
      if (rank.given.word.load() < until || rank.copied.word.load() + kWindowPieces < until)
        return false;
    }
    return true;
  }
};

void sum(const Plan& plan, const Shared& shared) {
  const auto& kernels =
      sluice::numeric::block_reduction(sluice::ElementType::kFloat32, sluice::Reduction::kSum);
  constexpr std::size_t kBlock = 4096;  // elements: an accumulator that stays in the first cache
  alignas(sluice::numeric::kAccumulatorAlignment) static float accumulator[kBlock];
  Progress& progress = shared.progress;
  for (std::uint32_t done = 0; done < plan.runs * plan.pieces; ++done) {
    await(progress.summing_sleeper, done + 1, plan.within_run(done, plan.batch()),
          [&](std::uint32_t until) { return shared.can_sum(plan.ranks, until); });
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
    progress.summed.word.store(done + 1);
    for (std::uint32_t r = 0; r < plan.ranks; ++r)
      wake_if(progress.sleeper[r], [&](std::uint32_t until) { return done + 1 >= until; });
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

/// As any program's, in huge pages where the kernel has some.
float* ordinary_tensor(std::size_t elements) {
  constexpr std::size_t kHugePage = sluice::memory::kHugePage;
  const std::size_t bytes = (elements * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) std::_Exit(1);
  madvise(memory, bytes, MADV_HUGEPAGE);  // a wish
  return static_cast<float*>(memory);
}

/// A piece; past the caches where the tensor is large, as Sluice does.
void copy_out(const float* sums, float* tensor, bool is_large) {
  if (!is_large) {
    std::copy_n(sums, kPieceElements, tensor);
    return;
  }
  sluice::numeric::copy_past_caches(reinterpret_cast<std::byte*>(tensor),
                                    reinterpret_cast<const std::byte*>(sums), kPieceBytes);
  sluice::numeric::finish_copies_past_caches();
}

/// A run took as long as its slowest rank, as with sluice-perf.
void print_slowest(const Plan& plan, const Progress& progress) {
  std::int64_t most = 0;
  for (std::uint32_t r = 0; r < plan.ranks; ++r)
    most = std::max(most, progress.rank[r].nanoseconds.load());
  std::printf("%.3f\n", static_cast<double>(most) / 1e6);
  std::fflush(stdout);
}

void take_part(std::uint32_t rank, const Plan& plan, const Shared& shared,
               const std::function<void()>& barrier) {
  const std::size_t elements = std::size_t{plan.pieces} * kPieceElements;
  float* const tensor = plan.slots ? ordinary_tensor(elements) : shared.of_rank[rank];
  Progress& progress = shared.progress;
  Progress::Party& self = progress.rank[rank];
  const auto tell = [&](Word& word, std::uint32_t pieces) {
    word.store(pieces);
    wake_if(progress.summing_sleeper,
            [&](std::uint32_t until) { return shared.can_sum(plan.ranks, until); });
  };
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
      tell(self.given.word, base + sent);
    };
    if (!plan.slots) tell(self.given.word, base + plan.pieces);
    for (std::uint32_t piece = 0; piece < plan.pieces; ++piece) {
      if (plan.slots) give(std::min(plan.pieces, piece + kSlotsOfRank));
      await(progress.sleeper[rank], base + piece + 1, plan.within_run(base + piece, plan.batch()),
            [&](std::uint32_t until) { return progress.summed.word.load() >= until; });
      copy_out(shared.window + std::size_t{(base + piece) % kWindowPieces} * kPieceElements,
               tensor + std::size_t{piece} * kPieceElements, plan.pieces >= kLargePieces);
      tell(self.copied.word, base + piece + 1);
    }
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
    self.nanoseconds.store(time.count());
    barrier();
    if (rank == 0) print_slowest(plan, progress);
    check(tensor, plan);
  }
}

/// All ranks meet. The word counts who has come, in all rounds together.
std::function<void()> barrier_of(Word& arrivals, std::uint32_t ranks) {
  return [&arrivals, ranks, round = std::uint32_t{0}]() mutable {
    const std::uint32_t all = ++round * ranks;
    std::uint32_t now = arrivals.fetch_add(1) + 1;
    if (now == all) return futex(arrivals, FUTEX_WAKE, INT32_MAX);
    for (; now < all; now = arrivals.load()) futex(arrivals, FUTEX_WAIT, now);
  };
}

void run(const Plan& plan) {
  const auto make = [](std::size_t bytes) {
    return OwnRegion("bench-shared-sum", bytes, OwnRegion::Writers::kTrusted);
  };
  const auto floats = [](const OwnRegion& region) {
    return reinterpret_cast<float*>(region.bytes().data());
  };
  const OwnRegion counters = make(sizeof(Progress));
  auto& progress = *new (counters.bytes().data()) Progress;
  const OwnRegion window = make(kWindowPieces * kPieceBytes);
  std::vector<OwnRegion> regions;
  Shared shared{progress, floats(window), {}};
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
    fork_to([&] { take_part(r, plan, shared, barrier_of(progress.arrivals.word, plan.ranks)); });
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
