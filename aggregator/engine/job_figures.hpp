// What one lane knows of one job, for operators: counters, and whom it waits for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "aggregator/engine/counters.hpp"
#include "aggregator/engine/waits.hpp"
#include "common/base/ids.hpp"
#include "common/base/latency_histogram.hpp"
#include "common/base/rank_set.hpp"
#include "common/base/time.hpp"
#include "common/protocol/session.hpp"

namespace sluice::aggregator {

/// Bytes of blocks are those of their values as they travel. Of pairs of key and row no blocks are
/// counted.
struct JobCounters {
  std::uint64_t contributions = 0;       ///< DATA taken
  std::uint64_t received_bytes = 0;      ///< UDP payload of these
  std::uint64_t sent_bytes = 0;          ///< UDP payload of results, to each worker or group
  std::uint64_t rounds = 0;              ///< finished
  std::uint64_t blocks_contributed = 0;  ///< by all ranks
  std::uint64_t bytes_contributed = 0;
  std::uint64_t blocks_summed = 0;  ///< that some rank has contributed to
  std::uint64_t bytes_summed = 0;
  std::uint64_t blocks_dense =
      0;  ///< that each rank would have contributed by then, were none all zeros
  std::uint64_t bytes_dense = 0;
  std::uint64_t results_repeated = 0;
  std::uint64_t rounds_stalled = 0;
  std::uint64_t rounds_awaiting_ack = 0;
  std::uint64_t stragglers_seen = 0;
  LatencyHistogram round_time;  ///< from a round's first contribution to its result
  WaitTimes waited;             ///< by all streams

  JobCounters& operator+=(const JobCounters& other);
};

inline constexpr std::array<CounterName<JobCounters>, 14> kJobCounterNames{{
    {"contributions", &JobCounters::contributions, "DATA packets taken of the job."},
    {"received_bytes", &JobCounters::received_bytes, "UDP payload of these."},
    {"sent_bytes", &JobCounters::sent_bytes, "UDP payload of results, to each worker or group."},
    {"rounds", &JobCounters::rounds, "Rounds finished."},
    {"blocks_contributed", &JobCounters::blocks_contributed, "Blocks that ranks have contributed."},
    {"bytes_contributed", &JobCounters::bytes_contributed, "Bytes of these blocks."},
    {"blocks_summed", &JobCounters::blocks_summed,
     "Blocks to which some rank has contributed: the union."},
    {"bytes_summed", &JobCounters::bytes_summed, "Bytes of these sums."},
    {"blocks_dense", &JobCounters::blocks_dense,
     "Blocks that each rank would have contributed by then, were none all zeros."},
    {"bytes_dense", &JobCounters::bytes_dense, "Bytes of these blocks."},
    {"results_repeated", &JobCounters::results_repeated, "Results sent again to one worker."},
    {"rounds_stalled", &JobCounters::rounds_stalled,
     "Rounds that ended late as packet memory was short."},
    {"rounds_awaiting_ack", &JobCounters::rounds_awaiting_ack,
     "Rounds that ended late as a rank was as far behind as the history is long."},
    {"stragglers_seen", &JobCounters::stragglers_seen,
     "Times that a rank was waited for longer than straggler-warning-ms."},
}};
static_assert(sizeof(JobCounters) == kJobCounterNames.size() * sizeof(std::uint64_t) +
                                         sizeof(LatencyHistogram) + sizeof(WaitTimes));

inline JobCounters& JobCounters::operator+=(const JobCounters& other) {
  for (const auto& counter : kJobCounterNames) this->*counter.member += other.*counter.member;
  round_time += other.round_time;
  waited += other.waited;
  return *this;
}

/// One job at one lane, at one moment.
struct JobFigures {
  Session session{};                ///< job always; the rest where it is active
  std::string name{};               ///< as the job's ranks tell; empty: none
  bool active = false;              ///< else forming
  RankSet present;                  ///< has joined and not left
  RankSet waited_for;               ///< by rounds that have begun
  Duration waiting{};               ///< of the round that has waited longest
  Rank most_silent{};               ///< who was heard longest ago
  Duration silence{};               ///< of that rank
  std::size_t buffers_claimed = 0;  ///< packet buffers
  std::uint16_t stream_limit = 0;   ///< streams of a lane that an operator lets run; 0: all
  JobCounters counters;

  /// Adds what another lane knows of the same job.
  JobFigures& operator+=(const JobFigures& other);
};

}  // namespace sluice::aggregator
