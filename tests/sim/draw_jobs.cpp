// What the ranks of a job call, and what goes wrong among them.
#include <algorithm>
#include <iterator>
#include <limits>

#include "common/protocol/geometry.hpp"
#include "tests/sim/draw.hpp"

namespace sluice::sim {

using wire::Collective;

namespace {

constexpr ElementType kTypes[] = {
    ElementType::kFloat32,  ElementType::kFloat64, ElementType::kFloat16,
    ElementType::kBFloat16, ElementType::kInt32,   ElementType::kInt64,
    ElementType::kInt8,     ElementType::kUInt8,   ElementType::kInt16};

Reduction draw_reduction(Random& r, ElementType type) {
  return static_cast<Reduction>(r.between(1, is_float(type) ? 5 : 8));
}

std::uint16_t draw_block_elements(Random& r) {
  return static_cast<std::uint16_t>(
      r.pick<std::uint64_t>({1, r.between(2, 16), r.between(17, 64), 256, r.between(1, 600)}));
}

/// The number of elements: none, less than a block, with a short last block, or many blocks.
std::uint64_t element_count(Random& r, const JobPlan& job, const OpSpec& op,
                            std::uint64_t bytes_max) {
  const std::uint64_t block =
      fitting_block_elements(wanted_block_elements(job, op), op.type, job.smallest_payload());
  const std::uint64_t most = std::max<std::uint64_t>(1, bytes_max / element_bytes(op.type));
  const std::uint64_t blocks = r.pick<std::uint64_t>(
      {0, 1, r.below(4), r.below(60), r.between(50, 150), r.between(100, 600)});
  std::uint64_t count = blocks * block;
  if (blocks > 0 && r.chance(0.6)) count -= r.below(block);
  if (r.chance(0.1)) count = r.below(block + 1);
  return std::min(count, most);
}

/// Cuts the tensor into so many parts, of one size (which makes it a little shorter) or of any
/// size.
void draw_parts(Random& r, OpSpec& op, std::size_t parts) {
  if (r.chance(0.5)) {
    op.element_count -= op.element_count % parts;
    op.counts.assign(parts, op.element_count / parts);
    return;
  }
  std::uint64_t left = op.element_count;
  for (std::size_t i = 0; i + 1 < parts; ++i) {
    op.counts.push_back(r.chance(0.2) ? 0 : r.below(2 * left / (parts - i) + 1));
    op.counts.back() = std::min(op.counts.back(), left);
    left -= op.counts.back();
  }
  op.counts.push_back(left);
}

/// Any collective except all_reduce and barrier.
void draw_other_collective(Random& r, const JobPlan& job, OpSpec& op) {
  constexpr Collective kOthers[] = {Collective::kBroadcast, Collective::kAllGather,
                                    Collective::kReduce,    Collective::kReduceScatter,
                                    Collective::kGather,    Collective::kScatter,
                                    Collective::kAllToAll};
  constexpr unsigned kRanksMost = 16;  // an all_to_all has a part for each pair of ranks
  do {
    op.collective = kOthers[r.below(std::size(kOthers))];
  } while (op.collective == Collective::kAllToAll && job.ranks > kRanksMost);
  op.root = static_cast<std::uint16_t>(r.below(job.ranks));
  switch (op.collective) {
    case Collective::kBroadcast:
    case Collective::kReduce:
      break;
    case Collective::kAllToAll:
      draw_parts(r, op, std::size_t{job.ranks} * job.ranks);
      break;
    default:
      draw_parts(r, op, job.ranks);
  }
  if (!moves(op)) return;
  op.reduction = Reduction::kSum;
  op.overlap = false;
}

/// Pairs of key and row: keys of all chunks, of some, of few.
void make_keyed(Random& r, OpSpec& op) {
  op.collective = Collective::kSparseAllReduce;
  op.counts.clear();
  op.root = 0;
  op.row_elements = static_cast<std::uint16_t>(r.pick<std::uint64_t>({1, 1, r.between(2, 15)}));
  const std::uint64_t keys = std::max<std::uint64_t>(1, op.element_count / op.row_elements);
  op.key_bound = r.pick<std::uint64_t>(
      {keys, keys * r.between(2, 2000), ~std::uint64_t{0} - r.between(1, 1000)});
  op.threshold = r.pick({0.0, 0.0, 1e-3, 1.0, 50.0, 1e6, std::numeric_limits<double>::infinity()});
  if (!is_valid(op.type, op.reduction)) op.reduction = Reduction::kSum;
}

/// The op that a rank calls in place of a keyed op.
OpSpec another_keyed(Random& r, const OpSpec& op) {
  OpSpec other = op;
  const std::uint64_t fields = op.encoding == Encoding::kNone ? 6 : op.rounding_seed == 0 ? 7 : 16;
  switch (std::min<std::uint64_t>(r.below(fields), 7)) {  // few ops have a seed
    case 6:
      other.encoding = Encoding::kNone;
      other.rounding_seed = 0;
      break;
    case 7:
      other.rounding_seed += 2;
      break;
    case 0:
      other.key_bound -= op.key_bound > 1 ? 1 : 0;
      if (op.key_bound == 1) other.key_bound = 2;
      break;
    case 1:
      other.row_elements += 1;
      break;
    case 2:
      other.threshold = op.threshold == 0 ? 1 : 0;
      break;
    case 3:
      other.collective = Collective::kAllReduce;
      break;
    case 4:
      other.reduction = op.reduction == Reduction::kMin ? Reduction::kMax : Reduction::kMin;
      break;
    default:
      other.tag += r.between(1, 1000);
  }
  other.poisoned = true;
  return other;
}

OpSpec make_op(Random& r, const JobPlan& job, std::uint64_t tag, std::uint64_t bytes_max) {
  OpSpec op;
  op.type = kTypes[r.below(std::size(kTypes))];
  op.reduction = draw_reduction(r, op.type);
  op.tag = tag;
  op.seed = r.next();
  if (r.chance(0.3)) op.block_elements = draw_block_elements(r);
  op.element_count = element_count(r, job, op, bytes_max);
  if (op.element_count == 0 && r.chance(0.5)) op.collective = Collective::kBarrier;
  op.density = r.pick({0.0, 0.03, 0.2, 0.6, 1.0, -1.0});
  if (r.chance(0.2)) op.lone_owner = static_cast<int>(r.below(job.ranks));
  op.overlap = op.lone_owner < 0 && r.chance(0.2);
  if (op.collective == Collective::kAllReduce && r.chance(0.4)) draw_other_collective(r, job, op);
  Random own(derive(op.seed, 4000));
  if (own.chance(0.2)) make_keyed(own, op);
  draw_encoding(own, op);
  return op;
}

/// The op that a rank calls in place of `op`: one field of the descriptor differs.
OpSpec another(Random& r, const JobPlan& job, const OpSpec& op) {
  if (is_keyed(op)) return another_keyed(r, op);
  OpSpec other = op;
  const std::uint64_t fields = op.encoding == Encoding::kNone ? 6 : op.rounding_seed == 0 ? 7 : 16;
  switch (std::min<std::uint64_t>(r.below(fields), 7)) {  // few ops have a seed
    case 6:
      other.encoding = Encoding::kNone;
      other.rounding_seed = 0;
      break;
    case 7:
      other.rounding_seed += 2;
      break;
    case 0:
      other.element_count += r.between(1, 2000);
      if (!other.counts.empty()) other.counts.back() += other.element_count - op.element_count;
      if (op.collective == Collective::kBarrier) other.collective = Collective::kAllReduce;
      break;
    case 1:
      while (other.type == op.type || !is_valid(other.type, other.reduction))
        other.type = kTypes[r.below(std::size(kTypes))];
      other.encoding = Encoding::kNone;
      other.rounding_seed = 0;
      break;
    case 2:
      if (moves(op))
        other.root = op.root == 0 ? 1 : 0;
      else
        while (other.reduction == op.reduction) other.reduction = draw_reduction(r, op.type);
      break;
    case 3:
      other = OpSpec{.block_elements = op.block_elements, .tag = op.tag, .seed = op.seed};
      if (op.collective != Collective::kBarrier) other.collective = Collective::kBarrier;
      break;
    case 4:
      other.block_elements = wanted_block_elements(job, op) == 1 ? 2 : 1;
      break;
    default:
      other.tag += r.between(1, 1000);
  }
  other.poisoned = true;
  return other;
}

/// Two ops of the first program are swapped on one rank, or one of them is different there.
void plan_mismatch(Random& r, JobPlan& job) {
  Program& first = job.programs[0];
  if (r.chance(0.2) && first.size() > 1) {
    job.swapped = true;
    job.fault_op = r.below(first.size() - 1);
    first[job.fault_op + 1].poisoned = true;
  } else {
    job.other_op = another(r, job, first[job.fault_op]);
  }
  first[job.fault_op].poisoned = true;
}

}  // namespace

Program draw_program(Random& r, const JobPlan& job, std::uint64_t tag, std::size_t ops,
                     std::uint64_t bytes_max) {
  Program program;
  for (std::size_t i = 0; i < ops; ++i) {
    program.push_back(make_op(r, job, tag * 100 + i, bytes_max));
    program.back().number = i;
  }
  return program;
}

OpSpec long_sum(Random& r, std::size_t number, std::size_t blocks) {
  OpSpec op;
  op.type = ElementType::kFloat32;
  op.block_elements = 300;
  op.element_count = op.block_elements * blocks;
  op.density = 1;
  op.tag = op.number = number;
  op.seed = r.next();
  return op;
}

Program draw_long_sums(Random& r, std::size_t ops) {
  Program program;
  for (std::size_t i = 0; i < ops; ++i) {
    OpSpec op = long_sum(r, i, r.between(500, 2000));
    op.density = r.pick({0.1, 0.5, 1.0});
    op.overlap = r.chance(0.3);
    program.push_back(op);
  }
  return program;
}

Fault draw_fault(Random& r, unsigned ranks, bool alone) {
  const double x = r.unit();
  if (x < 0.10) return Fault::kSilentDeath;
  if (x < 0.18) return Fault::kDisconnect;
  if (x < 0.26 && ranks > 1) return Fault::kOpMismatch;
  if (x < 0.31 && ranks > 1) return Fault::kEarlyLeave;
  if (x < 0.36) return Fault::kAbortingLeave;
  if (x < 0.42) return Fault::kDuplicateRank;
  if (x < 0.44 && ranks > 1) return Fault::kWrongWorldSize;
  if (x < 0.46) return Fault::kRankBeyondWorld;
  if (x < 0.49 && ranks > 1) return Fault::kJoinMismatch;
  if (x < 0.59) return Fault::kRejoin;
  if (x < 0.61 && alone) return Fault::kShutDown;
  if (x < 0.66) return Fault::kOpTimedOut;
  return Fault::kNone;
}

void draw_programs(Random& r, JobPlan& job, std::uint64_t bytes_max, bool comes_back) {
  job.programs.push_back(draw_program(r, job, 1, r.between(1, 6), bytes_max));
  job.fault_op = r.below(job.programs[0].size());
  if (job.fault == Fault::kOpMismatch) plan_mismatch(r, job);
  const bool dies = job.fault == Fault::kSilentDeath || job.fault == Fault::kDisconnect;
  if (dies && r.chance(0.7)) job.revived_after = ms(r.pick({r.uniform(1, 20), r.uniform(1, 400)}));
  if (job.fault == Fault::kOpTimedOut) comes_back |= r.chance(0.5);
  if (job.fault == Fault::kRejoin || job.revived_after || comes_back)
    job.programs.push_back(draw_program(r, job, 2, r.between(1, 3), bytes_max));
}

namespace {

/// 1 to 8 ranks on each.
std::vector<std::uint64_t> draw_placement(Random& r, unsigned ranks) {
  constexpr unsigned kMostRanks = 8;
  std::vector<std::uint64_t> hosts(ranks);
  if (r.chance(0.4)) {  // even, in blocks or in turn
    const auto each = static_cast<unsigned>(r.between(2, std::min(kMostRanks, ranks)));
    const bool in_turn = r.chance(0.3);
    const unsigned count = (ranks + each - 1) / each;
    for (unsigned rank = 0; rank < ranks; ++rank)
      hosts[rank] = 1 + (in_turn ? rank % count : rank / each);
    return hosts;
  }
  const std::uint64_t most = r.between((ranks + kMostRanks - 1) / kMostRanks, ranks);
  std::vector<unsigned> on(most + 1);
  for (std::uint64_t& host : hosts) {
    do host = r.between(1, most);
    while (on[host] == kMostRanks);
    ++on[host];
  }
  if (r.chance(0.2)) hosts[r.below(ranks)] = 0;
  return hosts;
}

/// Such an op all ranks send to the aggregators.
void average_integers(OpSpec& op) {
  op.collective = Collective::kAllReduce;
  op.type = ElementType::kInt32;
  op.reduction = Reduction::kAverage;
  op.encoding = Encoding::kNone;
  op.rounding_seed = 0;
  op.root = 0;
  op.counts.clear();
}

/// The op that may time out is one that hosts cannot sum, or it is behind such a one, or it waits
/// on its host for sums of pairs.
void draw_what_times_out(Random& r, JobPlan& job) {
  Program& program = job.programs[0];
  if (r.chance(0.5)) average_integers(program[job.fault_op]);
  if (job.fault_op > 0 && r.chance(0.3)) {
    average_integers(program[job.fault_op - 1]);
    job.depth = std::max(job.depth, 2u);
  }
  if (!r.chance(0.5)) return;
  job.depth = std::max(job.depth, static_cast<unsigned>(job.fault_op + 1));
  for (std::size_t before = 0; before < job.fault_op; ++before)
    if (!is_keyed(program[before])) make_keyed(r, program[before]);
}

}  // namespace

void draw_hosts(std::uint64_t seed, Scenario& s) {
  Random r(derive(seed, 7));
  if (s.theme > Theme::kHostileHost) return;
  for (JobPlan& job : s.jobs) {
    if (job.ranks < 2 || job.ranks > 16 || !r.chance(0.25)) continue;
    job.hosts = draw_placement(r, job.ranks);
    if (job.host_count() == job.ranks) {
      job.hosts.clear();
      continue;
    }
    if (job.fault == Fault::kOpTimedOut) draw_what_times_out(r, job);
    if (r.chance(0.5)) continue;
    job.min_chunk_of_rail = r.pick<std::uint64_t>({16, 256, 4096});
    for (Program& program : job.programs)  // rails number their ops in another way
      for (OpSpec& op : program) op.rounding_seed = 0;
  }
}

JobPlan draw_job(Random& r, const Scenario& s, std::uint32_t id, unsigned ranks) {
  JobPlan job;
  job.id = id;
  job.ranks = ranks;
  if (r.chance(0.8))
    job.streams = static_cast<std::uint16_t>(r.pick<std::uint64_t>({1, 2, 3, r.between(1, 16)}));
  if (r.chance(0.7)) job.history = r.pick<std::uint8_t>({2, 2, 4, 8, 16, 64});
  job.block_elements = draw_block_elements(r);
  for (unsigned rank = 0; rank < ranks; ++rank)
    job.payload_bytes.push_back(r.chance(0.8) ? s.payload_bytes
                                              : static_cast<std::uint16_t>(r.between(508, 9000)));
  job.depth = static_cast<unsigned>(r.between(1, 4));
  job.pause_max = ms(r.pick({0.0, 5.0, 100.0, 500.0}));
  job.start_spread = ms(r.pick({0.0, 5.0, 100.0, 500.0}));
  job.shared_port = r.chance(0.2);
  job.victim = static_cast<unsigned>(r.below(ranks));
  job.fault_after = ms(r.pick({r.uniform(0, 60), r.uniform(0, 400)}));
  if (r.chance(0.5)) job.search.ahead_bytes = r.pick<std::uint64_t>({1, r.between(2, 4000)});
  if (r.chance(0.2)) job.search.lookahead_bytes = r.pick<std::uint64_t>({1, r.between(2, 40'000)});
  return job;
}

}  // namespace sluice::sim
