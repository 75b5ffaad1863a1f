// What happens to processes: pauses, empty pools, full rings, wrong clocks, crashes of aggregators.
#include "tests/sim/draw.hpp"

namespace sluice::sim {
namespace {

Target draw_target(Random& r, const Scenario& s) {
  Target who;
  who.aggregator = r.chance(0.5);
  who.shard = static_cast<unsigned>(r.below(s.shards));
  who.job = r.below(s.jobs.size());
  who.rank = static_cast<unsigned>(r.below(s.jobs[who.job].ranks));
  return who;
}

/// Soon after it has begun to listen, in the middle of its work, or late.
std::uint64_t draw_sends(Random& r) {
  return 1 + r.pick<std::uint64_t>({r.below(20), r.below(40), r.below(150), r.below(600)});
}

}  // namespace

void draw_clocks(Random& r, Scenario& s) {
  s.clock_offset_max = ms(r.pick({0.0, 1000.0, 1e9}));
  s.clock_drift_max = r.pick({0.0, 1e-5, 1e-3});
}

void draw_rings_and_pools(Random& r, Scenario& s) {
  s.pool_misses = r.pick({0.0, 0.0, 0.01, 0.1});
  s.full_rings = r.pick({0.0, 0.0, 0.01, 0.1});
  s.receive_ring = r.pick<std::size_t>({4, 16, 64, 256});
  const std::uint64_t count = r.pick<std::uint64_t>({0, 0, 1, 3});
  for (std::uint64_t i = 0; i < count; ++i) {
    PoolExhaustion d;
    d.who = draw_target(r, s);
    d.from = Time{ms(r.uniform(0, 200))};
    d.to = d.from + ms(r.pick({1.0, 20.0, 200.0}));
    s.pool_exhaustions.push_back(d);
  }
}

void draw_pauses(Random& r, Scenario& s, Duration longest) {
  const std::uint64_t count = r.pick<std::uint64_t>({0, 0, 1, 3});
  for (std::uint64_t i = 0; i < count; ++i)
    s.pauses.push_back({draw_target(r, s), Time{ms(r.pick({r.uniform(0, 50), r.uniform(0, 500)}))},
                        std::min(longest, ms(r.pick({5.0, 60.0, 150.0, 300.0, 1000.0, 3000.0})))});
}

void draw_crashes(Random& r, Scenario& s) {
  const std::uint64_t count = r.pick<std::uint64_t>({1, 1, 2, 3, 5});
  for (std::uint64_t i = 0; i < count; ++i)
    s.crashes.push_back({static_cast<unsigned>(r.below(s.shards)), draw_sends(r),
                         ms(r.pick({1.0, 10.0, r.uniform(1, 150), 600.0})), r.chance(0.3)});
}

/// A result is under way to ranks that join again without progress.
void draw_crash_at_first_result(Random& r, Scenario& s) {
  if (r.chance(0.5)) return;
  s.link.late = 0.4;
  s.link.late_max = ms(80);
  const auto shard = static_cast<unsigned>(r.below(s.shards));
  s.crashes.insert(s.crashes.begin(), {shard, r.between(3, 16), ms(1)});
}

void draw_end_of_a_shard(Random& r, Scenario& s) {
  s.crashes.push_back(
      {static_cast<unsigned>(r.below(s.shards)), draw_sends(r), std::nullopt, r.chance(0.3)});
}

void draw_standby(Random& r, Scenario& s) {
  draw_end_of_a_shard(r, s);
  const Standby first{s.crashes.back().shard, r.chance(0.5), ms(r.uniform(1, 600))};
  for (unsigned shard = first.shard % s.aggregators(); shard < s.shards; shard += s.aggregators())
    s.standbys.push_back({shard, first.from_start, first.takes_over_after});
}

void draw_slow_rank(Random& r, Scenario& s) {
  Target who;
  who.aggregator = false;
  who.rank = static_cast<unsigned>(r.below(s.jobs[0].ranks));
  const Time first{ms(r.uniform(0, 1000))};
  for (int i = 0; i < 8; ++i) s.pauses.push_back({who, first + i * ms(1000), ms(300)});
}

}  // namespace sluice::sim
