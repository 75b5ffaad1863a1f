// How fast the ranks of one machine can sum among themselves; Sluice is compared with it. All ranks
// are forked from this process; they sum fp32 in place. Each rank sums its share of the elements
// over all ranks' tensors, lowest rank first, and stores the sums into all of them: every tensor is
// read once and written once. Blocks that no rank has are neither added nor written. Nothing is
// lost and no rank fails: this is an upper bound, not a design.
//
//   bench-host-sum RANKS MIB RUNS DENSITY {shared|ordinary}    prints milliseconds, one run a line
//
// Tensors are in shared memory; or they are ordinary ones, which ranks read and write by
// process_vm_readv(2) and process_vm_writev(2), piece by piece.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sluice/types.hpp>

#include "common/numeric/kernels.hpp"
#include "worker/memory/region.hpp"

namespace {

using sluice::memory::OwnRegion;
using Word = std::atomic<std::uint32_t>;

constexpr std::size_t kRanksMost = 64;
constexpr std::size_t kBlock = 256;                      // elements
constexpr std::size_t kBlocksOfPiece = 64;               // 64 KiB
constexpr std::size_t kPiece = kBlock * kBlocksOfPiece;  // elements
constexpr std::size_t kPiecesOfMib = (1 << 20) / sizeof(float) / kPiece;

const sluice::numeric::BlockReduction& kernels() {
  static const auto& of_fp32 =
      sluice::numeric::block_reduction(sluice::ElementType::kFloat32, sluice::Reduction::kSum);
  return of_fp32;
}

/// What each rank publishes. Each word has its own cache line.
struct alignas(128) Line {
  Word word{0};
};
struct Board {
  struct Rank {
    std::atomic<float*> tensor{nullptr};  ///< its address in that rank's memory
    std::atomic<pid_t> process{0};
    std::atomic<std::int64_t> nanoseconds{0};  ///< of its last run
  };
  Rank rank[kRanksMost];
  Line arrivals;  ///< at the barriers
};

void futex(Word& word, int operation, std::uint32_t value) {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

/// All ranks wait for each other. The word counts the arrivals in all rounds together. There may be
/// more ranks than cores, so a rank that waits soon sleeps.
class Barrier {
 public:
  Barrier(Word& arrivals, std::uint32_t ranks) : arrivals_(arrivals), ranks_(ranks) {}

  void meet() {
    all_ += ranks_;
    std::uint32_t now = arrivals_.fetch_add(1) + 1;
    if (now == all_) return futex(arrivals_, FUTEX_WAKE, INT32_MAX);
    for (int spins = 0; spins < 200 && is_before(now); ++spins) now = arrivals_.load();
    for (; is_before(now); now = arrivals_.load()) futex(arrivals_, FUTEX_WAIT, now);
  }

 private:
  /// The first rank that leaves may have arrived at the next round already.
  bool is_before(std::uint32_t now) const { return static_cast<std::int32_t>(now - all_) < 0; }

  Word& arrivals_;
  const std::uint32_t ranks_;
  std::uint32_t all_ = 0;
};

struct Plan {
  std::uint32_t ranks = 0;
  std::uint32_t pieces = 0;  // of a tensor
  std::uint32_t runs = 0;
  double density = 1;
  bool is_shared = false;  // whether the tensors are in shared memory

  std::size_t elements() const { return std::size_t{pieces} * kPiece; }
};

// ------------------------------------------------------------------------------------- one piece
using Bits = std::uint64_t;  // of the blocks of a piece
static_assert(kBlocksOfPiece == 64);

/// One piece of all ranks' tensors, by addresses in this process.
using Piece = std::vector<float*>;

std::vector<Bits> search(const Piece& piece) {
  std::vector<Bits> nonzero(piece.size(), 0);
  for (std::size_t r = 0; r < piece.size(); ++r) {
    const sluice::numeric::BlockedTensor tensor{reinterpret_cast<const std::byte*>(piece[r]),
                                                kPiece, kBlock, sluice::ElementType::kFloat32};
    sluice::numeric::mark_nonzero_blocks(tensor, 0, kBlocksOfPiece, &nonzero[r]);
  }
  return nonzero;
}

/// Returns the blocks that some rank has; these are written.
Bits sum(const Piece& piece, bool is_dense) {
  alignas(sluice::numeric::kAccumulatorAlignment) static float accumulator[kPiece];
  const std::vector<Bits> nonzero =
      is_dense ? std::vector<Bits>(piece.size(), ~Bits{0}) : search(piece);
  Bits all = 0;
  for (const Bits bits : nonzero) all |= bits;
  const auto bytes = [](float* at) { return reinterpret_cast<std::byte*>(at); };
  // Dense pieces are summed in runs of blocks that stay in the L1 cache.
  const std::size_t step = is_dense ? 16 : 1;
  for (std::size_t block = 0; block < kBlocksOfPiece; block += step) {
    if ((all >> block & 1) == 0) continue;
    const std::size_t count = step * kBlock;
    bool is_first = true;
    for (std::size_t r = 0; r < piece.size(); ++r) {
      if ((nonzero[r] >> block & 1) == 0) continue;
      (is_first ? kernels().load : kernels().combine)(accumulator, bytes(piece[r] + block * kBlock),
                                                      count);
      is_first = false;
    }
    for (float* const at : piece)
      kernels().store(bytes(at + block * kBlock), accumulator, count,
                      static_cast<std::uint32_t>(piece.size()));
  }
  return all;
}

// -------------------------------------------------------------------------------- how it is
// reached
/// Tensors that this process has mapped.
class Mapped {
 public:
  explicit Mapped(std::vector<float*> tensors) : tensors_(std::move(tensors)) {}

  void sum_piece(std::size_t piece, bool is_dense) {
    Piece here = tensors_;
    for (float*& at : here) at += piece * kPiece;
    sum(here, is_dense);
  }

 private:
  const std::vector<float*> tensors_;
};

/// Tensors in the other processes' own memory: a piece is copied before it is summed, and what was
/// written is copied back.
class Copied {
 public:
  Copied(const Board& board, const Plan& plan, std::uint32_t self)
      : board_(board), plan_(plan), self_(self), copies_(plan.ranks * kPiece) {}

  void sum_piece(std::size_t piece, bool is_dense) {
    Piece here;
    for (std::uint32_t r = 0; r < plan_.ranks; ++r) {
      if (r == self_) {
        here.push_back(theirs(r, piece));
        continue;
      }
      here.push_back(&copies_[r * kPiece]);
      const iovec local{here.back(), kPiece * sizeof(float)};
      const iovec remote{theirs(r, piece), kPiece * sizeof(float)};
      check(process_vm_readv(board_.rank[r].process, &local, 1, &remote, 1, 0), local.iov_len);
    }
    const Bits written = sum(here, is_dense);
    for (std::uint32_t r = 0; r < plan_.ranks; ++r)
      if (r != self_) write_back(r, here[r], theirs(r, piece), written);
  }

 private:
  float* theirs(std::uint32_t rank, std::size_t piece) const {
    return board_.rank[rank].tensor + piece * kPiece;
  }

  /// Neighbouring blocks are copied together.
  void write_back(std::uint32_t rank, float* from, float* to, Bits written) const {
    iovec local[kBlocksOfPiece];
    iovec remote[kBlocksOfPiece];
    std::size_t count = 0;
    std::size_t size = 0;
    for (std::size_t block = 0; block < kBlocksOfPiece;) {
      const auto gap = static_cast<std::size_t>(std::countr_zero(written >> block));
      if (written >> block == 0) break;
      block += gap;
      const auto run = static_cast<std::size_t>(std::countr_one(written >> block));
      const std::size_t bytes = run * kBlock * sizeof(float);
      local[count] = {from + block * kBlock, bytes};
      remote[count++] = {to + block * kBlock, bytes};
      size += bytes;
      if ((block += run) == kBlocksOfPiece) break;
    }
    if (count != 0)
      check(process_vm_writev(board_.rank[rank].process, local, count, remote, count, 0), size);
  }

  static void check(ssize_t done, std::size_t expected) {
    if (done == static_cast<ssize_t>(expected)) return;
    std::perror("bench-host-sum: the kernel does not let ranks reach each other's memory");
    std::_Exit(1);
  }

  const Board& board_;
  const Plan& plan_;
  const std::uint32_t self_;
  std::vector<float> copies_;
};

// -------------------------------------------------------------------------------------- the ranks
/// Which blocks a rank has; it is the same in every process.
std::vector<bool> drawn_blocks(const Plan& plan, std::uint32_t rank) {
  std::mt19937 random(rank + 1);
  std::bernoulli_distribution has(plan.density);
  std::vector<bool> blocks(plan.pieces * kBlocksOfPiece);
  for (std::size_t b = 0; b < blocks.size(); ++b) blocks[b] = has(random);
  return blocks;
}

class Values {
 public:
  Values(const Plan& plan, std::uint32_t rank) : own_(drawn_blocks(plan, rank)), rank_(rank) {
    sums_.resize(own_.size());
    for (std::uint32_t r = 0; r < plan.ranks; ++r) {
      const std::vector<bool> blocks = drawn_blocks(plan, r);
      for (std::size_t b = 0; b < blocks.size(); ++b) sums_[b] += blocks[b] ? value(r) : 0;
    }
  }

  void fill(float* tensor) const {
    for (std::size_t b = 0; b < own_.size(); ++b)
      std::fill_n(tensor + b * kBlock, kBlock, own_[b] ? value(rank_) : 0.0F);
  }

  void check(const float* tensor) const {
    for (std::size_t i = 0; i < sums_.size() * kBlock; ++i) {
      const float expected = sums_[i / kBlock];
      if (tensor[i] == expected) continue;
      std::fprintf(stderr, "bench-host-sum: element %zu is %g, not %g\n", i, tensor[i], expected);
      std::_Exit(1);
    }
  }

 private:
  static float value(std::uint32_t rank) { return static_cast<float>(rank + 1); }

  const std::vector<bool> own_;
  const std::uint32_t rank_;
  std::vector<float> sums_;
};

/// As in any program, with huge pages if the kernel has some.
float* ordinary_tensor(std::size_t elements) {
  constexpr std::size_t kHugePage = sluice::memory::kHugePage;
  const std::size_t bytes = (elements * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) std::_Exit(1);
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint
  return static_cast<float*>(memory);
}

/// A run takes as long as its slowest rank, as with sluice-perf.
void print_slowest(const Plan& plan, const Board& board) {
  std::int64_t most = 0;
  for (std::uint32_t r = 0; r < plan.ranks; ++r)
    most = std::max(most, board.rank[r].nanoseconds.load());
  std::printf("%.3f\n", static_cast<double>(most) / 1e6);
  std::fflush(stdout);
}

template <class Tensors>
void take_part(std::uint32_t rank, const Plan& plan, Board& board, Tensors tensors) {
  float* const tensor = board.rank[rank].tensor;
  const Values values(plan, rank);
  Barrier barrier(board.arrivals.word, plan.ranks);
  for (std::uint32_t run = 0; run < plan.runs; ++run) {
    values.fill(tensor);
    barrier.meet();
    const auto start = std::chrono::steady_clock::now();
    barrier.meet();  // the time includes the arrival of all ranks
    const std::size_t end = std::size_t{plan.pieces} * (rank + 1) / plan.ranks;
    for (std::size_t piece = std::size_t{plan.pieces} * rank / plan.ranks; piece < end; ++piece)
      tensors.sum_piece(piece, plan.density == 1);
    barrier.meet();
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
    board.rank[rank].nanoseconds = time.count();
    barrier.meet();
    if (rank == 0) print_slowest(plan, board);
    values.check(tensor);
  }
}

void run(const Plan& plan) {
  const auto make = [](std::size_t bytes) {
    return OwnRegion("bench-host-sum", bytes, OwnRegion::Writers::kTrusted);
  };
  const OwnRegion memory = make(sizeof(Board));
  auto& board = *new (memory.bytes().data()) Board;
  std::vector<OwnRegion> regions;
  std::vector<float*> shared;
  for (std::uint32_t r = 0; plan.is_shared && r < plan.ranks; ++r) {
    regions.push_back(make(plan.elements() * sizeof(float)));
    shared.push_back(reinterpret_cast<float*>(regions.back().bytes().data()));
  }
  for (std::uint32_t r = 0; r < plan.ranks; ++r) {
    if (fork() != 0) continue;
    // For systems where only ancestors may access our memory.
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    board.rank[r].process = getpid();
    board.rank[r].tensor = plan.is_shared ? shared[r] : ordinary_tensor(plan.elements());
    if (plan.is_shared)
      take_part(r, plan, board, Mapped(shared));
    else
      take_part(r, plan, board, Copied(board, plan, r));
    std::_Exit(0);
  }
  int status = 0;
  bool failed = false;
  while (wait(&status) > 0) failed |= status != 0;
  if (failed) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc == 6 ? argv[5] : "";
  if (how != "shared" && how != "ordinary") {
    std::fprintf(stderr, "usage: bench-host-sum RANKS MIB RUNS DENSITY {shared|ordinary}\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<std::uint32_t>(std::atoi(argv[i])); };
  const Plan plan{.ranks = number(1),
                  .pieces = number(2) * static_cast<std::uint32_t>(kPiecesOfMib),
                  .runs = number(3),
                  .density = std::atof(argv[4]),
                  .is_shared = how == "shared"};
  if (plan.ranks < 1 || plan.ranks > kRanksMost || plan.pieces < 1 || plan.runs < 1 ||
      plan.density <= 0 || plan.density > 1) {
    std::fprintf(
        stderr,
        "bench-host-sum: 1..%zu ranks, 1 MiB and 1 run at least, and a density above 0, at "
        "most 1, expected\n",
        kRanksMost);
    return 2;
  }
  run(plan);
}
