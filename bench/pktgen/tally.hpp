// The generator's counters.
#pragma once

#include <cstdint>

#include "bench/pktgen/histogram.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::pktgen {

struct Tally {
  std::uint64_t data_sent = 0;    ///< first sends
  std::uint64_t data_resent = 0;  ///< after a time-out, or because STATUS asked for it
  std::uint64_t acks_sent = 0;
  std::uint64_t probes_sent = 0;
  std::uint64_t timeouts = 0;
  /// Of the awaited round, or later ones that came early; each is counted once.
  std::uint64_t results = 0;
  std::uint64_t results_early = 0;   ///< those of `results` that came before one that is missing
  std::uint64_t results_missed = 0;  ///< still awaited when the generator gave up
  std::uint64_t results_checked = 0;
  std::uint64_t results_wrong = 0;
  std::uint64_t block_bytes_sent = 0;  ///< of first sends
  std::uint64_t block_bytes_received = 0;
  std::uint64_t ops_done = 0;   ///< by all ranks on all streams
  std::uint64_t no_buffer = 0;  ///< sends that were delayed as the pool was empty
  DropCounters drops;           ///< of received packets

  /// Calls f(name, value) for each counter except the drops.
  template <class F>
  void for_each(F&& f) const {
    f("data_sent", data_sent);
    f("data_resent", data_resent);
    f("acks_sent", acks_sent);
    f("probes_sent", probes_sent);
    f("timeouts", timeouts);
    f("results", results);
    f("results_early", results_early);
    f("results_missed", results_missed);
    f("results_checked", results_checked);
    f("results_wrong", results_wrong);
    f("block_bytes_sent", block_bytes_sent);
    f("block_bytes_received", block_bytes_received);
    f("ops_done", ops_done);
    f("no_buffer", no_buffer);
  }
};

}  // namespace sluice::pktgen
