// Checks from which UDP ports ranks send: the ports that an aggregator chose for them, and without
// faults no others. (If such a port gets no answer, a rank uses its own again.)
#pragma once

#include <array>
#include <map>
#include <set>
#include <utility>

#include "common/base/limits.hpp"
#include "common/protocol/packet.hpp"
#include "tests/sim/counting.hpp"
#include "tests/sim/network.hpp"

namespace sluice::sim {

class SourcePortWatch {
 public:
  SourcePortWatch(const Scenario& scenario, Coverage& coverage)
      : scenario_(scenario), coverage_(coverage) {}

  void on_send(const Endpoint& from, const Endpoint& to, const Packet& packet);

 private:
  struct Told {
    // All that were ever chosen, by lane.
    std::array<std::set<std::uint16_t>, limits::kMaxLanes> ports;
    std::array<std::set<std::uint16_t>, limits::kMaxLanes> joined_from;
  };

  /// The process of the lane, by the address of its lane 0; and the number of the lane.
  std::pair<Address, unsigned> lane_at(Address shard) const;
  void on_challenge(const Endpoint& from, const Endpoint& to, const wire::Challenge& challenge);
  bool is_faultless() const;

  const Scenario& scenario_;
  Coverage& coverage_;
  std::map<std::pair<Address, Address>, Told> told_;  // by process and rank
};

}  // namespace sluice::sim
