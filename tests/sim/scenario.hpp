// What happens in one simulation, drawn from a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.hpp"
#include "tests/sim/tensors.hpp"

namespace sluice::sim {

/// How every path between a worker and an aggregator behaves until `Scenario::faults_end`.
struct LinkModel {
  Duration delay{};
  double bytes_per_us = 0;  ///< 0: no limit
  double loss = 0;
  double duplicate = 0;
  double late = 0;  ///< share of packets that are delayed up to `late_max` more
  Duration late_max{};
  double ancient = 0;  ///< share of packets that come once more, up to seconds later
  double garbage = 0;  ///< share of packets that come once more, damaged
};

/// One process hears nothing, or is not heard.
struct Blackout {
  std::size_t job = 0;
  unsigned rank = 0;
  bool downstream = true;
  Time from{};
  Time to{};
};

/// An aggregator is killed in the middle of a send and started anew.
struct Crash {
  unsigned shard = 0;
  std::uint64_t after_sends = 0;
  Duration down{};
};

/// A process's pool is empty.
struct Drought {
  bool aggregator = true;
  unsigned which = 0;  ///< shard, or rank of every job
  Time from{};
  Time to{};
};

enum class Fault {
  kNone,
  kSilentDeath,    ///< a rank dies; liveness must notice
  kHangUp,         ///< a rank dies and its port hangs up
  kOpMismatch,     ///< a rank calls another collective
  kEarlyLeave,     ///< a rank leaves before the others have called all their ops
  kAbortingLeave,  ///< a rank leaves with ops pending
  kDuplicateRank,  ///< a second process claims a rank
  kWrongWorldSize,
  kRankBeyondWorld,
  kJoinMismatch,  ///< a rank wants other session settings
  kRejoin,        ///< all leave and join again at once
  kShutDown,      ///< an aggregator shuts down for good
};
const char* name(Fault fault);

using Program = std::vector<OpSpec>;

struct JobPlan {
  std::uint32_t id = 1;
  unsigned ranks = 1;
  std::uint16_t streams = 0;
  std::uint8_t history = 0;
  std::uint16_t block_elements = 256;
  std::vector<std::uint16_t> payload_bytes;  ///< offered, by rank
  unsigned depth = 1;                        ///< ops in flight
  Duration start_spread{};
  Duration pause_max{};           ///< between ops
  bool shared_port = false;       ///< all ranks behind one port of the aggregator
  std::vector<Program> programs;  ///< one life of the job after the other
  Fault fault = Fault::kNone;
  unsigned victim = 0;
  Duration fault_after{};
  std::optional<Duration> revived_after;  ///< a dead rank comes back
  std::size_t fault_op = 0;               ///< of the first program
  OpSpec other_op{};                      ///< what the victim calls instead
  bool swapped = false;                   ///< or it calls that op and the next in swapped order

  std::uint16_t smallest_payload() const;
};

struct Scenario {
  std::uint64_t seed = 0;
  unsigned shards = 1;
  std::uint16_t payload_bytes = 1400;  ///< of the aggregators
  std::uint16_t streams = 4;
  std::uint8_t history = 8;
  LinkModel link;
  Time faults_end{};
  std::vector<Blackout> blackouts;
  std::vector<Crash> crashes;
  std::vector<Drought> droughts;
  double pool_misses = 0;  ///< share of allocations that fail until the faults end
  std::vector<JobPlan> jobs;

  bool crashed_shard(unsigned shard) const;
};

Scenario make_scenario(std::uint64_t seed);
std::string describe(const Scenario& scenario);

// Times that all scenarios share; a link's delay is about one millisecond.
inline constexpr Duration kLiveness = std::chrono::milliseconds(1200);
inline constexpr Duration kFormation = std::chrono::milliseconds(2000);
inline constexpr Duration kAggregatorTimeout = std::chrono::milliseconds(4500);
inline constexpr Duration kJoinTimeout = std::chrono::milliseconds(8000);
inline constexpr Duration kTurn = std::chrono::microseconds(20);  // of a poll loop

}  // namespace sluice::sim
