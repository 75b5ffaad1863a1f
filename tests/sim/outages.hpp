// Which processes could not reach each other, and when: this justifies errors about silence.
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

  /// The shard serves nobody from `from` to `to`.
  void shard_down(unsigned shard, Time from, Time to);
  /// It serves again, earlier than was said.
  void shard_back(unsigned shard, Time at);

  /// How long, between `from` and `to`, packets could not pass between a shard and a rank in one
  /// direction or the other.
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
