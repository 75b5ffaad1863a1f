#include "aggregator/monitoring/metrics.hpp"

#include <cstddef>
#include <sstream>
#include <utility>
#include <vector>

#include <prometheus/text_serializer.h>

#include "aggregator/monitoring/drops.hpp"
#include "common/base/version.hpp"
#include "common/metrics/family.hpp"
#include "common/net/clock.hpp"

namespace sluice::aggregator {
namespace {

using metrics::Family;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Metrics {
 public:
  explicit Metrics(const Figures& figures) : figures_(figures) {
    all_.reserve(128);  // families stay where they are while they are filled
    counter("build_info", "", "1, labelled with the version and the build.", MetricType::Gauge)
        .add({"version", version(), "build", build_id()}, 1.0);
    of_lanes();
    of_ports();
    of_jobs();
    gauge("draining",
          "1: no new jobs are taken, and the daemon ends with the last one; 0: it "
          "takes new jobs.")
        .add({}, figures_.draining ? 1.0 : 0.0);
  }

  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, all_);
    return std::move(out).str();
  }

 private:
  Family counter(std::string name, std::string_view unit, std::string_view help,
                 MetricType type = MetricType::Counter) {
    if (!unit.empty()) name += "_" + std::string(unit);
    if (type == MetricType::Counter) name += "_total";
    return {all_, type, std::move(name), help};
  }
  Family gauge(std::string name, std::string_view help) {
    return {all_, MetricType::Gauge, std::move(name), help};
  }

  template <class Get>
  void by_lane(Family family, Get&& get) {
    for (std::size_t i = 0; i < figures_.lanes.size(); ++i)
      family.add({"lane", std::to_string(i)}, get(figures_.lanes[i]));
  }

  void of_lanes();
  void of_frames();
  void of_ports();
  void of_jobs();

  const Figures& figures_;
  std::vector<MetricFamily> all_;
};

void Metrics::of_lanes() {
  for (const auto& [name, member, help] : kCounterNames)
    by_lane(counter(std::string(name), "", help),
            [member = member](const LaneFigures& lane) { return lane.engine.*member; });
  Family drops = counter("dropped_packets", "", "Frames and datagrams that were not used.");
  for_each_drop(figures_, [&](std::size_t lane, std::string_view reason, std::uint64_t count) {
    drops.add({"lane", std::to_string(lane), "reason", std::string(reason)}, count);
  });
  of_frames();

  by_lane(counter("lane_busy", "seconds", "Time in turns of the loop that received something."),
          [](const LaneFigures& lane) { return seconds(lane.busy); });
  by_lane(counter("lane_busy_cycles", "",
                  "The same in cycles of the time-stamp counter; divided by the datagrams "
                  "received: cycles per packet."),
          [](const LaneFigures& lane) { return seconds(lane.busy) * net::cycles_per_second(); });
  by_lane(counter("lane_cpu", "seconds", "Processor time of the lane's thread."),
          [](const LaneFigures& lane) { return seconds(lane.cpu_time); });
  by_lane(
      counter("lane_commands", "seconds",
              "Time for commands of other threads: figures, ports, settings, those of operators."),
      [](const LaneFigures& lane) { return seconds(lane.command_time); });
  Family waited = counter("lane_waited", "seconds", "Time in which a lane could not go on.");
  for (std::size_t i = 0; i < figures_.lanes.size(); ++i)
    figures_.lanes[i].waited.for_each([&](std::string_view cause, Duration time) {
      waited.add({"lane", std::to_string(i), "cause", std::string(cause)}, seconds(time));
    });
  by_lane(gauge("lane_jobs", "Jobs that are forming or active."),
          [](const LaneFigures& lane) { return static_cast<double>(lane.jobs.size()); });
  Family size = gauge("pool_buffers", "Packet buffers of a lane.");
  for (std::size_t i = 0; i < figures_.pools.size(); ++i)
    size.add({"lane", std::to_string(i)}, figures_.pools[i].size);
  Family available = gauge("pool_available_buffers", "Packet buffers of a lane that are free.");
  for (std::size_t i = 0; i < figures_.pools.size(); ++i)
    available.add({"lane", std::to_string(i)}, figures_.pools[i].available);
}

void Metrics::of_frames() {
  using net::IoCounters;
  const auto of_io = [&](std::string name, std::string_view help,
                         std::uint64_t IoCounters::*member) {
    by_lane(counter(std::move(name), "", help),
            [member](const LaneFigures& lane) { return lane.io.*member; });
  };
  of_io("received_datagrams", "Datagrams received.", &IoCounters::rx_datagrams);
  of_io("received_bytes", "UDP payload of these.", &IoCounters::rx_bytes);
  of_io("sent_datagrams", "Datagrams sent.", &IoCounters::tx_datagrams);
  of_io("sent_bytes", "UDP payload of these.", &IoCounters::tx_bytes);
  Family events = counter("io_events", "", "What else happened to frames, by event.");
  for (std::size_t i = 0; i < figures_.lanes.size(); ++i)
    for (const auto& [name, member] : net::kIoCounterNames)
      if (!net::is_drop(name))
        events.add({"lane", std::to_string(i), "event", std::string(name)},
                   figures_.lanes[i].io.*member);
}

void Metrics::of_ports() {
  using net::PortCounters;
  const auto of_port = [&](std::string name, std::string_view help,
                           std::uint64_t PortCounters::*member) {
    Family family = counter("port_" + name, "", help);
    for (const PortFigures& port : figures_.ports)
      family.add({"port", port.device}, port.counters.*member);
  };
  of_port("received_packets", "Frames that the driver received.", &PortCounters::rx_packets);
  of_port("received_bytes", "Bytes of these.", &PortCounters::rx_bytes);
  of_port("sent_packets", "Frames that the driver sent.", &PortCounters::tx_packets);
  of_port("sent_bytes", "Bytes of these.", &PortCounters::tx_bytes);
  of_port("missed_packets", "Frames that were not polled in time.", &PortCounters::rx_missed);
  of_port("no_buffer_packets", "Frames for which there was no packet buffer.",
          &PortCounters::rx_no_buffer);
  Family up = gauge("port_up", "Whether the link is up.");
  for (const PortFigures& port : figures_.ports)
    up.add({"port", port.device}, port.link_up ? 1.0 : 0.0);
  if (!figures_.local) return;
  gauge("local_workers", "Workers of this machine that are attached.")
      .add({}, figures_.local->attached - figures_.local->detached);
  counter("local_workers_refused", "", "Workers of this machine that were refused.")
      .add({}, figures_.local->refused);
}

void Metrics::of_jobs() {
  const auto jobs = jobs_of(figures_);
  const auto by_job = [&](Family family, auto&& get) {
    for (const auto& [id, job] : jobs) family.add({"job_id", std::to_string(id)}, get(job));
  };
  for (const auto& [name, member, help] : kJobCounterNames)
    by_job(counter("job_" + std::string(name), "", help),
           [member = member](const JobFigures& job) { return job.counters.*member; });
  by_job(counter("job_bytes_saved", "", "Bytes of blocks that all zeros spared the ranks to send."),
         [](const JobFigures& job) {
           return job.session.ranks * job.counters.bytes_dense - job.counters.bytes_contributed;
         });
  Family waited =
      counter("job_waited", "seconds", "Time of the job's streams, by what they waited for.");
  for (const auto& [id, job] : jobs)
    job.counters.waited.for_each(
        [&, number = std::to_string(id)](std::string_view cause, Duration time) {
          waited.add({"job_id", number, "cause", std::string(cause)}, seconds(time));
        });
  by_job({all_, MetricType::Histogram, "job_round_seconds",
          "Time from a round's first contribution to its result."},
         [](const JobFigures& job) { return job.counters.round_time; });
  Family names = gauge("job_info", "1: by its label the name that the job was started with.");
  for (const auto& [id, job] : jobs)
    names.add({"job_id", std::to_string(id), "name", job.name}, 1.0);
  by_job(gauge("job_active", "1: all ranks have joined; 0: it is forming."),
         [](const JobFigures& job) { return job.active ? 1.0 : 0.0; });
  by_job(gauge("job_ranks", "Ranks of the job."),
         [](const JobFigures& job) { return static_cast<double>(job.session.ranks); });
  by_job(gauge("job_present_ranks", "Ranks that have joined and not left."),
         [](const JobFigures& job) { return static_cast<double>(job.present.size()); });
  by_job(gauge("job_awaited_ranks", "Ranks that running rounds wait for."),
         [](const JobFigures& job) { return static_cast<double>(job.waited_for.size()); });
  by_job(gauge("job_waiting_seconds", "How long the oldest running round has waited."),
         [](const JobFigures& job) { return seconds(job.waiting); });
  by_job(gauge("job_silence_seconds", "How long ago the most silent rank was heard."),
         [](const JobFigures& job) { return seconds(job.silence); });
  by_job(gauge("job_claimed_buffers", "Packet buffers that are kept for the job."),
         [](const JobFigures& job) { return static_cast<double>(job.buffers_claimed); });
}

}  // namespace

std::string to_prometheus(const Figures& figures) {
  return Metrics(figures).text();
}

}  // namespace sluice::aggregator
