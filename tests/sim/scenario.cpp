#include "tests/sim/scenario.hpp"

#include <algorithm>
#include <sstream>

#include "common/protocol/geometry.hpp"
#include "tests/sim/random.hpp"

namespace sluice::sim {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

Duration ms(double value) {
  return duration_cast<Duration>(std::chrono::duration<double, std::milli>(value));
}

constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kFloat64,
                                  ElementType::kFloat16, ElementType::kBFloat16,
                                  ElementType::kInt32,   ElementType::kInt64};

LinkModel make_link(Random& r) {
  LinkModel link;
  link.delay = ms(r.uniform(0.3, 1.5));
  link.bytes_per_us = r.pick({0.0, 0.0, 100.0, 1000.0});
  link.loss = r.pick({0.0, 0.01, 0.1, r.uniform(0, 0.2), 0.2});
  link.duplicate = r.pick({0.0, 0.1, r.uniform(0, 0.5), 0.5});
  link.late = r.pick({0.0, 0.1, 0.4});
  link.late_max = ms(r.pick({6.0, 25.0, 80.0}));
  link.ancient = r.pick({0.0, 0.02, 0.1});
  link.garbage = r.pick({0.0, 0.0, 0.02, 0.1});
  return link;
}

/// How many elements: nothing, less than a block, a short last block, many blocks.
std::uint64_t element_count(Random& r, const JobPlan& job, ElementType type,
                            std::uint64_t bytes_max) {
  const std::uint64_t block =
      fitting_block_elements(job.block_elements, type, job.smallest_payload());
  const std::uint64_t most = std::max<std::uint64_t>(1, bytes_max / element_bytes(type));
  const std::uint64_t blocks = r.pick<std::uint64_t>(
      {0, 1, r.below(4), r.below(60), r.between(50, 150), r.between(100, 600)});
  std::uint64_t count = blocks * block;
  if (blocks > 0 && r.chance(0.6)) count -= r.below(block);
  if (r.chance(0.1)) count = r.below(block + 1);
  return std::min(count, most);
}

OpSpec make_op(Random& r, const JobPlan& job, std::uint64_t tag, std::uint64_t bytes_max) {
  OpSpec op;
  op.type = kTypes[r.below(std::size(kTypes))];
  op.reduction = static_cast<Reduction>(r.between(1, 4));
  op.tag = tag;
  op.seed = r.next();
  op.element_count = element_count(r, job, op.type, bytes_max);
  if (op.element_count == 0 && r.chance(0.5)) op.collective = wire::Collective::kBarrier;
  op.density = r.pick({0.0, 0.03, 0.2, 0.6, 1.0, -1.0});
  if (r.chance(0.2)) op.lone_owner = static_cast<int>(r.below(job.ranks));
  op.overlap = op.lone_owner < 0 && r.chance(0.2);
  return op;
}

Program make_program(Random& r, const JobPlan& job, std::uint64_t tag, std::size_t ops,
                     std::uint64_t bytes_max) {
  Program program;
  for (std::size_t i = 0; i < ops; ++i)
    program.push_back(make_op(r, job, tag * 100 + i, bytes_max));
  return program;
}

/// What a rank calls in place of `op`: one field of the descriptor is another.
OpSpec another(Random& r, const OpSpec& op) {
  OpSpec other = op;
  switch (r.below(5)) {
    case 0:
      other.element_count += r.between(1, 2000);
      other.collective = wire::Collective::kAllReduce;
      break;
    case 1:
      while (other.type == op.type) other.type = kTypes[r.below(std::size(kTypes))];
      break;
    case 2:
      while (other.reduction == op.reduction)
        other.reduction = static_cast<Reduction>(r.between(1, 4));
      break;
    case 3:
      other.collective = op.collective == wire::Collective::kBarrier ? wire::Collective::kAllReduce
                                                                     : wire::Collective::kBarrier;
      break;
    default:
      other.tag += r.between(1, 1000);
  }
  other.poisoned = true;
  return other;
}

void draw_fault(Random& r, JobPlan& job, bool alone) {
  const double x = r.unit();
  job.victim = static_cast<unsigned>(r.below(job.ranks));
  job.fault_after = ms(r.pick({r.uniform(0, 60), r.uniform(0, 400)}));
  if (x < 0.10)
    job.fault = Fault::kSilentDeath;
  else if (x < 0.18)
    job.fault = Fault::kHangUp;
  else if (x < 0.26 && job.ranks > 1)
    job.fault = Fault::kOpMismatch;
  else if (x < 0.31 && job.ranks > 1)
    job.fault = Fault::kEarlyLeave;
  else if (x < 0.36)
    job.fault = Fault::kAbortingLeave;
  else if (x < 0.42)
    job.fault = Fault::kDuplicateRank;
  else if (x < 0.44 && job.ranks > 1)
    job.fault = Fault::kWrongWorldSize;
  else if (x < 0.46)
    job.fault = Fault::kRankBeyondWorld;
  else if (x < 0.49 && job.ranks > 1)
    job.fault = Fault::kJoinMismatch;
  else if (x < 0.59)
    job.fault = Fault::kRejoin;
  else if (x < 0.61 && alone)
    job.fault = Fault::kShutDown;
}

void fit_programs(Random& r, JobPlan& job, std::uint64_t bytes_max, bool comes_back) {
  job.programs.push_back(make_program(r, job, 1, r.between(1, 6), bytes_max));
  Program& first = job.programs[0];
  job.fault_op = r.below(first.size());
  if (job.fault == Fault::kOpMismatch) {
    if (r.chance(0.2) && first.size() > 1) {  // two ops in swapped order
      job.swapped = true;
      job.fault_op = r.below(first.size() - 1);
      first[job.fault_op + 1].poisoned = true;
    } else {
      job.other_op = another(r, first[job.fault_op]);
    }
    first[job.fault_op].poisoned = true;
  }
  const bool dies = job.fault == Fault::kSilentDeath || job.fault == Fault::kHangUp;
  if (dies && r.chance(0.7)) job.revived_after = ms(r.pick({r.uniform(1, 20), r.uniform(1, 400)}));
  if (job.fault == Fault::kRejoin || job.revived_after || comes_back)
    job.programs.push_back(make_program(r, job, 2, r.between(1, 3), bytes_max));
}

JobPlan make_job(Random& r, const Scenario& scenario, std::uint32_t id, unsigned ranks,
                 bool alone) {
  JobPlan job;
  job.id = id;
  job.ranks = ranks;
  if (r.chance(0.8))
    job.streams = static_cast<std::uint16_t>(r.pick<std::uint64_t>({1, 2, 3, r.between(1, 16)}));
  if (r.chance(0.7)) job.history = r.pick<std::uint8_t>({2, 2, 4, 8, 16, 64});
  job.block_elements = static_cast<std::uint16_t>(
      r.pick<std::uint64_t>({1, r.between(2, 16), r.between(17, 64), 256, r.between(1, 600)}));
  for (unsigned rank = 0; rank < ranks; ++rank)
    job.payload_bytes.push_back(r.chance(0.8) ? scenario.payload_bytes
                                              : static_cast<std::uint16_t>(r.between(508, 9000)));
  job.depth = static_cast<unsigned>(r.between(1, 4));
  job.pause_max = ms(r.pick({0.0, 5.0, 100.0, 500.0}));
  job.start_spread = ms(r.pick({0.0, 5.0, 100.0, 500.0}));
  job.shared_port = r.chance(0.2);
  draw_fault(r, job, alone);
  return job;
}

void draw_blackouts(Random& r, Scenario& s) {
  const std::uint64_t count = r.pick<std::uint64_t>({0, 0, 1, 2});
  for (std::uint64_t i = 0; i < count; ++i) {
    Blackout b;
    b.job = r.below(s.jobs.size());
    b.rank = static_cast<unsigned>(r.below(s.jobs[b.job].ranks));
    b.downstream = r.chance(0.8);
    b.from = Time{ms(r.uniform(0, 300))};
    b.to = b.from + ms(r.pick({30.0, 150.0, 400.0}));
    s.blackouts.push_back(b);
  }
}

void draw_droughts(Random& r, Scenario& s) {
  const std::uint64_t count = r.pick<std::uint64_t>({0, 0, 1, 3});
  for (std::uint64_t i = 0; i < count; ++i) {
    Drought d;
    d.aggregator = r.chance(0.6);
    d.which = static_cast<unsigned>(r.below(d.aggregator ? s.shards : s.jobs[0].ranks));
    d.from = Time{ms(r.uniform(0, 200))};
    d.to = d.from + ms(r.pick({1.0, 20.0, 200.0}));
    s.droughts.push_back(d);
  }
}

void draw_crashes(Random& r, Scenario& s) {
  const std::uint64_t count = r.pick<std::uint64_t>({1, 1, 2, 3});
  for (std::uint64_t i = 0; i < count; ++i)
    s.crashes.push_back(
        {static_cast<unsigned>(r.below(s.shards)),
         r.pick<std::uint64_t>({r.below(20), r.below(40), r.below(150), r.below(600)}),
         ms(r.pick({1.0, 10.0, r.uniform(1, 150)}))});
}

/// Every hundredth seed is wide: up to 256 ranks, with few and small ops.
Scenario wide_scenario(Random& r, Scenario s) {
  s.shards = static_cast<unsigned>(r.between(1, 2));
  s.link.bytes_per_us = 0;
  s.link.duplicate = std::min(s.link.duplicate, 0.1);
  s.faults_end = Time{ms(300)};
  const unsigned ranks = r.pick({64u, 256u});
  JobPlan job = make_job(r, s, 7, ranks, true);
  job.streams = static_cast<std::uint16_t>(r.between(1, 4));
  job.fault = r.pick({Fault::kNone, Fault::kNone, Fault::kHangUp, Fault::kRejoin});
  job.programs.push_back(make_program(r, job, 1, 2, 2048));
  if (job.fault == Fault::kRejoin) job.programs.push_back(make_program(r, job, 2, 1, 256));
  job.start_spread = std::min<Duration>(job.start_spread, milliseconds(100));
  s.jobs.push_back(std::move(job));
  return s;
}

}  // namespace

std::uint16_t JobPlan::smallest_payload() const {
  return *std::min_element(payload_bytes.begin(), payload_bytes.end());
}

bool Scenario::crashed_shard(unsigned shard) const {
  return std::any_of(crashes.begin(), crashes.end(),
                     [&](const Crash& c) { return c.shard == shard; });
}

Scenario make_scenario(std::uint64_t seed) {
  Random r(derive(seed, 0));
  Scenario s;
  s.seed = seed;
  s.link = make_link(r);
  s.faults_end = Time{ms(r.pick({300.0, 5000.0, 5000.0}))};
  s.payload_bytes = static_cast<std::uint16_t>(
      r.pick<std::uint64_t>({508, 508, 1400, 9000, r.between(508, 2000), r.between(508, 9000)}));
  s.streams = static_cast<std::uint16_t>(r.between(1, 16));
  s.history = r.pick<std::uint8_t>({2, 4, 8});
  if (seed % 100 == 99) return wide_scenario(r, std::move(s));

  s.shards = static_cast<unsigned>(r.pick({1, 1, 1, 2, 3}));
  const bool crashes = r.chance(0.25);
  const std::uint64_t jobs = crashes ? 1 : r.pick<std::uint64_t>({1, 1, 1, 2, 3});
  for (std::uint64_t j = 0; j < jobs; ++j) {
    const auto ranks = static_cast<unsigned>(r.chance(0.05) ? r.between(7, 16) : r.between(1, 6));
    JobPlan job = make_job(r, s, static_cast<std::uint32_t>(10 + j), ranks, jobs == 1);
    const bool goes_with_crash = job.fault == Fault::kSilentDeath || job.fault == Fault::kRejoin;
    if (crashes && !goes_with_crash) job.fault = Fault::kNone;
    const std::uint64_t bytes_max =
        r.pick<std::uint64_t>({4096, 65536, 262144, 1048576}) / ranks + 64;
    fit_programs(r, job, bytes_max, crashes);
    s.jobs.push_back(std::move(job));
  }
  draw_blackouts(r, s);
  if (!s.blackouts.empty()) s.link.loss = std::min(s.link.loss, 0.1);
  draw_droughts(r, s);
  s.pool_misses = r.pick({0.0, 0.0, 0.01, 0.1});
  if (s.pool_misses >= 0.1) s.link.loss = std::min(s.link.loss, 0.05);
  const bool contested = std::any_of(s.jobs.begin(), s.jobs.end(), [](const JobPlan& job) {
    return job.fault == Fault::kDuplicateRank;
  });
  if (contested) {  // who is silent for long is taken for dead, and another may have its place
    s.blackouts.clear();
    s.droughts.clear();
    s.pool_misses = std::min(s.pool_misses, 0.01);
    s.link.loss = std::min(s.link.loss, 0.01);
  }
  if (crashes) draw_crashes(r, s);
  return s;
}

const char* name(Fault fault) {
  static constexpr const char* kNames[] = {
      "none",           "silent death",   "hang-up",          "op mismatch",       "early leave",
      "aborting leave", "duplicate rank", "wrong world size", "rank beyond world", "join mismatch",
      "rejoin",         "shut down"};
  return kNames[static_cast<std::size_t>(fault)];
}

std::string describe(const Scenario& s) {
  std::ostringstream out;
  out << "seed " << s.seed << ": " << s.shards << " aggregators, payload " << s.payload_bytes
      << ", loss " << s.link.loss << ", duplicate " << s.link.duplicate << ", late " << s.link.late
      << " up to " << duration_cast<milliseconds>(s.link.late_max).count() << " ms, ancient "
      << s.link.ancient << ", garbage " << s.link.garbage << ", " << s.blackouts.size()
      << " blackouts, " << s.crashes.size() << " crashes, " << s.droughts.size() << " droughts\n";
  for (const JobPlan& job : s.jobs) {
    out << "  job " << job.id << ": " << job.ranks << " ranks, S " << job.streams << ", H "
        << unsigned{job.history} << ", block " << job.block_elements << ", depth " << job.depth
        << ", fault " << name(job.fault) << " (rank " << job.victim << ")\n";
    for (const Program& program : job.programs)
      for (const OpSpec& op : program)
        out << "    op of " << op.element_count << " " << sluice::name(op.type) << " "
            << sluice::name(op.reduction) << ", density " << op.density
            << (op.poisoned ? ", poisoned" : "") << "\n";
  }
  return out.str();
}

}  // namespace sluice::sim
