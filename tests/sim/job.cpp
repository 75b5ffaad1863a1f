#include "tests/sim/job.hpp"

#include <algorithm>

#include "tests/sim/app.hpp"

namespace sluice::sim {

const Outcome& Job::outcome(std::size_t program, std::size_t op, std::uint32_t block_elements) {
  const auto [found, made] = outcomes_.try_emplace({program, op});
  const OpSpec& spec = plan.programs[program][op];
  if (made)
    found->second = plan.sums_by_hosts(spec)
                        ? reduce_by_hosts(spec, HostPlan(plan.hosts), block_elements)
                        : reduce(spec, plan.ranks, block_elements);
  return found->second;
}

const PairSums& Job::sums(std::size_t program, std::size_t op, unsigned chunk_bits) {
  const auto [found, made] = sums_.try_emplace({program, op});
  const OpSpec& spec = plan.programs[program][op];
  if (made)
    found->second = plan.sums_by_hosts(spec)
                        ? sum_pairs_by_hosts(spec, HostPlan(plan.hosts), chunk_bits)
                        : sum_pairs(spec, plan.ranks, chunk_bits);
  return found->second;
}

std::optional<unsigned> Job::rank_of(std::uint32_t id, unsigned number) const {
  if (id == plan.id) return number;
  const auto rail = rails_.find(id);
  if (rail == rails_.end()) return std::nullopt;
  return rail->second.at(number).value;
}

std::optional<unsigned> Job::number_of(std::uint32_t id, unsigned rank) const {
  if (id == plan.id) return rank;
  const auto rail = rails_.find(id);
  if (rail == rails_.end()) return std::nullopt;
  const auto found = std::ranges::find(rail->second, rank, &Rank::value);
  if (found == rail->second.end()) return std::nullopt;
  return static_cast<unsigned>(found - rail->second.begin());
}

std::shared_ptr<HostGroup> Job::host_group(std::uint32_t id, unsigned host, std::size_t ranks) {
  auto& group = host_groups_[{id, host}];
  if (group) return group;
  Random random(derive(world_.scenario.seed, 8000 + 100 * index + host_groups_.size()));
  HostSizes sizes;
  sizes.ranks = ranks;
  sizes.calls = random.between(1, 4);
  sizes.slots = random.between(1, 3);
  sizes.blocks = sizes.slots + random.below(3);
  sizes.slot_bytes = std::size_t{16} << 10;
  group = std::make_shared<HostGroup>(sizes, random.pick<std::size_t>({64, 1024, 4096}));
  return group;
}

bool Job::anyone(bool RankFacts::*fact) const {
  return std::any_of(ranks.begin(), ranks.end(), [fact](const auto& r) { return r.*fact; });
}

bool Job::shard_gone(unsigned shard) const {
  const auto serves = [&](const auto& a) { return a->shard() == shard && !a->ended(); };
  return std::none_of(aggregators_.begin(), aggregators_.end(), serves);
}

bool Job::shard_gone() const {
  for (unsigned shard = 0; shard < world_.scenario.shards; ++shard)
    if (shard_gone(shard)) return true;
  return false;
}

}  // namespace sluice::sim
