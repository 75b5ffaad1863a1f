// How the network behaves.
#include <algorithm>

#include "tests/sim/draw.hpp"

namespace sluice::sim {

LinkModel draw_link(Random& r) {
  LinkModel link;
  link.delay = ms(r.uniform(0.3, 1.5));
  link.bytes_per_us = r.pick({0.0, 0.0, 100.0, 1000.0});
  link.loss = r.pick({0.0, 0.01, 0.1, r.uniform(0, 0.3), 0.3});
  link.duplicate = r.pick({0.0, 0.1, r.uniform(0, 0.5), 0.5});
  link.late = r.pick({0.0, 0.1, 0.4});
  link.late_max = ms(r.pick({6.0, 25.0, 80.0}));
  link.ancient = r.pick({0.0, 0.02, 0.1});
  link.garbage = r.pick({0.0, 0.0, 0.02, 0.1});
  return link;
}

namespace {

RankSet some_ranks(Random& r, unsigned ranks) {
  RankSet set;
  set.insert(Rank{static_cast<std::uint16_t>(r.below(ranks))});
  const double more = r.pick({0.0, 0.0, 0.3, 1.0});
  for (std::uint16_t rank = 0; rank < ranks; ++rank)
    if (r.chance(more)) set.insert(Rank{rank});
  return set;
}

}  // namespace

void draw_overheard(Random& r, Scenario& s) {
  unsigned ranks = 1;
  for (const JobPlan& job : s.jobs) ranks = std::max(ranks, job.ranks);
  s.overheard = some_ranks(r, ranks);
}

void draw_late_ranks(std::uint64_t seed, Scenario& s) {
  Random r(derive(seed, 2));
  if (r.chance(0.4)) return;
  const std::uint64_t late_rank = r.below(s.jobs[0].ranks);
  s.late_ranks.insert(Rank{static_cast<std::uint16_t>(late_rank)});
  s.link.late = std::max(s.link.late, 0.1);
  s.link.late_max = std::max(s.link.late_max, ms(200));  // requested packets come late again
  for (JobPlan& job : s.jobs)  // other jobs only continue while they need nothing of it
    for (Program& program : job.programs)
      for (OpSpec& op : program)
        if (!moves(op) && r.chance(0.6))
          op.lone_owner = static_cast<int>((late_rank + 1) % job.ranks);
}

void draw_cuts(Random& r, Scenario& s, Duration longest) {
  const std::uint64_t count = r.pick<std::uint64_t>({0, 0, 1, 2, 3});
  for (std::uint64_t i = 0; i < count; ++i) {
    Cut cut;
    cut.job = r.below(s.jobs.size());
    cut.ranks = some_ranks(r, s.jobs[cut.job].ranks);
    const std::uint32_t all = (1u << s.shards) - 1;
    cut.shards = r.chance(0.5) ? all : 1u << r.below(s.shards);
    cut.downstream = r.chance(0.7);
    cut.from = Time{ms(r.pick({r.uniform(0, 50), r.uniform(0, 300)}))};
    cut.to = cut.from + std::min(longest, ms(r.pick({10.0, 30.0, 150.0, 400.0})));
    if (r.chance(0.3)) cut.bytes_per_us = r.uniform(0.01, 0.5);
    s.cuts.push_back(cut);
  }
}

/// Half of the scenarios have groups; some ranks receive their group only for a while, or never.
void draw_groups(std::uint64_t seed, Scenario& s) {
  Random r(derive(seed, 5));
  s.multicast = r.chance(0.5) || s.theme == Theme::kNoMulticast;
  if (!s.multicast) return;
  for (JobPlan& job : s.jobs) job.shared_port = job.shared_port || r.chance(0.8);
  if (s.link.host_bytes_per_us > 0) return;  // nothing may be lost there
  for (auto i = r.pick<unsigned>({s.theme == Theme::kNoMulticast, 0u, 1u, 2u}); i > 0; --i) {
    Cut cut;
    cut.of_group = true;
    cut.job = r.below(s.jobs.size());
    cut.ranks = some_ranks(r, s.jobs[cut.job].ranks);
    cut.shards = r.chance(0.7) ? (1u << s.shards) - 1 : 1u << r.below(s.shards);
    cut.from = Time{ms(r.pick({0.0, r.uniform(0, 50), r.uniform(0, 1000)}))};
    cut.to = r.chance(0.5) ? kNever : cut.from + ms(r.uniform(20, 1500));
    s.cuts.push_back(cut);
  }
}

}  // namespace sluice::sim
