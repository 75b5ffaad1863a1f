// The parts of a scenario, drawn one by one from its seed.
#pragma once

#include "tests/sim/random.hpp"
#include "tests/sim/scenario.hpp"

namespace sluice::sim {

/// A duration in milliseconds.
inline Duration ms(double value) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(value));
}

// Links (draw_links.cpp).
LinkModel draw_link(Random& r);
void draw_cuts(Random& r, Scenario& s, Duration longest);
/// Which rank is far behind when an aggregator dies.
void draw_late_ranks(std::uint64_t seed, Scenario& s);
void draw_overheard(Random& r, Scenario& s);
/// Multicast, and which ranks receive it.
void draw_groups(std::uint64_t seed, Scenario& s);

// Processes (draw_processes.cpp).
void draw_clocks(Random& r, Scenario& s);
void draw_rings_and_pools(Random& r, Scenario& s);
void draw_pauses(Random& r, Scenario& s, Duration longest);
void draw_crashes(Random& r, Scenario& s);
void draw_crash_at_first_result(Random& r, Scenario& s);
void draw_end_of_a_shard(Random& r, Scenario& s);
void draw_standby(Random& r, Scenario& s);
void draw_slow_rank(Random& r, Scenario& s);

// Jobs (draw_jobs.cpp).
JobPlan draw_job(Random& r, const Scenario& s, std::uint32_t id, unsigned ranks);
Fault draw_fault(Random& r, unsigned ranks, bool alone);
Program draw_program(Random& r, const JobPlan& job, std::uint64_t tag, std::size_t ops,
                     std::uint64_t bytes_max);
/// A dense sum of so many blocks, which fill packets of 1400 bytes.
OpSpec long_sum(Random& r, std::size_t number, std::size_t blocks);
/// Sums of many blocks, with and without zeros.
Program draw_long_sums(Random& r, std::size_t ops);
/// The ops of all the job's generations, chosen for its fault. `comes_back`: with one more
/// generation.
void draw_programs(Random& r, JobPlan& job, std::uint64_t bytes_max, bool comes_back);
/// Which ranks of a job are on one host.
void draw_hosts(std::uint64_t seed, Scenario& s);

}  // namespace sluice::sim
