// What a process's ranks have done, for metrics. It is a copy, taken in one turn of the loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.hpp"
#include "common/base/time.hpp"
#include "common/net/io_counters.hpp"
#include "worker/engine/counters.hpp"
#include "worker/job/op_totals.hpp"

namespace sluice {

/// The figures of one communicator. The cost of its messages is only counted in the process's
/// datagrams.
struct JobFigures {
  /// The path to the aggregator of one shard.
  struct Path {
    std::uint16_t window = 0;  ///< how many streams may run
    Duration round_trip{};     ///< smoothed; 0: not measured
    Duration retransmit_timeout{};
  };

  std::uint32_t job = 0;
  Rank rank{};
  std::uint16_t ranks = 1;
  bool has_failed = false;
  std::size_t ops_pending = 0;
  std::size_t running_streams = 0;
  std::vector<Path> paths{};  ///< by shard
  worker::Counters counters{};
  OpTotals ops{};
};

struct ProcessFigures {
  net::IoCounters io;
  std::vector<JobFigures> jobs;
};

}  // namespace sluice
