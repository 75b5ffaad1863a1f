#include "tests/sim/outages.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sluice::sim {
namespace {

constexpr std::size_t kAnyJob = std::numeric_limits<std::size_t>::max();
constexpr std::uint32_t kAllShards = ~0u;

RankSet all_ranks() {
  return RankSet::first(kMaxRanks);
}

}  // namespace

Outages::Outages(const Scenario& scenario) {
  for (const Cut& cut : scenario.cuts)
    if (!cut.of_group) add(cut);
  for (const Pause& pause : scenario.pauses) add(pause.who, pause.from, pause.from + pause.length);
  for (const PoolExhaustion& exhaustion : scenario.pool_exhaustions)
    add(exhaustion.who, exhaustion.from, exhaustion.to);
}

void Outages::add(const Cut& cut) {
  outages_.push_back({cut.from, cut.to, cut.shards, cut.job, cut.ranks});
}

void Outages::add(const Target& who, Time from, Time to) {
  RankSet rank;
  rank.insert(Rank{static_cast<std::uint16_t>(who.rank)});
  if (who.aggregator)
    outages_.push_back({from, to, 1u << who.shard, kAnyJob, all_ranks()});
  else
    outages_.push_back({from, to, kAllShards, who.job, rank});
}

void Outages::shard_down(unsigned shard, Time from, Time to) {
  outages_.push_back({from, to, 1u << shard, kAnyJob, all_ranks(), true});
}

void Outages::shard_back(unsigned shard, Time at) {
  for (Outage& t : outages_)
    if (t.crash && t.shards == 1u << shard) t.to = std::min(t.to, at);
}

Duration Outages::blocked(unsigned shard, std::size_t job, unsigned rank, Time from,
                          Time to) const {
  std::vector<std::pair<Time, Time>> spans;
  for (const Outage& t : outages_) {
    const bool hit = (t.shards >> shard & 1) != 0 && (t.job == kAnyJob || t.job == job) &&
                     t.ranks.contains(Rank{static_cast<std::uint16_t>(rank)});
    if (hit && t.from < to && t.to > from) spans.push_back({t.from, t.to});
  }
  std::sort(spans.begin(), spans.end());
  Duration sum{};
  Time counted = from;
  for (const auto& [begin, end] : spans) {
    const Time first = std::max(begin, counted);
    const Time last = std::min(end, to);
    if (last <= first) continue;
    sum += last - first;
    counted = last;
  }
  return sum;
}

}  // namespace sluice::sim
