#include "tests/sim/scenario.hpp"

#include <algorithm>
#include <sstream>

#include "tests/sim/draw.hpp"

namespace sluice::sim {
namespace {

/// How the shards are spread over aggregators.
void draw_lanes(Scenario& s) {
  Random r(derive(s.seed, 3));
  s.lanes = s.shards % 2 == 0 && r.chance(0.5) ? r.pick({2u, s.shards}) : 1;
}

using std::chrono::milliseconds;

Theme draw_theme(Random& r) {
  const double x = r.unit();
  if (x < 0.30) return Theme::kCrashes;
  if (x < 0.33) return Theme::kLost;
  if (x < 0.39) return Theme::kStandby;
  if (x < 0.41) return Theme::kSlowRank;
  if (x < 0.46) return Theme::kHostileHost;
  return Theme::kMixed;
}

unsigned draw_ranks(Random& r) {
  return static_cast<unsigned>(r.chance(0.07) ? r.between(7, 16) : r.between(1, 6));
}

std::uint64_t draw_bytes(Random& r, unsigned ranks) {
  return r.pick<std::uint64_t>({4096, 65536, 262144, 1048576}) / ranks + 64;
}

/// Ranks and jobs fail in every way; aggregators only in ways that fit.
void draw_mixed(Random& r, Scenario& s) {
  const bool crashes = r.chance(0.15);
  const std::uint64_t jobs = crashes ? 1 : r.pick<std::uint64_t>({1, 1, 1, 2, 3});
  for (std::uint64_t j = 0; j < jobs; ++j) {
    const unsigned ranks = draw_ranks(r);
    JobPlan job = draw_job(r, s, static_cast<std::uint32_t>(10 + j), ranks);
    job.fault = draw_fault(r, ranks, jobs == 1);
    if (crashes) job.fault = r.pick({Fault::kSilentDeath, Fault::kSilentDeath, Fault::kDisconnect});
    const bool may_break = job.fault == Fault::kNone && r.chance(0.5);
    draw_programs(r, job, draw_bytes(r, ranks), crashes || may_break);
    s.jobs.push_back(std::move(job));
  }
  draw_cuts(r, s, ms(400));
  draw_pauses(r, s, ms(r.pick({300.0, 3000.0})));
  draw_rings_and_pools(r, s);
  if (crashes) draw_crashes(r, s);
}

/// Aggregators die. Everything else is so short that nobody may be declared failed.
void draw_recovery(Random& r, Scenario& s) {
  const std::uint64_t jobs = r.pick<std::uint64_t>({1, 1, 1, 2});
  for (std::uint64_t j = 0; j < jobs; ++j) {
    const unsigned ranks = draw_ranks(r);
    JobPlan job = draw_job(r, s, static_cast<std::uint32_t>(10 + j), ranks);
    if (s.theme != Theme::kHostileHost && r.chance(0.1)) job.fault = Fault::kRejoin;
    if (s.theme == Theme::kStandby) job.pause_max = ms(r.pick({100.0, 1000.0}));
    draw_programs(r, job, draw_bytes(r, ranks), false);
    s.jobs.push_back(std::move(job));
  }
  draw_cuts(r, s, ms(150));
  draw_pauses(r, s, ms(150));
  draw_rings_and_pools(r, s);
  if (s.theme == Theme::kCrashes || r.chance(0.4)) draw_crashes(r, s);
  if (s.theme == Theme::kCrashes && s.jobs[0].ranks <= 2) draw_crash_at_first_result(r, s);
  if (s.theme == Theme::kLost) draw_end_of_a_shard(r, s);
  if (s.theme == Theme::kStandby) draw_standby(r, s);
}

/// The same faults, with a hostile host that must have no effect.
void draw_hostile(Random& r, Scenario& s) {
  s.trust = Trust::kAuthenticated;
  draw_recovery(r, s);
  draw_overheard(r, s);
  if (r.chance(0.2)) draw_standby(r, s);
}

/// 1% loss, and one rank that does not run for 0.3 s of every second; nothing else.
void draw_straggling(Random& r, Scenario& s) {
  s.link = LinkModel{.delay = s.link.delay, .loss = 0.01};
  s.liveness = ms(1000);
  s.integrity = false;
  s.faults_end = Time{ms(8000)};
  s.receive_ring = 256;
  const unsigned ranks = draw_ranks(r);
  JobPlan job = draw_job(r, s, 10, ranks);
  job.pause_max = ms(500);
  job.programs.push_back(draw_program(r, job, 1, r.between(6, 12), draw_bytes(r, ranks)));
  s.jobs.push_back(std::move(job));
  draw_slow_rank(r, s);
}

/// Two equal jobs at the link of one aggregator, of 100 to 500 Mbit/s, which either can fill.
void draw_shared_links(Random& r, Scenario& s) {
  s.link =
      LinkModel{.delay = ms(r.uniform(0.05, 0.3)), .host_bytes_per_us = r.pick({12.5, 25.0, 62.5})};
  s.integrity = false;
  s.faults_end = Time{};
  s.receive_ring = 1024;
  s.shards = s.lanes = 1;
  s.payload_bytes = 1400;
  const auto ranks = static_cast<unsigned>(r.between(4, 8));
  const Program sum{long_sum(r, 0, 2000)};
  for (const auto streams : {std::uint16_t{128}, std::uint16_t{32}}) {
    JobPlan job = draw_job(r, s, static_cast<std::uint32_t>(10 + s.jobs.size()), ranks);
    job.payload_bytes.assign(ranks, s.payload_bytes);
    job.streams = streams;
    job.pause_max = job.start_spread = {};
    job.programs.push_back(sum);
    s.jobs.push_back(std::move(job));
  }
}

/// Links of 100 Mbit/s to 1 Gbit/s, whose queues can hold all that the streams can send, or less.
void draw_full_links(Random& r, Scenario& s) {
  s.link = LinkModel{.delay = ms(r.uniform(0.05, 0.3)),
                     .host_bytes_per_us = r.pick({12.5, 25.0, 62.5, 125.0})};
  s.integrity = false;
  s.faults_end = Time{};
  s.receive_ring = 1024;
  s.shards = static_cast<unsigned>(r.between(1, 8));
  draw_lanes(s);
  s.payload_bytes = 1400;
  const auto ranks = static_cast<unsigned>(r.between(2, 8));
  JobPlan job = draw_job(r, s, 10, ranks);
  job.payload_bytes.assign(ranks, s.payload_bytes);
  job.streams = static_cast<std::uint16_t>(r.pick<std::uint64_t>({16, 64, 128}));
  job.pause_max = job.start_spread = {};
  job.programs.push_back(draw_long_sums(r, r.between(1, 3)));
  if (s.theme == Theme::kIncast) {
    s.link.host_queue_bytes = 64 * 1400;
    s.shards = static_cast<unsigned>(r.between(1, 2));
    draw_lanes(s);
    job.streams = static_cast<std::uint16_t>(r.pick<std::uint64_t>({32, 64}));
  }
  s.jobs.push_back(std::move(job));
}

/// As many aggregators as ranks, with links of 400 Mbit/s that lose 1%.
void draw_lossy_links(Random& r, Scenario& s) {
  s.link = LinkModel{.delay = ms(r.uniform(0.05, 0.3)), .host_bytes_per_us = 50, .loss = 0.01};
  s.integrity = false;
  s.faults_end = Time{std::chrono::seconds(10)};
  s.receive_ring = 1024;
  s.lanes = 1;
  s.payload_bytes = 1400;
  s.shards = static_cast<unsigned>(r.pick({2, 4, 8}));
  JobPlan job = draw_job(r, s, 10, s.shards);
  job.payload_bytes.assign(job.ranks, s.payload_bytes);
  job.streams = 64;
  job.pause_max = job.start_spread = {};
  job.programs.push_back({long_sum(r, 0, 8000)});
  s.jobs.push_back(std::move(job));
}

/// Many rounds on a network without faults, but some ranks do not receive their group.
void draw_no_multicast(Random& r, Scenario& s) {
  s.link = LinkModel{.delay = ms(r.uniform(0.05, 0.3))};
  s.integrity = false;
  s.faults_end = Time{};
  s.receive_ring = 1024;
  s.payload_bytes = 1400;
  const auto ranks = static_cast<unsigned>(r.between(3, 8));
  JobPlan job = draw_job(r, s, 10, ranks);
  job.payload_bytes.assign(ranks, s.payload_bytes);
  job.streams = static_cast<std::uint16_t>(r.between(s.shards, 8));
  job.shared_port = true;
  job.pause_max = job.start_spread = {};
  job.programs.push_back(draw_long_sums(r, r.between(3, 6)));
  s.jobs.push_back(std::move(job));
}

/// Up to 256 ranks, with few and small ops.
void draw_wide(Random& r, Scenario& s) {
  s.shards = static_cast<unsigned>(r.between(1, 2));
  draw_lanes(s);
  s.link.bytes_per_us = 0;
  s.link.duplicate = std::min(s.link.duplicate, 0.1);
  s.link.loss = std::min(s.link.loss, 0.2);
  s.faults_end = Time{ms(300)};
  if (r.chance(0.5)) s.payload_bytes = 508;
  const auto ranks = static_cast<unsigned>(r.pick<std::uint64_t>({64, r.between(65, 255), 256}));
  JobPlan job = draw_job(r, s, 7, ranks);
  job.streams = static_cast<std::uint16_t>(r.pick<std::uint64_t>({r.between(1, 4), 16, 64}));
  job.fault = r.pick({Fault::kNone, Fault::kDisconnect, Fault::kRejoin, Fault::kEarlyLeave});
  job.programs.push_back(draw_program(r, job, 1, 2, 2048));
  if (job.fault == Fault::kRejoin) job.programs.push_back(draw_program(r, job, 2, 1, 256));
  job.start_spread = std::min<Duration>(job.start_spread, milliseconds(100));
  s.jobs.push_back(std::move(job));
}

/// Faults that together would silence living processes for too long are not combined.
void moderate(Scenario& s) {
  if (!s.cuts.empty()) s.link.loss = std::min(s.link.loss, 0.1);
  if (s.pool_misses >= 0.1 || s.full_rings >= 0.1) s.link.loss = std::min(s.link.loss, 0.05);
  const bool contested = std::any_of(s.jobs.begin(), s.jobs.end(), [](const JobPlan& job) {
    return job.fault == Fault::kDuplicateRank;
  });
  if (!contested) return;
  // A process that is silent for long is declared failed, and another may take its place.
  s.cuts.clear();
  s.pauses.clear();
  s.pool_exhaustions.clear();
  s.pool_misses = std::min(s.pool_misses, 0.01);
  s.full_rings = std::min(s.full_rings, 0.01);
  s.link.loss = std::min(s.link.loss, 0.01);
  s.link.bit_flips = std::min(s.link.bit_flips, 0.01);
}

}  // namespace

std::uint16_t JobPlan::smallest_payload() const {
  return *std::min_element(payload_bytes.begin(), payload_bytes.end());
}

double Scenario::loss() const {
  const double pools = 1 - (1 - pool_misses) * (1 - pool_misses);  // of the sender, of the receiver
  return link.loss + pools + full_rings + link.bit_flips;
}

Duration Scenario::longest_way() const {
  const bool all_arrive =
      loss() == 0 && cuts.empty() && pauses.empty() && pool_exhaustions.empty() && crashes.empty();
  return link.ancient > 0 && !all_arrive ? kAncient : link.late_max;
}

Duration Scenario::settling_bound() const {
  // Every time-out may have to pass once, for the generation that the faults have spoiled and for
  // the one that the ranks begin again. Then the remaining ops follow, with at most one block, or
  // key, per round.
  Duration bound = 2 * (liveness + kFormation + kAggregatorTimeout + kJoinTimeout);
  for (const JobPlan& job : jobs)
    if (!job.hosts.empty()) bound += 2 * (kFormation + kJoinTimeout);  // for its rails
  for (const JobPlan& job : jobs)
    for (const Program& program : job.programs)
      for (const OpSpec& op : program)
        bound += job.pause_max +
                 4 * link.delay *
                     (2 + op.element_count / (is_keyed(op) ? 1 : wanted_block_elements(job, op)));
  return bound;
}

Scenario make_scenario(std::uint64_t seed) {
  Random r(derive(seed, 0));
  Scenario s;
  s.seed = seed;
  s.link = draw_link(r);
  s.faults_end = Time{ms(r.pick({300.0, 5000.0, 5000.0}))};
  s.payload_bytes = static_cast<std::uint16_t>(
      r.pick<std::uint64_t>({508, 508, 1400, 9000, r.between(508, 2000), r.between(508, 9000)}));
  s.streams = static_cast<std::uint16_t>(r.between(1, 16));
  s.history = r.pick<std::uint8_t>({2, 4, 8});
  s.shards = static_cast<unsigned>(r.pick({1, 1, 1, 2, 3, 4}));
  draw_lanes(s);
  s.integrity = r.chance(0.4);
  if (s.integrity) s.link.bit_flips = r.pick({0.001, 0.01, 0.05});
  s.trust = r.pick({Trust::kNone, Trust::kSecret, Trust::kAuthenticated});
  s.theme =
      seed % 33 == 32 ? Theme::kManyRanks
      : seed % 33 == 31
          ? r.pick({Theme::kFullLinks, Theme::kIncast, Theme::kSharedLinks, Theme::kLossyLinks})
      : seed % 33 == 30 ? Theme::kNoMulticast
                        : draw_theme(r);
  switch (s.theme) {
    case Theme::kMixed:
      draw_mixed(r, s);
      break;
    case Theme::kCrashes:
    case Theme::kLost:
    case Theme::kStandby:
      draw_recovery(r, s);
      break;
    case Theme::kHostileHost:
      draw_hostile(r, s);
      break;
    case Theme::kSlowRank:
      draw_straggling(r, s);
      break;
    case Theme::kManyRanks:
      draw_wide(r, s);
      break;
    case Theme::kFullLinks:
    case Theme::kIncast:
      draw_full_links(r, s);
      break;
    case Theme::kSharedLinks:
      draw_shared_links(r, s);
      break;
    case Theme::kLossyLinks:
      draw_lossy_links(r, s);
      break;
    case Theme::kNoMulticast:
      draw_no_multicast(r, s);
      break;
  }
  draw_clocks(r, s);
  moderate(s);
  const bool crashes_at_first_result = s.theme == Theme::kCrashes && s.jobs[0].ranks <= 2;
  const bool recovers = s.theme == Theme::kCrashes || s.theme == Theme::kStandby;
  if (recovers && !crashes_at_first_result) draw_late_ranks(seed, s);
  Random places(derive(seed, 1));
  for (JobPlan& job : s.jobs)
    job.is_local =
        s.link.host_bytes_per_us == 0 && places.chance(0.5) && s.theme != Theme::kNoMulticast;
  if (s.trust == Trust::kAuthenticated && Random(derive(seed, 4)).chance(0.5))
    s.trust = Trust::kEncrypted;
  draw_groups(seed, s);
  s.source_ports = Random(derive(seed, 6)).chance(0.5);
  draw_hosts(seed, s);
  return s;
}

const char* name(Theme theme) {
  static constexpr const char* kNames[] = {
      "mixed",        "crashes",    "lost",   "standby",      "slow rank",   "many ranks",
      "hostile host", "full links", "incast", "shared links", "lossy links", "unreachable group"};
  return kNames[static_cast<std::size_t>(theme)];
}

const char* name(Fault fault) {
  static constexpr const char* kNames[] = {
      "none",           "silent death",   "disconnect",       "op mismatch",       "early leave",
      "aborting leave", "duplicate rank", "wrong world size", "rank beyond world", "join mismatch",
      "rejoin",         "shut down",      "op timed out"};
  return kNames[static_cast<std::size_t>(fault)];
}

const char* name(Trust trust) {
  static constexpr const char* kNames[] = {"no secret", "secret", "packets authenticated",
                                           "packets encrypted"};
  return kNames[static_cast<std::size_t>(trust)];
}

std::shared_ptr<const Secret> secret_of(std::uint32_t job, const Scenario& scenario) {
  if (scenario.trust == Trust::kNone) return nullptr;
  const bool has_own = std::ranges::any_of(
      scenario.jobs, [job](const JobPlan& plan) { return plan.id == job && plan.hosts.empty(); });
  return std::make_shared<const Secret>(has_own ? "the simulated job " + std::to_string(job)
                                                : "the simulated jobs of hosts");
}

std::string describe(const Scenario& s) {
  std::ostringstream out;
  out << "seed " << s.seed << " (" << name(s.theme) << "): " << s.aggregators() << " aggregators"
      << (s.lanes > 1 ? " of " + std::to_string(s.lanes) + " lanes" : "") << ", payload "
      << s.payload_bytes << ", loss " << s.link.loss << ", duplicate " << s.link.duplicate
      << ", late " << s.link.late << " up to "
      << std::chrono::duration_cast<milliseconds>(s.link.late_max).count() << " ms, ancient "
      << s.link.ancient << ", garbage " << s.link.garbage << ", bit flips " << s.link.bit_flips
      << (s.integrity ? " with" : " without") << " integrity, " << name(s.trust) << ", "
      << (s.multicast ? "multicast, " : "") << (s.source_ports ? "source ports, " : "")
      << s.cuts.size() << " cuts, " << s.pauses.size() << " pauses, " << s.pool_exhaustions.size()
      << " pool exhaustions, " << s.crashes.size() << " crashes, " << s.standbys.size()
      << " standbys, clocks off by " << s.clock_drift_max << "\n";
  for (const JobPlan& job : s.jobs) {
    out << "  job " << job.id << ": " << job.ranks << " ranks, S " << job.streams << ", H "
        << unsigned{job.history} << ", block " << job.block_elements << ", depth " << job.depth
        << ", search " << job.search.ahead_bytes << " to " << job.search.lookahead_bytes
        << (job.hosts.empty() ? "" : ", on " + std::to_string(job.host_count()) + " hosts")
        << (job.is_local ? ", local" : "") << (job.shared_port ? ", at one port" : "") << ", fault "
        << name(job.fault) << " (rank " << job.victim << ")\n";
    for (const Program& program : job.programs)
      for (const OpSpec& op : program)
        out << "    op of " << op.element_count << " " << sluice::name(op.type) << " "
            << sluice::name(op.reduction) << ", block " << wanted_block_elements(job, op)
            << ", density " << op.density
            << (is_keyed(op) ? ", keys below " + std::to_string(op.key_bound) + " with rows of " +
                                   std::to_string(op.row_elements) + ", threshold " +
                                   std::to_string(op.threshold)
                             : "")
            << (op.poisoned ? ", poisoned" : "") << "\n";
  }
  return out.str();
}

}  // namespace sluice::sim
