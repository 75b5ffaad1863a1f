// What a worker's engine counts.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/protocol/drop_reason.hpp"

namespace sluice::worker {

struct Counters {
  std::uint64_t packets_received = 0;
  std::uint64_t packets_sent = 0;
  std::uint64_t data_sent = 0;  ///< first time
  std::uint64_t data_resent = 0;
  std::uint64_t acks_sent = 0;
  std::uint64_t probes_sent = 0;
  std::uint64_t syncs_sent = 0;
  std::uint64_t timeouts = 0;           ///< stream timers that expired
  std::uint64_t narrowed_by_loss = 0;   ///< fewer streams run, as many DATA were lost
  std::uint64_t narrowed_by_delay = 0;  ///< or as packets wait for long on their way
  std::uint64_t results_applied = 0;
  std::uint64_t results_early = 0;    ///< kept until those before them come
  std::uint64_t rounds_replayed = 0;  ///< for ranks that lacked their results when a daemon died
  std::uint64_t rejoins = 0;
  std::uint64_t beacons_heard = 0;  ///< each for the first time, by multicast
  std::uint64_t ops_completed = 0;
  std::uint64_t ops_failed = 0;
  DropCounters drops;

  /// Calls f(name, value) for each but the drops.
  template <class F>
  void for_each(F&& f) const {
    for_each_member(
        [&](std::string_view name, std::uint64_t Counters::*member) { f(name, this->*member); });
  }
  Counters& operator+=(const Counters& other) {
    for_each_member(
        [&](std::string_view, std::uint64_t Counters::*member) { this->*member += other.*member; });
    drops += other.drops;
    return *this;
  }

 private:
  template <class F>
  static void for_each_member(F&& f) {
    f("packets_received", &Counters::packets_received);
    f("packets_sent", &Counters::packets_sent);
    f("data_sent", &Counters::data_sent);
    f("data_resent", &Counters::data_resent);
    f("acks_sent", &Counters::acks_sent);
    f("probes_sent", &Counters::probes_sent);
    f("syncs_sent", &Counters::syncs_sent);
    f("timeouts", &Counters::timeouts);
    f("narrowed_by_loss", &Counters::narrowed_by_loss);
    f("narrowed_by_delay", &Counters::narrowed_by_delay);
    f("results_applied", &Counters::results_applied);
    f("results_early", &Counters::results_early);
    f("rounds_replayed", &Counters::rounds_replayed);
    f("rejoins", &Counters::rejoins);
    f("beacons_heard", &Counters::beacons_heard);
    f("ops_completed", &Counters::ops_completed);
    f("ops_failed", &Counters::ops_failed);
  }
};

}  // namespace sluice::worker
