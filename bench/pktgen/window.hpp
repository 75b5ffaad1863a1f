// What happened between two readings of all counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/pktgen/histogram.hpp"
#include "bench/pktgen/memory_lane.hpp"
#include "bench/pktgen/tally.hpp"
#include "common/base/time.hpp"
#include "common/net/io_counters.hpp"

namespace sluice::pktgen {

/// Sums since the start.
struct Reading {
  Time at{};
  std::uint64_t clock = 0;        ///< cycles()
  std::uint64_t busy_cycles = 0;  ///< of the generator's turns that had work
  Duration cpu_time{};            ///< of the generator's thread
  net::IoCounters io;             ///< of the generator's port
  Tally tally;
  std::optional<LaneReading> lane;

  /// Adds another lane's reading, except the time.
  void add(const Reading& other);
};

/// Packets of one direction.
struct Traffic {
  std::uint64_t packets = 0;
  std::uint64_t frame_bytes = 0;  ///< including Ethernet, IPv4 and UDP headers
  std::uint64_t block_bytes = 0;  ///< the part of blocks that count
};

/// How many packets were lost or dropped, by the reason's name.
using Drops = std::map<std::string, std::uint64_t>;

struct Window {
  Reading begin;
  Reading end;
  Histogram latencies;
  double offered = 0;  ///< the requested DATA packets per second; 0: as many as possible
  unsigned lanes = 1;  ///< the sums are of so many

  void add(const Window& lane);

  double seconds() const;
  Traffic to_aggregator() const;
  Traffic from_aggregator() const;
  double handled_per_second() const;  ///< packets of both directions together
  double data_per_second() const;

  double generator_cycles_per_packet() const;
  double busy_share() const;  ///< the share of time with work; the rest was idle polling
  double cpu_share() const;   ///< of a core, as the kernel measures it
  std::optional<StageCycles> lane_cycles() const;

  Drops generator_drops() const;
  Drops lane_drops() const;

  std::uint64_t resent() const;  ///< DATA
  std::uint64_t probed() const;
  std::uint64_t missed() const;
  std::uint64_t dropped() const;      ///< the sum of drops()
  std::uint64_t handed_over() const;  ///< frames for other lanes that came to this one's queue
  std::uint64_t losses() const { return resent() + probed() + missed() + dropped(); }
};

/// The sum of lanes that measured side by side, one or more.
Window sum_of(const std::vector<Window>& lanes);

/// Whether a trial reached its requested rate and lost nothing.
bool sustained(const Window& trial);

/// The trial with the highest rate of those that were sustained; otherwise the first.
std::size_t best_of(const std::vector<Window>& trials);

}  // namespace sluice::pktgen
