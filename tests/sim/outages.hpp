// Who could not hear whom, and when: what makes an error about silence just.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/scenario.hpp"

namespace sluice::sim {

class Outages {
 public:
  explicit Outages(const Scenario& scenario);

  void add(const Cut& cut);
  void add(const Target& who, Time from, Time to);

  /// From now on until `to` the shard serves nobody.
  void shard_down(unsigned shard, Time from, Time to);
  /// It does again, earlier than was said.
  void shard_back(unsigned shard, Time at);

  /// For how much of the time between `from` and `to` the path between a shard and a rank was not
  /// whole, in either direction.
  Duration blocked(unsigned shard, std::size_t job, unsigned rank, Time from, Time to) const;

 private:
  struct Outage {
    Time from;
    Time to;
    std::uint32_t shards;  // bit per shard
    std::size_t job;       // kAnyJob: all
    RankSet ranks;
    bool crash = false;
  };

  std::vector<Outage> outages_;
};

}  // namespace sluice::sim
