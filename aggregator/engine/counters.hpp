// What an aggregator's engine counts. Names are those of docs/protocol.md and the exit summary.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/protocol/drop_reason.hpp"

namespace sluice::aggregator {

struct Counters {
  std::uint64_t packets_received = 0;
  std::uint64_t rounds_finished = 0;
  std::uint64_t rounds_replayed = 0;     ///< of these, what ended in an earlier epoch for some rank
  std::uint64_t contributions = 0;       ///< DATA taken
  std::uint64_t contributions_held = 0;  ///< of these, ahead of a lower rank
  std::uint64_t results_sent = 0;        ///< first deliveries, one per worker
  std::uint64_t results_withheld = 0;    ///< of these, without sums, to ranks that want none
  std::uint64_t results_by_group = 0;    ///< of these, by one packet for many
  std::uint64_t group_packets = 0;       ///< by these
  std::uint64_t results_repeated = 0;    ///< from the history, to one worker
  std::uint64_t statuses_sent = 0;
  std::uint64_t probes_received = 0;
  std::uint64_t rounds_stalled = 0;        ///< finished late because the pool was empty
  std::uint64_t rounds_awaiting_ack = 0;   ///< finished late because a worker was H behind
  std::uint64_t control_packets_lost = 0;  ///< not sent because the pool was empty
  std::uint64_t streams_resynchronised = 0;
  std::uint64_t jobs_formed = 0;
  std::uint64_t jobs_resumed = 0;          ///< formed again with the progress made elsewhere
  std::uint64_t formations_abandoned = 0;  ///< made here while a rank was elsewhere
  std::uint64_t jobs_left = 0;             ///< ended by every rank's LEAVE
  std::uint64_t jobs_aborted = 0;
  std::uint64_t jobs_sent_away = 0;  ///< to the next aggregator, as this one retires
  std::uint64_t joins_refused = 0;   ///< answered by ABORT
  std::uint64_t stragglers_seen = 0;
  std::uint64_t deaf_to_group = 0;  ///< times that a rank did not hear it, or not well
  DropCounters drops;

  /// Calls f(name, value) for each but the drops.
  template <class F>
  void for_each(F&& f) const;
};

/// A member of a struct of counters: its name, and what it counts, for operators.
template <class Struct>
struct CounterName {
  std::string_view name;
  std::uint64_t Struct::*member;
  std::string_view help;
};

inline constexpr std::array<CounterName<Counters>, 25> kCounterNames{{
    {"packets_received", &Counters::packets_received, "Datagrams that reached the engine."},
    {"rounds_finished", &Counters::rounds_finished, "Rounds whose result was sent."},
    {"rounds_replayed", &Counters::rounds_replayed,
     "Of these, rounds that had ended at an earlier aggregator for some rank."},
    {"contributions", &Counters::contributions, "DATA packets taken."},
    {"contributions_held", &Counters::contributions_held,
     "Of these, packets that waited for a lower rank."},
    {"results_sent", &Counters::results_sent, "First deliveries of results, one per worker."},
    {"results_withheld", &Counters::results_withheld,
     "Of these, without sums, to ranks that want none."},
    {"results_by_group", &Counters::results_by_group,
     "Of these, by one packet to a multicast group."},
    {"group_packets", &Counters::group_packets, "Packets to multicast groups."},
    {"results_repeated", &Counters::results_repeated,
     "Results sent again, to one worker, that was lost or late."},
    {"statuses_sent", &Counters::statuses_sent, "Answers that tell who is waited for."},
    {"probes_received", &Counters::probes_received, "PROBEs: a rank has waited for a time-out."},
    {"rounds_stalled", &Counters::rounds_stalled,
     "Rounds that ended late as packet memory was short."},
    {"rounds_awaiting_ack", &Counters::rounds_awaiting_ack,
     "Rounds that ended late as a rank was as far behind as the history is long."},
    {"control_packets_lost", &Counters::control_packets_lost,
     "Control packets not sent as packet memory was short."},
    {"streams_resynchronised", &Counters::streams_resynchronised,
     "Streams that went on with progress made at an earlier aggregator."},
    {"jobs_formed", &Counters::jobs_formed, "Jobs whose ranks have all joined."},
    {"jobs_resumed", &Counters::jobs_resumed,
     "Jobs formed again with progress made at an earlier aggregator."},
    {"formations_abandoned", &Counters::formations_abandoned,
     "Formations that ended as a rank was at another aggregator."},
    {"jobs_left", &Counters::jobs_left, "Jobs that ended in order."},
    {"jobs_aborted", &Counters::jobs_aborted, "Jobs that were aborted."},
    {"jobs_sent_away", &Counters::jobs_sent_away,
     "Jobs whose ranks were all told to join the next aggregator, as this one ends."},
    {"joins_refused", &Counters::joins_refused, "Joins that were refused."},
    {"stragglers_seen", &Counters::stragglers_seen,
     "Times that a rank was waited for longer than straggler-warning-ms."},
    {"deaf_to_group", &Counters::deaf_to_group,
     "Times that a rank did not hear its multicast group, or not well."},
}};
static_assert(sizeof(Counters) ==
              kCounterNames.size() * sizeof(std::uint64_t) + sizeof(DropCounters));

template <class F>
void Counters::for_each(F&& f) const {
  for (const auto& counter : kCounterNames) f(counter.name, this->*counter.member);
}

}  // namespace sluice::aggregator
