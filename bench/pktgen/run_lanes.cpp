#include "bench/pktgen/run_lanes.hpp"

#include <exception>
#include <thread>
#include <vector>

#include <pthread.h>

#include "common/net/eal.hpp"

namespace sluice::pktgen {
namespace {

/// The figures of each lane in the trial that counts, and their sums.
Report report_of(const Options& options, const Lockstep& lockstep,
                 const std::vector<LaneRun>& runs) {
  Report report;
  report.session = runs[0].session;
  report.geometry = runs[0].geometry;
  std::vector<Window> trials;
  for (const auto& windows : lockstep.trials()) trials.push_back(sum_of(windows));
  const std::size_t best = best_of(trials);
  report.window = trials[best];
  if (options.find_rate) report.trials = std::move(trials);
  report.total = runs[0].total;
  for (std::size_t lane = 0; lane < runs.size(); ++lane) {
    if (lane != 0) report.total.add(runs[lane].total);
    report.lanes.push_back({lockstep.trials()[best][lane], runs[lane].total});
  }
  return report;
}

}  // namespace

Report run_lanes(const Options& options, const Supervision& supervision, const RunLane& run_lane) {
  Lockstep lockstep(options, supervision.stopped);
  std::vector<LaneRun> runs(options.lanes);
  const auto or_fail = [&](const auto& what) {
    try {
      what();
    } catch (...) {
      lockstep.fail(std::current_exception());
    }
  };
  const auto run_other = [&](std::uint16_t lane) {
    const net::ThreadRegistration registration;
    if (!options.cpu.empty()) pin(pthread_self(), options.cpu[lane]);
    runs[lane] = run_lane(lane, lockstep);
  };
  {
    std::vector<std::jthread> others;  // they end with this block
    or_fail([&] {
      for (std::uint16_t lane = 1; lane < options.lanes; ++lane)
        others.emplace_back([&, lane] { or_fail([&] { run_other(lane); }); });
    });
    or_fail([&] { runs[0] = run_lane(0, lockstep); });
  }
  lockstep.rethrow_failure();
  return report_of(options, lockstep, runs);
}

}  // namespace sluice::pktgen
