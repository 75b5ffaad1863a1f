// All that a daemon counts, at one moment. Its log, its metrics and its status page show these.
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

/// How long a lane had to wait, by cause.
struct LaneWaits {
  Duration transmit_backlog{};  ///< a port had not accepted all packets
  Duration transmit_full{};     ///< the backlog was so long that the lane received nothing
  Duration pause{};             ///< another process had the core, or this one was stopped

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
  std::vector<JobFigures> jobs{};  ///< the live jobs
  Duration busy{};                 ///< time of turns that received something
  Duration command_time{};         ///< time for commands that other threads posted
  Duration cpu_time{};             ///< CPU time of the thread, from the operating system
  LaneWaits waited{};
};

struct PoolFigures {
  std::size_t size = 0;       ///< packet buffers
  std::size_t available = 0;  ///< how many are free
};

struct PortFigures {
  std::string device;  ///< "vhost" for all local workers together
  net::PortCounters counters;
  bool link_up = true;
};

struct Figures {
  Time at{};
  std::vector<LaneFigures> lanes;
  std::vector<PoolFigures> pools;  ///< by lane: its pool of payloads
  std::vector<PortFigures> ports;
  std::optional<net::VhostDirectory::Counters> local;  ///< set if local workers are served
  bool draining = false;                               ///< new jobs are refused
  std::uint16_t max_jobs = 0;
  std::optional<net::Capture::Counters> captured;  ///< of the latest capture
};

/// The figures of each job, added over all lanes, by the job's number.
std::map<std::uint32_t, JobFigures> jobs_of(const Figures& figures);

}  // namespace sluice::aggregator
