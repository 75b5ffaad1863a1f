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

  /// Of another lane: the sums of both, but for the time.
  void add(const Reading& other);
};

/// One way through the port.
struct Traffic {
  std::uint64_t packets = 0;
  std::uint64_t frame_bytes = 0;  ///< with Ethernet, IPv4 and UDP headers
  std::uint64_t block_bytes = 0;  ///< of these, blocks that count
};

/// How often something was lost or thrown away, by its reason's name.
using Drops = std::map<std::string, std::uint64_t>;

struct Window {
  Reading begin;
  Reading end;
  Histogram latencies;
  double offered = 0;  ///< DATA packets a second that were to be sent; 0: as many as possible
  unsigned lanes = 1;  ///< whose sums these are

  void add(const Window& lane);

  double seconds() const;
  Traffic to_aggregator() const;
  Traffic from_aggregator() const;
  double handled_per_second() const;  ///< packets, both ways together
  double data_per_second() const;

  double generator_cycles_per_packet() const;
  double busy_share() const;  ///< of the time: the rest was polling for nothing
  double cpu_share() const;   ///< of a core, as the kernel counts it
  std::optional<StageCycles> lane_cycles() const;

  Drops generator_drops() const;
  Drops lane_drops() const;

  std::uint64_t resent() const;  ///< DATA
  std::uint64_t probed() const;
  std::uint64_t missed() const;
  std::uint64_t dropped() const;      ///< of all drops()
  std::uint64_t handed_over() const;  ///< frames for other lanes that came to this one's queue
  std::uint64_t losses() const { return resent() + probed() + missed() + dropped(); }
};

/// Of lanes that measured side by side, one or more.
Window sum_of(const std::vector<Window>& lanes);

/// Whether a trial reached the rate that was asked of it, and lost nothing.
bool sustained(const Window& trial);

/// Which trial has the highest rate of those that were sustained; else the first.
std::size_t best_of(const std::vector<Window>& trials);

}  // namespace sluice::pktgen
