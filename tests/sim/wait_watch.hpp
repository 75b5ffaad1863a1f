// Samples what jobs' streams have waited for, as a daemon's control thread does. A stream waits for
// one thing at any moment, so the sum over all causes grows as time does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aggregator/engine/job_figures.hpp"
#include "common/base/time.hpp"
#include "tests/sim/bug.hpp"
#include "tests/sim/counting.hpp"

namespace sluice::sim {

class WaitWatch {
 public:
  /// Adds the microseconds since the last sample to `coverage`, by cause.
  void sample(const std::vector<aggregator::JobFigures>& jobs, Time now, Coverage& coverage) {
    for (const aggregator::JobFigures& job : jobs) {
      if (!job.active) continue;
      const Session& s = job.session;
      Seen& seen = seen_[s.job];
      const std::pair session(s.generation, s.epoch);
      if (seen.session != session) seen = {.session = session};
      Duration all{}, all_before{};
      for (std::size_t i = 0; i < aggregator::kWaitCauseNames.size(); ++i) {
        const auto cause = static_cast<aggregator::WaitCause>(i);
        const Duration waited = job.counters.waited[cause], before = seen.waited[cause];
        require(waited >= before, "a job's waits shrink");
        all += waited;
        all_before += before;
        coverage["aggregator.waited." + std::string(aggregator::kWaitCauseNames[i])] +=
            static_cast<std::uint64_t>((waited - before) / std::chrono::microseconds(1));
      }
      require(seen.at == kNever || all - all_before == s.streams_of(s.shard) * (now - seen.at),
              "what streams waited for is not the time of all streams");
      seen.at = now;
      seen.waited = job.counters.waited;
    }
  }

 private:
  struct Seen {
    std::pair<std::uint64_t, std::uint64_t> session{};  // generation and epoch
    Time at = kNever;
    aggregator::WaitTimes waited{};
  };
  std::unordered_map<std::uint32_t, Seen> seen_;  // by job
};

}  // namespace sluice::sim
