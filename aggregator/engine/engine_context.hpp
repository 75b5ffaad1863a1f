// What the jobs of one engine share: settings, counters, the memory that they claim together, and
// the outputs for control packets and events. The engine owns it.
#pragma once

#include <cstddef>
#include <functional>

#include "aggregator/engine/config.hpp"
#include "aggregator/engine/counters.hpp"
#include "aggregator/engine/job_event.hpp"
#include "aggregator/engine/keyed_combiner.hpp"
#include "aggregator/engine/serials.hpp"
#include "aggregator/engine/stalled_jobs.hpp"
#include "common/protocol/control_packets.hpp"

namespace sluice::aggregator {

struct EngineContext {
  EngineConfig config;
  const std::function<void(const JobEvent&)> on_event{};  ///< may be empty
  Serials serials{};
  std::size_t buffers_claimed = 0;  ///< packet buffers, by the jobs that are active
  StalledJobs stalled{};
  KeyedScratch scratch{};
  ControlPackets control{};
  Counters counters{};

  void report(const JobEvent& event) const {
    if (on_event) on_event(event);
  }
};

}  // namespace sluice::aggregator
