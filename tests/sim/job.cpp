#include "tests/sim/job.hpp"

#include <algorithm>

#include "tests/sim/app.hpp"

namespace sluice::sim {

const Outcome& Job::outcome(std::size_t program, std::size_t op, std::uint32_t block_elements) {
  const auto [found, made] = outcomes_.try_emplace({program, op});
  if (made) found->second = reduce(plan.programs[program][op], plan.ranks, block_elements);
  return found->second;
}

const PairSums& Job::sums(std::size_t program, std::size_t op, unsigned chunk_bits) {
  const auto [found, made] = sums_.try_emplace({program, op});
  if (made) found->second = sum_pairs(plan.programs[program][op], plan.ranks, chunk_bits);
  return found->second;
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
