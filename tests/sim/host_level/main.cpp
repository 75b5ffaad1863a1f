// The engines of one host's ranks, interleaved at each access to shared memory, with deaths, stops
// and wrong calls at any step. For a seed that fails it prints how to replay it.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "common/numeric/kernels.hpp"
#include "tests/sim/bug.hpp"
#include "tests/sim/host_level/host.hpp"
#include "tests/sim/tensors.hpp"
#include "worker/host/engine/engine.hpp"

namespace {

using namespace sluice;
using namespace sluice::sim;
using namespace std::chrono_literals;
using worker::OpRequest;
using worker::host::Engine;
using worker::host::Part;

constexpr std::byte kScribble{0x66};
constexpr std::uint32_t kJob = 7;

enum class Fault {
  kNone,
  kDeath,
  kStop,
  kDeathAndStop,
  kMismatch,
  kLeaves,
  kAborts,
  kTimeout,
  kUnmapped
};
constexpr std::array kFaultNames = {"none",   "death",  "stop",     "death and stop", "mismatch",
                                    "leaves", "aborts", "time-out", "unmapped"};

/// In a job of several hosts an op is cut into chunks. The ranks want no more than one of them in
/// an op, and hold the same.
struct ChunkSpec : OpSpec {
  Range chunk;  ///< all elements, or some blocks
  bool is_whole() const { return chunk.begin == 0 && chunk.end == element_count; }
};

struct Plan {
  HostSizes sizes;
  std::size_t least_piece_bytes = 64;
  std::vector<ChunkSpec> ops;
  std::uint64_t in_flight = 1;
  Fault fault = Fault::kNone;
  LocalRank victim = 0;
  std::uint64_t victim_op = 0;
  std::uint64_t steps = 0;     // to the fault
  bool processes_end = false;  // with the job
};

std::map<std::string, std::uint64_t> coverage;

// ------------------------------------------------------------------------------------------ plans
std::vector<std::uint64_t> draw_counts(Random& random, std::uint64_t total, std::size_t parts) {
  std::vector<std::uint64_t> counts(parts);
  for (std::uint64_t left = total; left > 0;) {
    const std::uint64_t some = random.between(1, left);
    counts[random.below(parts)] += some;
    left -= some;
  }
  return counts;
}

ChunkSpec draw_op(Random& random, std::size_t ranks) {
  using wire::Collective;
  ChunkSpec op;
  op.collective = random.pick({Collective::kAllReduce, Collective::kAllReduce, Collective::kReduce,
                               Collective::kReduceScatter, Collective::kBroadcast,
                               Collective::kAllGather, Collective::kGather, Collective::kScatter,
                               Collective::kAllToAll, Collective::kBarrier});
  op.type = static_cast<ElementType>(random.between(1, 9));
  do op.reduction = static_cast<Reduction>(random.between(1, 8));
  while (!is_valid(op.type, op.reduction));
  if (moves(op)) op.reduction = Reduction::kSum;
  op.element_count = random.pick({random.below(8), random.below(200), random.below(3000)});
  if (op.collective == Collective::kBarrier) op.element_count = 0;
  if (random.chance(0.7)) op.root = static_cast<std::uint16_t>(random.below(ranks));
  switch (op.collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
      op.counts = draw_counts(random, op.element_count, ranks);
      break;
    case Collective::kAllToAll:
      op.counts = draw_counts(random, op.element_count, ranks * ranks);
      break;
    default:
      op.counts = {op.element_count};
  }
  op.tag = random.below(3);
  op.block_elements = random.pick<std::uint16_t>({1, 5, 8, 100});
  draw_encoding(random, op);
  op.density = random.pick({0.0, 0.1, 0.5, 1.0, -1.0});
  op.overlap = random.chance(0.2);
  op.seed = random.next();
  return op;
}

Range draw_chunk(Random& random, const OpSpec& op) {
  const std::uint64_t blocks = (op.element_count + op.block_elements - 1) / op.block_elements;
  const std::uint64_t first = random.below(blocks + 1);
  const auto begin_of = [&](std::uint64_t block) {
    return std::min<std::uint64_t>(block * op.block_elements, op.element_count);
  };
  return {begin_of(first), begin_of(random.between(first, blocks))};
}

Plan draw(std::uint64_t seed) {
  Random random(derive(seed, 1));
  Plan plan;
  plan.sizes.ranks = random.between(1, 8);
  plan.sizes.calls = random.between(1, 4);
  plan.sizes.slots = random.between(1, 4);
  plan.sizes.blocks = plan.sizes.slots + random.below(3);
  plan.sizes.slot_bytes = random.pick<std::size_t>({64, 128, 1024, 4096});
  plan.least_piece_bytes = random.pick<std::size_t>({64, plan.sizes.slot_bytes});
  const std::uint64_t ops = random.between(1, 12);
  for (std::uint64_t i = 0; i < ops; ++i) {
    ChunkSpec& op = plan.ops.emplace_back(draw_op(random, plan.sizes.ranks));
    op.number = i;
    const std::size_t most = plan.sizes.slot_bytes / element_bytes(op.type);  // it fits into a slot
    op.block_elements = static_cast<std::uint16_t>(std::min<std::size_t>(op.block_elements, most));
    op.chunk = random.chance(0.2) ? draw_chunk(random, op) : Range{0, op.element_count};
  }
  plan.in_flight = random.between(1, 4);
  plan.processes_end = random.chance(0.5);
  if (random.chance(0.4)) return plan;
  plan.fault = static_cast<Fault>(random.between(1, kFaultNames.size() - 1));
  plan.victim = static_cast<LocalRank>(random.below(plan.sizes.ranks));
  plan.victim_op = random.below(ops);
  plan.steps = random.below(random.pick({50, 500, 3000}));
  return plan;
}

// ------------------------------------------------------------------------------------------ ranks
/// What the rank wants of the chunk.
std::vector<Range> wanted_of(const ChunkSpec& op, unsigned rank, unsigned ranks) {
  std::vector<Range> wanted = wanted_by(op, rank, ranks);
  if (op.is_whole()) return wanted;
  for (Range& range : wanted)
    range = {std::max(range.begin, op.chunk.begin), std::min(range.end, op.chunk.end)};
  std::erase_if(wanted, [](const Range& range) { return range.begin >= range.end; });
  return wanted;
}

/// A rank's part, as the library lays it out.
Part part_of(const ChunkSpec& op, unsigned rank, unsigned ranks) {
  const auto range = [](const Range& r) { return worker::ElementRange{r.begin, r.end}; };
  Part part;
  part.held = range(held_by(op, rank, ranks));
  part.wanted.emplace();
  for (const Range& wanted : wanted_of(op, rank, ranks)) part.wanted->push_back(range(wanted));
  if (part.wanted->size() == 1 && part.wanted->front().begin == 0 &&
      part.wanted->front().end == op.element_count)
    part.wanted.reset();
  if (part.held->begin == 0 && part.held->end == op.element_count) part.held.reset();
  return part;
}

class App {
 public:
  App(Host& host, const Plan& plan, LocalRank rank, std::uint64_t seed)
      : host_(host), plan_(plan), rank_(rank), random_(derive(seed, 100 + rank)) {}

  /// Everything that this rank does.
  void run() {
    const auto board = host_.board_of(rank_);
    Engine engine(config(), *board);
    engine_ = &engine;
    std::size_t next = 0;
    const auto is_victim = [&](Fault fault) {
      return plan_.fault == fault && rank_ == plan_.victim;
    };
    while (engine.state() != Engine::State::kOver) {
      while (next < plan_.ops.size() && open_.size() < plan_.in_flight && random_.chance(0.5)) {
        if (next == plan_.victim_op && is_victim(Fault::kLeaves)) engine.leave(host_.now);
        if (next == plan_.victim_op && is_victim(Fault::kAborts))
          engine.abort(Error(ErrorCode::kAborted, "enough"),
                       {.reason = wire::AbortReason::kRankAborted, .rank_a = global(rank_)},
                       host_.now);
        if (engine.state() == Engine::State::kOver) break;
        submit(next++);
      }
      hear_of_ends();
      if (!engine.turn(host_.now)) host_.rest();
      for (worker::Completion& done : engine.take_completions()) finish(done);
      if (next == plan_.ops.size() && open_.empty() && engine.state() == Engine::State::kActive)
        engine.leave(host_.now);
    }
    for (worker::Completion& done : engine.take_completions()) finish(done);
    require(open_.empty(), "an op has no end");
    if (engine.failure()) judge(*engine.failure());
    failure_ = engine.failure();
    engine_ = nullptr;
  }

  const std::optional<Error>& failure() const { return failure_; }
  std::uint64_t right() const { return right_; }

  /// Checks that nobody writes to what a caller has back.
  void check_retired() const {
    if (host_.has_parted(rank_) || host_.is_dead(rank_)) return;
    for (const auto& memory : retired_)
      require(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == kScribble; }),
              "a tensor was written after its op's end");
  }

 private:
  struct Open {
    ChunkSpec op;
    std::vector<std::byte> input, output;
    std::vector<std::uint64_t> bitmap;
    bool in_place = false;
    bool zeros_are_there = false;
    std::optional<worker::FoundBlocks> found = {};
    std::vector<std::uint64_t> regions;
  };

  static Rank global(LocalRank rank) { return Rank{rank}; }
  unsigned ranks() const { return static_cast<unsigned>(plan_.sizes.ranks); }

  worker::host::Config config() {
    worker::host::Config config;
    config.alias = {.job = std::to_string(kJob)};
    for (LocalRank r = 0; r < ranks(); ++r) config.ranks.push_back(global(r));
    config.self = rank_;
    config.sizes = plan_.sizes;
    config.least_piece_bytes = plan_.least_piece_bytes;
    config.block_elements = [](ElementType, std::uint16_t wanted) { return wanted; };
    config.part_limit = 2ms;
    config.least_remote_bytes = random_.pick<std::uint64_t>({0, 500, config.kNotReached});
    config.place_of = [this](std::span<const std::byte> tensor) { return place_of(tensor); };
    return config;
  }

  void submit(std::size_t index) {
    ChunkSpec op = plan_.ops[index];
    if (plan_.fault == Fault::kMismatch && index == plan_.victim_op && rank_ == plan_.victim)
      ++op.tag;
    Open open{.op = op, .input = {}, .output = {}, .bitmap = {}, .regions = {}};
    const std::size_t size = element_bytes(op.type);
    Tensor tensor = make_tensor(op, rank_, ranks(), op.block_elements);
    const Part part = part_of(op, rank_, ranks());
    open.input = pick(tensor.data, {held_by(op, rank_, ranks())}, op.type);
    open.in_place = tensor.in_place && !part.held &&
                    (!part.wanted || (!op.is_whole() && part.wanted->size() == 1));
    std::uint64_t wanted = 0;
    for (const Range& range : wanted_of(op, rank_, ranks())) wanted += range.end - range.begin;
    if (!open.in_place) open.output.assign(wanted * size, kScribble);
    for (std::vector<std::byte>* memory : {&open.input, &open.output}) host_.map(rank_, *memory);
    open.bitmap = std::move(tensor.bitmap);
    if (moves(op)) draw_known_zeros(open);
    if (open.in_place) open.zeros_are_there = random_.chance(0.5);
    if (all_hold_all(op) && random_.chance(0.5))
      open.found = {.nonzero = std::vector<std::uint64_t>(block_count(op) / 64 + 1)};
    // Addresses must stay, as the engine has them.
    const OpNumber expected = submitted_++;
    Open& placed = open_.emplace(expected, std::move(open)).first->second;
    OpRequest request;
    request.collective = op.collective;
    request.type = op.type;
    request.reduction = op.reduction;
    request.element_count = op.element_count;
    request.held = part.held;
    request.wanted = part.wanted;
    request.root = op.root;
    request.tag = op.tag;
    request.encoding = op.encoding;
    request.rounding_seed = op.rounding_seed;
    request.block_elements = op.block_elements;
    request.nonzero_blocks = placed.bitmap;
    request.zeros_are_there = placed.zeros_are_there;
    if (placed.found) request.found_blocks = &*placed.found;
    request.input = placed.input.data();
    request.output = placed.output.data();
    if (placed.in_place)
      request.output = placed.input.data() + (part.wanted ? part.wanted->front().begin * size : 0);
    if (plan_.fault == Fault::kTimeout && random_.chance(0.5))
      request.timeout = worker::OpTimeout::of(host_.now, std::chrono::milliseconds(1));
    std::vector<Part> parts;
    for (unsigned r = 0; r < ranks(); ++r) parts.push_back(part_of(op, r, ranks()));
    if (std::all_of(parts.begin(), parts.end(),
                    [](const Part& p) { return !p.held && !p.wanted; }) &&
        random_.chance(0.5))
      parts.clear();
    require(engine_->submit(request, std::move(parts)) == expected, "an op has another number");
  }

  static std::uint64_t block_count(const ChunkSpec& op) {
    return (op.element_count + op.block_elements - 1) / op.block_elements;
  }
  bool all_hold_all(const ChunkSpec& op) const {
    for (LocalRank r = 0; r < ranks(); ++r)
      if (part_of(op, r, ranks()).held) return false;
    return true;
  }
  /// Calls f(block, elements) for the blocks of a range.
  template <class F>
  static void for_each_block(const ChunkSpec& op, const Range& range, F&& f) {
    for (std::uint64_t b = range.begin / op.block_elements; b * op.block_elements < range.end; ++b)
      f(b, Range{std::max(b * op.block_elements, range.begin),
                 std::min((b + 1) * op.block_elements, range.end)});
  }
  static bool is_set(const std::vector<std::uint64_t>& bits, std::uint64_t b) {
    return (bits[b / 64] >> (b % 64) & 1) != 0;
  }

  /// For an op that moves elements, a rank may know where it holds zeros; and a rank whose output
  /// has zeros may say so.
  void draw_known_zeros(Open& open) {
    const ChunkSpec& op = open.op;
    std::vector<std::uint64_t> own(block_count(op) / 64 + 1);
    // Also in a block of which it holds only a part.
    std::vector<bool> is_zero(op.element_count, true);
    for (LocalRank r = 0; r < ranks(); ++r) {
      const Tensor tensor = make_tensor(op, r, ranks(), op.block_elements);
      for_each_block(op, held_by(op, r, ranks()), [&](std::uint64_t b, const Range& some) {
        const auto bytes = pick(tensor.data, {some}, op.type);
        if (std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; })) return;
        for (std::uint64_t i = some.begin; i < some.end; ++i) is_zero[i] = false;
        if (r == rank_) own[b / 64] |= std::uint64_t{1} << (b % 64);
      });
    }
    if (random_.chance(0.5)) open.bitmap = own;
    open.zeros_are_there = !open.in_place && random_.chance(0.5);
    if (!open.zeros_are_there) return;
    std::byte* out = open.output.data();
    for (const Range& range : wanted_of(op, rank_, ranks()))
      for (std::uint64_t i = range.begin; i < range.end; ++i, out += element_bytes(op.type))
        if (is_zero[i]) std::fill_n(out, element_bytes(op.type), std::byte{0});
  }

  /// Checks the found blocks: those that some rank has, of all that somebody wants; and a -0 in a
  /// block of ours that nobody has. Blocks may be searched together.
  void check_found(const Open& open) const {
    const ChunkSpec& op = open.op;
    const worker::FoundBlocks& found = *open.found;
    Range all{op.element_count, 0};
    for (LocalRank r = 0; r < ranks(); ++r)
      for (const Range& range : wanted_of(op, r, ranks()))
        if (range.begin < range.end)
          all = {std::min(all.begin, range.begin), std::max(all.end, range.end)};
    if (all.begin >= all.end) return;
    all.begin -= all.begin % op.block_elements;
    const bool is_exact = op.encoding != Encoding::kNone || op.reduction == Reduction::kProduct;
    std::vector<std::uint64_t> of_all(found.nonzero.size());
    bool must_have = false;
    for (LocalRank r = 0; r < ranks(); ++r) {
      const Tensor tensor = make_tensor(op, r, ranks(), op.block_elements);
      for_each_block(op, all, [&](std::uint64_t b, const Range& some) {
        const std::uint64_t elements = some.end - some.begin;
        std::uint64_t is_nonzero = 0;
        const bool negative =
            numeric::mark_nonzero_blocks({tensor.data.data() + some.begin * element_bytes(op.type),
                                          elements, static_cast<std::uint32_t>(elements), op.type},
                                         0, 1, &is_nonzero);
        if (tensor.bitmap.empty() ? is_nonzero != 0 : is_set(tensor.bitmap, b))
          of_all[b / 64] |= std::uint64_t{1} << (b % 64);
        must_have |= r == rank_ && tensor.bitmap.empty() && negative && !is_set(found.nonzero, b);
      });
    }
    for (std::size_t i = 0; i < of_all.size(); ++i)
      require(is_exact ? found.nonzero[i] == of_all[i] : (of_all[i] & ~found.nonzero[i]) == 0,
              "blocks of some rank are not found, or others are");
    const Tensor own = make_tensor(op, rank_, ranks(), op.block_elements);
    std::vector<std::uint64_t> unused(of_all.size());
    const bool may_have =
        own.bitmap.empty() && numeric::mark_nonzero_blocks(
                                  {own.data.data(), op.element_count, op.block_elements, op.type},
                                  0, static_cast<std::uint32_t>(block_count(op)), unused.data());
    require(found.has_negative_zero ? may_have : !must_have,
            "a -0 in a block of zeros is not found, or found where there is none");
    ++coverage["ops, of found blocks"];
    coverage["ops, of found -0"] += found.has_negative_zero;
  }

  /// Where a tensor of an open op lies in a region; nothing if in none.
  std::optional<worker::host::Place> place_of(std::span<const std::byte> tensor) {
    if (random_.chance(0.4)) return std::nullopt;
    for (auto& [number, open] : open_) {
      for (std::vector<std::byte>* memory : {&open.input, &open.output}) {
        if (tensor.data() < memory->data() || tensor.data() >= memory->data() + memory->size())
          continue;
        open.regions.push_back(host_.share(rank_, *memory));
        return Place{open.regions.back(),
                     static_cast<std::uint64_t>(tensor.data() - memory->data())};
      }
    }
    throw Bug("a tensor is shared that is of no open op");
  }

  void hear_of_ends() {
    for (LocalRank peer = 0; peer < ranks(); ++peer)
      if (peer != rank_ && (plan_.processes_end ? host_.has_ended(peer) : host_.is_dead(peer)) &&
          !heard_of_[peer] && random_.chance(0.2)) {
        heard_of_[peer] = true;
        engine_->lost(peer, host_.now);
      }
  }

  void finish(const worker::Completion& done) {
    const auto found = open_.find(done.op);
    require(found != open_.end(), "an op ended twice");
    Open& open = found->second;
    for (const std::uint64_t region : open.regions) host_.share_no_more(rank_, region);
    if (!done.error) {
      check(open);
      check_counts(open.op, done.statistics);
      if (open.found) check_found(open);
      coverage["ops, zeros are there"] += open.zeros_are_there;
      coverage["ops, moved by a bitmap"] += moves(open.op) && !open.bitmap.empty();
      ++right_;
      coverage["ops, encoded"] += open.op.encoding != Encoding::kNone;
      coverage["ops, of a bitmap"] += !open.bitmap.empty();
      coverage["ops, in chunks"] += !open.op.is_whole();
      coverage["ops, in regions"] += !open.regions.empty();
    }
    for (std::vector<std::byte>* memory : {&open.input, &open.output}) {
      // Memory that others may still access is a copy that does not change.
      if (!host_.has_parted(rank_)) std::fill(memory->begin(), memory->end(), kScribble);
      retired_.push_back(std::move(*memory));
    }
    open_.erase(found);
  }

  void check(const Open& open) const {
    const ChunkSpec& op = open.op;
    const Outcome all = reduce(op, ranks(), op.block_elements);
    const auto wanted = wanted_of(op, rank_, ranks());
    const auto expected = pick(all.data, wanted, op.type);
    const auto& got = open.in_place ? pick(open.input, wanted, op.type) : open.output;
    require(same(got, expected, op.type), std::string(name(op.collective)) + " of " +
                                              std::to_string(op.element_count) + " " +
                                              std::string(name(op.type)) + " is wrong");
    auto own = pick(make_tensor(op, rank_, ranks(), op.block_elements).data,
                    {held_by(op, rank_, ranks())}, op.type);
    if (open.in_place) put(got, wanted, op.type, own);
    require(open.input == own, "an input was written");
  }

  /// Checks the counts of blocks that are not zero, if all ranks hold the whole tensor. Otherwise
  /// blocks may be counted together.
  void check_counts(const ChunkSpec& op, const OpStatistics& found) const {
    if (op.encoding == Encoding::kNone && op.reduction != Reduction::kProduct) return;
    std::uint64_t own = 0;
    const std::uint64_t blocks = (op.element_count + op.block_elements - 1) / op.block_elements;
    std::vector<std::uint64_t> of_all(blocks / 64 + 1);
    for (LocalRank r = 0; r < ranks(); ++r) {
      if (part_of(op, r, ranks()).held) return;
      const Tensor tensor = make_tensor(op, r, ranks(), op.block_elements);
      std::vector<std::uint64_t> nonzero(of_all.size());
      if (tensor.bitmap.empty())
        numeric::mark_nonzero_blocks(
            {tensor.data.data(), op.element_count, op.block_elements, op.type}, 0,
            static_cast<std::uint32_t>(blocks), nonzero.data());
      else
        std::ranges::copy(tensor.bitmap, nonzero.begin());
      for (std::uint64_t b = 0; b < blocks; ++b)
        if (b * op.block_elements < op.chunk.begin || b * op.block_elements >= op.chunk.end)
          nonzero[b / 64] &= ~(std::uint64_t{1} << (b % 64));
      std::uint64_t count = 0;
      for (std::size_t i = 0; i < nonzero.size(); ++i) {
        of_all[i] |= nonzero[i];
        count += static_cast<std::uint64_t>(std::popcount(nonzero[i]));
      }
      if (r == rank_) own = count;
    }
    std::uint64_t sums = 0;
    for (const std::uint64_t bits : of_all) sums += static_cast<std::uint64_t>(std::popcount(bits));
    require(found.blocks == blocks && found.blocks_sent == own && found.blocks_received == sums,
            std::string(name(op.collective)) + " of " + std::to_string(op.element_count) + " " +
                std::string(name(op.type)) + " tells of " + std::to_string(found.blocks_sent) +
                " own blocks and " + std::to_string(found.blocks_received) + " of the sums in " +
                std::to_string(found.blocks) + "; " + std::to_string(own) + ", " +
                std::to_string(sums) + " and " + std::to_string(blocks) + " are right");
    ++coverage["ops, counted"];
  }

  /// Checks that the error has a cause in the plan, and names its rank.
  void judge(const Error& error) const {
    ++coverage[std::string("error: ") +
               std::string(kFaultNames[static_cast<std::size_t>(plan_.fault)]) + ", " +
               std::string(name(error.code()))];
    const auto names_victim = [&] { return error.rank() == plan_.victim; };
    bool is_right = false;
    switch (plan_.fault) {
      case Fault::kNone:
      case Fault::kStop:
        break;
      case Fault::kDeath:
      case Fault::kDeathAndStop:
      case Fault::kUnmapped:
        is_right = error.code() == ErrorCode::kWorkerLost && names_victim();
        break;
      case Fault::kMismatch:
        is_right = error.code() == ErrorCode::kOpMismatch && error.op() == plan_.victim_op &&
                   std::string(error.what()).find("rank " + std::to_string(plan_.victim)) !=
                       std::string::npos;
        break;
      case Fault::kLeaves:
      case Fault::kAborts:
        is_right = (error.code() == ErrorCode::kRankLeft && names_victim()) ||
                   (rank_ == plan_.victim && error.code() == ErrorCode::kAborted);
        break;
      case Fault::kTimeout:
        is_right = error.code() == ErrorCode::kOpTimedOut;
        break;
    }
    require(is_right, std::string("an error without cause: ") + error.what());
  }

  Host& host_;
  const Plan& plan_;
  const LocalRank rank_;
  Random random_;
  Engine* engine_ = nullptr;
  OpNumber submitted_ = 0;
  std::map<OpNumber, Open> open_;
  std::vector<std::vector<std::byte>> retired_;
  std::map<LocalRank, bool> heard_of_;
  std::optional<Error> failure_;
  std::uint64_t right_ = 0;
};

// --------------------------------------------------------------------------------------- one seed
void simulate(std::uint64_t seed) {
  const Plan plan = draw(seed);
  std::vector<std::unique_ptr<App>> apps;
  Host host(plan.sizes, derive(seed, 2));
  for (LocalRank r = 0; r < plan.sizes.ranks; ++r) {
    apps.push_back(std::make_unique<App>(host, plan, r, seed));
    host.start(r, [app = apps.back().get()] { app->run(); });
  }
  const bool dies = plan.fault == Fault::kDeath || plan.fault == Fault::kDeathAndStop;
  if (dies) host.kill_after(plan.victim, plan.steps);
  if (plan.fault == Fault::kStop || plan.fault == Fault::kTimeout)
    host.stop_after(plan.victim, plan.steps, 20ms);
  if (plan.fault == Fault::kUnmapped) host.unmap_after(plan.victim, plan.steps);
  if (plan.fault == Fault::kDeathAndStop)
    host.stop_after(static_cast<LocalRank>((plan.victim + 1) % plan.sizes.ranks),
                    host.random.below(plan.steps + 1), 50ms);
  host.run();
  ++coverage[std::string("fault: ") +
             std::string(kFaultNames[static_cast<std::size_t>(plan.fault)])];
  coverage["reads of processes"] += host.reads;
  coverage["writes to processes"] += host.writes;
  for (LocalRank r = 0; r < plan.sizes.ranks; ++r) {
    apps[r]->check_retired();
    coverage["ops that ended well"] += apps[r]->right();
    coverage["parted"] += host.has_parted(r);
    if (host.is_dead(r)) continue;
    const bool all_well = apps[r]->right() == plan.ops.size();
    const bool left = plan.fault == Fault::kLeaves && r == plan.victim;
    require(all_well || left || apps[r]->failure(), "ops are missing, and there is no error");
  }
}

/// The events that should occur in some thousand seeds, and did not.
std::vector<std::string> missing() {
  std::vector<std::string> names = {
      "ops that ended well",           "parted",
      "error: death, worker lost",     "error: death and stop, worker lost",
      "error: mismatch, op mismatch",  "error: leaves, rank left",
      "error: aborts, rank left",      "error: aborts, aborted",
      "error: time-out, op timed out", "error: unmapped, worker lost"};
  names.insert(names.end(),
               {"ops, encoded", "ops, of a bitmap", "ops, in chunks", "ops, in regions",
                "ops, zeros are there", "ops, moved by a bitmap", "ops, of found blocks",
                "ops, of found -0", "reads of processes", "writes to processes"});
  for (const char* fault : kFaultNames) names.push_back(std::string("fault: ") + fault);
  std::erase_if(names, [](const std::string& name) { return coverage[name] != 0; });
  return names;
}

[[noreturn]] void usage(int status) {
  std::printf(
      "usage: sluice-host-sim [--seeds N] [--from S|fresh] [--seed X] [--coverage]\n"
      "                       [--check-coverage]\n"
      "  --seeds N    how many (1000), beginning with --from S (0), or where nobody was yet\n"
      "  --seed X     this one only\n"
      "  --coverage   print what happened, over all seeds\n"
      "  --check-coverage   fail if anything that should happen in a few thousand seeds did not\n");
  std::exit(status);
}

std::uint64_t fresh_seed() {
  std::random_device source;
  return (std::uint64_t{source()} << 16 ^ source()) % 1'000'000'000'000 * 1000;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t from = 0, seeds = 1000;
  bool tells_coverage = false;
  bool checks_coverage = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&] {
      if (++i == argc) usage(2);
      return std::string_view(argv[i]) == "fresh" ? fresh_seed()
                                                  : std::strtoull(argv[i], nullptr, 10);
    };
    if (word == "--seeds")
      seeds = value();
    else if (word == "--from")
      from = value();
    else if (word == "--seed")
      from = value(), seeds = 1;
    else if (word == "--coverage")
      tells_coverage = true;
    else if (word == "--check-coverage")
      checks_coverage = true;
    else
      usage(word == "--help" ? 0 : 2);
  }
  for (std::uint64_t seed = from; seed < from + seeds; ++seed) {
    try {
      simulate(seed);
    } catch (const std::exception& problem) {
      std::printf("seed %llu: %s: %s\n  replay: %s --seed %llu\n",
                  static_cast<unsigned long long>(seed),
                  kFaultNames[static_cast<std::size_t>(draw(seed).fault)], problem.what(), argv[0],
                  static_cast<unsigned long long>(seed));
      return 1;
    }
  }
  if (tells_coverage)
    for (const auto& [name, count] : coverage)
      std::printf("%-45s %llu\n", name.c_str(), static_cast<unsigned long long>(count));
  if (checks_coverage)
    for (const std::string& name : missing()) {
      std::printf("never happened: %s\n", name.c_str());
      return 1;
    }
  std::printf("%llu seeds from %llu, 0 failures\n", static_cast<unsigned long long>(seeds),
              static_cast<unsigned long long>(from));
  return 0;
}
