// What a worker's engine counts.
#pragma once

#include <array>

#include "common/base/counter_name.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::worker {

// clang-format off
//  row(name, what it counts, for operators; empty: it is no metric)
#define SLUICE_WORKER_COUNTERS(row)                                                               \
  row(packets_received, "Datagrams of the job that were received.")                               \
  row(packets_sent, "Datagrams of the job that were sent.")                                       \
  row(data_sent, "DATA packets, each for the first time.")                                        \
  row(data_resent, "DATA packets sent again.")                                                    \
  row(acks_sent, "")                                                                              \
  row(probes_sent, "PROBEs: a stream has waited for a time-out.")                                 \
  row(syncs_sent, "")                                                                             \
  row(timeouts, "Timers of streams that expired.")                                                \
  row(narrowed_by_loss, "Times that fewer streams ran, as many DATA were lost.")                  \
  row(narrowed_by_delay,                                                                          \
      "Times that fewer streams ran, as packets waited for long on their way.")                   \
  row(results_applied, "Results applied.")                                                        \
  row(results_early, "Results that were kept until those before them came.")                      \
  row(rounds_replayed, "Rounds replayed for ranks that lacked their results then.")               \
  row(rejoins, "Times that an aggregator was lost, and joined again.")                            \
  row(beacons_received, "")                                                                      \
  row(ops_completed, "")                                                                          \
  row(ops_failed, "")
// clang-format on

struct Counters {
  SLUICE_WORKER_COUNTERS(SLUICE_COUNTER_MEMBER)
  DropCounters drops;

  /// Calls f(name, value) for each except the drops.
  template <class F>
  void for_each(F&& f) const;

  Counters& operator+=(const Counters& other);
};

#define SLUICE_COUNTER_NAME(name, help) CounterName<Counters>{#name, &Counters::name, help},
inline constexpr std::array kCounterNames{SLUICE_WORKER_COUNTERS(SLUICE_COUNTER_NAME)};
#undef SLUICE_COUNTER_NAME

template <class F>
void Counters::for_each(F&& f) const {
  for (const auto& counter : kCounterNames) f(counter.name, this->*counter.member);
}

inline Counters& Counters::operator+=(const Counters& other) {
  for (const auto& counter : kCounterNames) this->*counter.member += other.*counter.member;
  drops += other.drops;
  return *this;
}

}  // namespace sluice::worker
