// What an aggregator's engine counts. Names are those of docs/protocol.md and the exit summary.
#pragma once

#include <array>

#include "common/base/counter_name.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::aggregator {

// clang-format off
//  row(name, what it counts, for operators)
#define SLUICE_AGGREGATOR_COUNTERS(row)                                                           \
  row(packets_received, "Datagrams that reached the engine.")                                     \
  row(rounds_finished, "Rounds whose result was sent.")                                           \
  row(rounds_replayed,                                                                            \
      "Of these, rounds that had ended at an earlier aggregator for some rank.")                  \
  row(contributions, "DATA packets taken.")                                                       \
  row(contributions_held, "Of these, packets that waited for a lower rank.")                      \
  row(results_sent, "First deliveries of results, one per worker.")                               \
  row(results_withheld, "Of these, without sums, to ranks that want none.")                       \
  row(results_by_group, "Of these, by one packet to a multicast group.")                          \
  row(group_packets, "Packets to multicast groups.")                                              \
  row(results_repeated, "Results sent again, to one worker, that was lost or late.")              \
  row(statuses_sent, "Answers that tell who is waited for.")                                      \
  row(probes_received, "PROBEs: a rank has waited for a time-out.")                               \
  row(rounds_stalled, "Rounds that ended late as packet memory was short.")                       \
  row(rounds_awaiting_ack,                                                                        \
      "Rounds that ended late as a rank was as far behind as the history is long.")               \
  row(control_packets_lost, "Control packets not sent as packet memory was short.")               \
  row(streams_resynchronised,                                                                     \
      "Streams that went on with progress made at an earlier aggregator.")                        \
  row(jobs_formed, "Jobs whose ranks have all joined.")                                           \
  row(jobs_resumed, "Jobs formed again with progress made at an earlier aggregator.")             \
  row(formations_abandoned, "Formations that ended as a rank was at another aggregator.")         \
  row(jobs_left, "Jobs that ended in order.")                                                     \
  row(jobs_aborted, "Jobs that were aborted.")                                                    \
  row(jobs_sent_away,                                                                             \
      "Jobs whose ranks were all told to join the next aggregator, as this one ends.")            \
  row(joins_refused, "Joins that were refused.")                                                  \
  row(stragglers_seen, "Times that a rank was waited for longer than straggler-warning-ms.")      \
  row(group_unreachable, "Times that a rank lost its multicast group, or many of its packets.")
// clang-format on

struct Counters {
  SLUICE_AGGREGATOR_COUNTERS(SLUICE_COUNTER_MEMBER)
  DropCounters drops;

  /// Calls f(name, value) for each counter except the drops.
  template <class F>
  void for_each(F&& f) const;
};

#define SLUICE_COUNTER_NAME(name, help) CounterName<Counters>{#name, &Counters::name, help},
inline constexpr std::array kCounterNames{SLUICE_AGGREGATOR_COUNTERS(SLUICE_COUNTER_NAME)};
#undef SLUICE_COUNTER_NAME

template <class F>
void Counters::for_each(F&& f) const {
  for (const auto& counter : kCounterNames) f(counter.name, this->*counter.member);
}

}  // namespace sluice::aggregator
