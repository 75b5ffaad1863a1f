// What one lane knows about one job, for operators: counters, and the ranks that it waits for.
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

// The bytes of a block are those of its values as they travel. Keyed ops count no blocks.
// clang-format off
//  row(name, what it counts, for operators)
#define SLUICE_JOB_COUNTERS(row)                                                                  \
  row(contributions, "DATA packets taken of the job.")                                            \
  row(received_bytes, "UDP payload of these.")                                                    \
  row(sent_bytes, "UDP payload of results, to each worker or group.")                             \
  row(rounds, "Rounds finished.")                                                                 \
  row(blocks_contributed, "Blocks that ranks have contributed.")                                  \
  row(bytes_contributed, "Bytes of these blocks.")                                                \
  row(blocks_summed, "Blocks to which some rank has contributed: the union.")                     \
  row(bytes_summed, "Bytes of these sums.")                                                       \
  row(blocks_dense,                                                                               \
      "Blocks that each rank would have contributed by then, were none all zeros.")               \
  row(bytes_dense, "Bytes of these blocks.")                                                      \
  row(results_repeated, "Results sent again to one worker.")                                      \
  row(rounds_stalled, "Rounds that ended late as packet memory was short.")                       \
  row(rounds_awaiting_ack,                                                                        \
      "Rounds that ended late as a rank was as far behind as the history is long.")               \
  row(stragglers_seen, "Times that a rank was waited for longer than straggler-warning-ms.")
// clang-format on

struct JobCounters {
  SLUICE_JOB_COUNTERS(SLUICE_COUNTER_MEMBER)
  LatencyHistogram round_time;  ///< from a round's first contribution to its result
  WaitTimes waited;             ///< by all streams

  JobCounters& operator+=(const JobCounters& other);
};

#define SLUICE_COUNTER_NAME(name, help) CounterName<JobCounters>{#name, &JobCounters::name, help},
inline constexpr std::array kJobCounterNames{SLUICE_JOB_COUNTERS(SLUICE_COUNTER_NAME)};
#undef SLUICE_COUNTER_NAME

inline JobCounters& JobCounters::operator+=(const JobCounters& other) {
  for (const auto& counter : kJobCounterNames) this->*counter.member += other.*counter.member;
  round_time += other.round_time;
  waited += other.waited;
  return *this;
}

/// One job at one lane, at one moment.
struct JobFigures {
  Session session{};                ///< `job` is always set; the rest while it is active
  std::string name{};               ///< from the ranks' JOINs; empty: none
  bool active = false;              ///< else forming
  RankSet present;                  ///< ranks that have joined and not left
  RankSet waited_for;               ///< ranks that begun rounds wait for
  Duration waiting{};               ///< of the round that has waited longest
  Rank most_silent{};               ///< the rank that has been silent longest
  Duration silence{};               ///< how long it has been silent
  std::size_t buffers_claimed = 0;  ///< packet buffers
  std::uint16_t stream_limit = 0;   ///< streams of a lane that an operator lets run; 0: all
  JobCounters counters;

  /// Adds what another lane knows about the same job.
  JobFigures& operator+=(const JobFigures& other);
};

}  // namespace sluice::aggregator
