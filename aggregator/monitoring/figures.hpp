// All that a daemon counts, at one moment: what its log, its metrics and its status page tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/engine/counters.hpp"
#include "aggregator/engine/job_figures.hpp"
#include "common/base/time.hpp"
#include "common/net/capture.hpp"
#include "common/net/io_counters.hpp"
#include "common/net/port.hpp"
#include "common/net/vhost.hpp"

namespace sluice::aggregator {

/// For how long a lane could not go on, by cause.
struct LaneWaits {
  Duration transmit_backlog{};  ///< a port had not taken all that was sent
  Duration transmit_full{};     ///< and so much that others were not received from
  Duration pause{};             ///< others had the core, or the process was stopped

  /// Calls f(name, time) for each cause.
  template <class F>
  void for_each(F&& f) const {
    f("transmit_backlog", transmit_backlog);
    f("transmit_full", transmit_full);
    f("pause", pause);
  }
};

struct LaneFigures {
  Counters engine;
  net::IoCounters io;
  std::vector<JobFigures> jobs{};  ///< those that are live
  Duration busy{};                 ///< turns that received something
  Duration command_time{};         ///< for what others posted
  Duration cpu_time{};             ///< of the thread, by the operating system
  LaneWaits waited{};
};

struct PoolFigures {
  std::size_t size = 0;       ///< packet buffers
  std::size_t available = 0;  ///< of these, free
};

struct PortFigures {
  std::string device;  ///< "vhost" for all local workers together
  net::PortCounters counters;
  bool link_up = true;
};

struct Figures {
  Time at{};
  std::vector<LaneFigures> lanes;
  std::vector<PoolFigures> pools;  ///< by lane, of payloads
  std::vector<PortFigures> ports;
  std::optional<net::VhostDirectory::Counters> local;  ///< where local workers are served
  bool draining = false;                               ///< no new jobs are taken
  std::uint16_t max_jobs = 0;
  std::optional<net::Capture::Counters> captured;  ///< by the latest capture
};

/// A job as all lanes together see it, by its number.
std::map<std::uint32_t, JobFigures> jobs_of(const Figures& figures);

}  // namespace sluice::aggregator
