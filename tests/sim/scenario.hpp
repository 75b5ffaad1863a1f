// What happens in one simulation, drawn from a seed: first a phase with faults, then none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/secret.hpp"
#include "tests/sim/tensors.hpp"
#include "worker/engine/nonzero_map.hpp"
#include "worker/hierarchy/steps.hpp"

namespace sluice::sim {

// Times that all scenarios share; a link's delay is about one millisecond.
inline constexpr Duration kLiveness = std::chrono::milliseconds(1200);
inline constexpr Duration kFormation = std::chrono::milliseconds(2000);
inline constexpr Duration kAggregatorTimeout = std::chrono::milliseconds(4500);
inline constexpr Duration kJoinTimeout = std::chrono::milliseconds(8000);
inline constexpr Duration kJoinRetryMax = std::chrono::milliseconds(40);
inline constexpr Duration kAncient = std::chrono::milliseconds(3000);  // oldest packet that comes
inline constexpr Duration kTurn = std::chrono::microseconds(20);       // of a poll loop

/// The behaviour of every path between a worker and an aggregator until `Scenario::faults_end`.
struct LinkModel {
  Duration delay{};
  double bytes_per_us = 0;           ///< of each path; 0: no limit
  double host_bytes_per_us = 0;      ///< of each host's link, in each direction; 0: no limit
  std::size_t host_queue_bytes = 0;  ///< that may wait for the link to a host; 0: any number
  double loss = 0;
  double duplicate = 0;
  double late = 0;  ///< share of packets that are delayed up to `late_max` more
  Duration late_max{};
  double ancient = 0;    ///< share of packets that come a second time, up to kAncient later
  double garbage = 0;    ///< share of packets that come a second time, damaged except for tokens
  double bit_flips = 0;  ///< share of packets with flipped bits anywhere; needs integrity
};

/// Between some ranks of a job and some aggregators, few or no packets pass in one direction.
struct Cut {
  std::size_t job = 0;
  RankSet ranks;
  std::uint32_t shards = 0;  ///< bit per shard
  bool downstream = true;
  Time from{};
  Time to{};
  double bytes_per_us = 0;  ///< 0: a partition; otherwise the path is congested, with a short queue
  bool of_group = false;    ///< only packets to the group do not pass, perhaps for ever
};

/// The process that a fault affects: an aggregator, or a rank of a job.
struct Target {
  bool aggregator = true;
  unsigned shard = 0;
  std::size_t job = 0;
  unsigned rank = 0;
};

/// A process does not run. Then it gets what its receive ring could hold.
struct Pause {
  Target who;
  Time from{};
  Duration length{};
};

/// A process's pool is empty.
struct PoolExhaustion {
  Target who;
  Time from{};
  Time to{};
};

/// An aggregator is killed in the middle of a send, or retires and ends. It is started again,
/// unless it ended for good.
struct Crash {
  unsigned shard = 0;
  std::uint64_t after_sends = 0;  ///< in that generation
  std::optional<Duration> down{};
  bool retires = false;
};

/// A second process of a shard, at an address that the workers know.
struct Standby {
  unsigned shard = 0;
  bool from_start = false;  ///< otherwise it starts some time after the first one died
  Duration takes_over_after{};
};

enum class Fault {
  kNone,
  kSilentDeath,    ///< a rank dies; liveness must notice
  kDisconnect,     ///< a rank dies and its port disconnects
  kOpMismatch,     ///< a rank calls another collective
  kEarlyLeave,     ///< a rank leaves before the others have called all their ops
  kAbortingLeave,  ///< a rank leaves with ops pending
  kDuplicateRank,  ///< a second process claims a rank
  kWrongWorldSize,
  kRankBeyondWorld,
  kJoinMismatch,  ///< a rank wants other session settings
  kRejoin,        ///< all leave and join again at once
  kShutDown,      ///< an aggregator retires for good
  kOpTimedOut,    ///< a rank ends the job if an op takes longer than `fault_after`
};
const char* name(Fault fault);

using Program = std::vector<OpSpec>;

struct JobPlan {
  std::uint32_t id = 1;
  unsigned ranks = 1;
  std::uint16_t streams = 0;
  std::uint8_t history = 0;
  std::uint16_t block_elements = 256;
  std::vector<std::uint16_t> payload_bytes;  ///< by rank: what it offers
  unsigned depth = 1;                        ///< ops in flight
  worker::SearchLimits search;
  Duration start_spread{};
  Duration pause_max{};      ///< between ops
  bool shared_port = false;  ///< all ranks behind one port of the aggregator
  bool is_local = false;     ///< all ranks are on the aggregators' machine
  /// By rank: what it says of its host, if several are on one; 0: it shares none.
  std::vector<std::uint64_t> hosts = {};
  std::uint64_t min_chunk_of_rail = worker::hierarchy::kMinChunkOfRail;
  std::vector<Program> programs;  ///< one generation of the job after the other
  Fault fault = Fault::kNone;
  unsigned victim = 0;
  Duration fault_after{};
  std::optional<Duration> revived_after;  ///< after this time a dead rank comes back
  std::size_t fault_op = 0;               ///< in the first program
  OpSpec other_op{};                      ///< what the victim calls instead
  bool swapped = false;                   ///< or it swaps that op and the next

  std::uint16_t smallest_payload() const;
  std::size_t host_count() const { return hosts.empty() ? ranks : HostPlan(hosts).hosts(); }
  bool sums_by_hosts(const OpSpec& op) const { return !hosts.empty() && sim::sums_by_hosts(op); }
};

/// For an op, before they are halved to fit.
inline std::uint16_t wanted_block_elements(const JobPlan& job, const OpSpec& op) {
  return op.block_elements == 0 ? job.block_elements : op.block_elements;
}

/// The theme of a scenario; within a theme everything is drawn at random.
enum class Theme {
  kMixed,        ///< faults of ranks and jobs
  kCrashes,      ///< aggregators die and come back: nothing else may fail
  kLost,         ///< an aggregator dies for good
  kStandby,      ///< another aggregator takes over
  kSlowRank,     ///< a rank that is paused again and again, and must never be declared failed
  kManyRanks,    ///< up to 256
  kHostileHost,  ///< a host without the secret overhears jobs that authenticate all packets
  kFullLinks,    ///< hosts have slow links, and nothing fails: nothing may be sent twice
  kIncast,       ///< the same with short queues, to which all ranks send at the same time
  kSharedLinks,  ///< two jobs at slow links, one with more streams: they get equal shares
  kLossyLinks,   ///< slow links lose packets: losses are soon repaired
  kNoMulticast,  ///< nothing is lost except multicast to some ranks
};
const char* name(Theme theme);

/// What the jobs of a scenario prove.
enum class Trust {
  kNone,
  kSecret,         ///< joins prove the job's secret
  kAuthenticated,  ///< in addition, every packet is authenticated
  kEncrypted       ///< in addition, packets with values are encrypted
};
const char* name(Trust trust);

struct Scenario {
  std::uint64_t seed = 0;
  Theme theme = Theme::kMixed;
  unsigned shards = 1;  ///< aggregators times lanes
  unsigned lanes = 1;   ///< of each aggregator
  unsigned aggregators() const { return shards / lanes; }
  std::uint16_t payload_bytes = 1400;  ///< of the aggregators
  std::uint16_t streams = 4;
  std::uint8_t history = 8;
  Duration liveness = kLiveness;
  bool integrity = false;
  bool multicast = false;     ///< jobs have groups
  bool source_ports = false;  ///< aggregators choose the UDP ports from which ranks send
  Trust trust = Trust::kNone;
  LinkModel link;
  Time faults_end{};
  RankSet late_ranks;  ///< ranks of all jobs; if packets are late, then most packets to these
  std::vector<Cut> cuts;
  std::vector<Pause> pauses;
  std::vector<PoolExhaustion> pool_exhaustions;
  std::vector<Crash> crashes;
  std::vector<Standby> standbys;
  double pool_misses = 0;         ///< share of allocations that fail, until the faults end
  double full_rings = 0;          ///< share of turns in which only a few packets can be sent
  std::size_t receive_ring = 64;  ///< packets that wait for a paused process
  Duration clock_offset_max{};
  double clock_drift_max = 0;  ///< seconds per second; clocks are fast or slow
  std::vector<JobPlan> jobs;
  RankSet overheard;  ///< ranks whose links a hostile host overhears; empty: there is no such host

  /// An upper bound of the share of packets that do not arrive, without cuts.
  double loss() const;
  /// How long a packet that is new to its receiver may have been under way.
  Duration longest_way() const;
  /// How long after the end of the faults everything must have ended.
  Duration settling_bound() const;
};

/// The secret of one of its jobs, for all that must know it; null if it has none. All jobs with
/// several ranks on a host have the secret of the first such job, as their rails do.
std::shared_ptr<const Secret> secret_of(std::uint32_t job, const Scenario& scenario);

Scenario make_scenario(std::uint64_t seed);
std::string describe(const Scenario& scenario);

}  // namespace sluice::sim
