// What an aggregator's engine counts. Names are those of docs/protocol.md and the exit summary.
#pragma once

#include <cstdint>

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
  std::uint64_t joins_refused = 0;  ///< answered by ABORT
  std::uint64_t stragglers_seen = 0;
  std::uint64_t deaf_to_group = 0;  ///< times that a rank did not hear it, or not well
  DropCounters drops;

  /// Calls f(name, value) for each but the drops.
  template <class F>
  void for_each(F&& f) const {
    f("packets_received", packets_received);
    f("rounds_finished", rounds_finished);
    f("rounds_replayed", rounds_replayed);
    f("contributions", contributions);
    f("contributions_held", contributions_held);
    f("results_sent", results_sent);
    f("results_withheld", results_withheld);
    f("results_by_group", results_by_group);
    f("group_packets", group_packets);
    f("results_repeated", results_repeated);
    f("statuses_sent", statuses_sent);
    f("probes_received", probes_received);
    f("rounds_stalled", rounds_stalled);
    f("rounds_awaiting_ack", rounds_awaiting_ack);
    f("control_packets_lost", control_packets_lost);
    f("streams_resynchronised", streams_resynchronised);
    f("jobs_formed", jobs_formed);
    f("jobs_resumed", jobs_resumed);
    f("formations_abandoned", formations_abandoned);
    f("jobs_left", jobs_left);
    f("jobs_aborted", jobs_aborted);
    f("joins_refused", joins_refused);
    f("stragglers_seen", stragglers_seen);
    f("deaf_to_group", deaf_to_group);
  }
};

}  // namespace sluice::aggregator
