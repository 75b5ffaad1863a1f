#include "aggregator/monitoring/status.hpp"

#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "aggregator/engine/job_event.hpp"
#include "aggregator/monitoring/drops.hpp"
#include "common/base/version.hpp"
#include "common/config/job_name.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::aggregator {
namespace {

using nlohmann::json;

json or_null(const std::optional<double>& value) {
  return value ? json(*value) : json();
}

json to_json(const RankSet& set) {
  json ranks = json::array();
  set.for_each([&](Rank r) { ranks.push_back(r.value); });
  return ranks;
}

json to_json(const JobFigures& job, const JobRates& rates) {
  RankSet absent = RankSet::first(job.session.ranks);
  absent -= job.present;
  json counters;
  for (const auto& [name, member, help] : kJobCounterNames)
    counters[std::string(name)] = job.counters.*member;
  json waited;
  job.counters.waited.for_each(
      [&](std::string_view cause, Duration time) { waited[std::string(cause)] = seconds(time); });
  // A part of another job, made by its ranks, has a name that commands do not accept.
  const bool is_its_own = config::job_id_of(job.name) == job.session.job;
  return {{"job", job.session.job},
          {"name", job.name.empty() ? json() : json(job.name)},
          {"label", is_its_own ? job.name : job_label(job.session.job, job.name)},
          {"active", job.active},
          {"ranks", job.session.ranks},
          {"streams", job.session.streams},
          {"stream_limit", job.stream_limit == 0 ? json() : json(job.stream_limit)},
          {"absent", to_json(absent)},
          {"waited_for", to_json(job.waited_for)},
          {"waiting_s", seconds(job.waiting)},
          {"most_silent_rank", job.active ? json(job.most_silent.value) : json()},
          {"silence_s", seconds(job.silence)},
          {"received_bytes_per_s", rates.received_bytes},
          {"sent_bytes_per_s", rates.sent_bytes},
          {"rounds_per_s", rates.rounds},
          {"density", or_null(rates.densities.density)},
          {"union_density", or_null(rates.densities.union_density)},
          {"waited_s", waited},
          {"counters", counters}};
}

json to_json(const Rates& rates) {
  return {{"received_datagrams_per_s", rates.received_datagrams},
          {"received_bytes_per_s", rates.received_bytes},
          {"sent_datagrams_per_s", rates.sent_datagrams},
          {"sent_bytes_per_s", rates.sent_bytes},
          {"rounds_per_s", rates.rounds},
          {"busy", rates.busy},
          {"cycles_per_packet", or_null(rates.cycles_per_packet)},
          {"density", or_null(rates.densities.density)},
          {"union_density", or_null(rates.densities.union_density)}};
}

/// One array per figure, oldest first.
json to_json(const History& history, Time now) {
  json arrays;
  for (const Rates& rates : history.rates()) {
    arrays["age_s"].push_back(seconds(now - rates.at));
    const json figures = to_json(rates);
    for (const auto& [name, value] : figures.items()) arrays[name].push_back(value);
  }
  return arrays;
}

json lanes_of(const Figures& figures) {
  json lanes = json::array();
  for (std::size_t i = 0; i < figures.lanes.size(); ++i) {
    const LaneFigures& lane = figures.lanes[i];
    lanes.push_back({{"lane", i},
                     {"jobs", lane.jobs.size()},
                     {"received_datagrams", lane.io.rx_datagrams},
                     {"sent_datagrams", lane.io.tx_datagrams},
                     {"rounds_finished", lane.engine.rounds_finished},
                     {"results_repeated", lane.engine.results_repeated},
                     {"busy_s", seconds(lane.busy)},
                     {"cpu_s", seconds(lane.cpu_time)}});
    if (i >= figures.pools.size()) continue;
    lanes.back()["buffers"] = figures.pools[i].size;
    lanes.back()["buffers_available"] = figures.pools[i].available;
  }
  return lanes;
}

json capture_of(const Figures& figures) {
  if (!figures.captured) return {};
  return {{"frames", figures.captured->written},
          {"missed_frames", figures.captured->missed},
          {"done", figures.captured->done},
          {"error", figures.captured->error}};
}

json ports_of(const Figures& figures) {
  json ports = json::array();
  for (const PortFigures& port : figures.ports)
    ports.push_back({{"port", port.device},
                     {"up", port.link_up},
                     {"received_packets", port.counters.rx_packets},
                     {"received_bytes", port.counters.rx_bytes},
                     {"sent_packets", port.counters.tx_packets},
                     {"sent_bytes", port.counters.tx_bytes},
                     {"missed_packets", port.counters.rx_missed},
                     {"no_buffer_packets", port.counters.rx_no_buffer}});
  return ports;
}

}  // namespace

std::string status_json(const Identity& identity, const Figures& figures, const History& history,
                        const std::vector<LoggedEvent>& events) {
  const Rates now = history.rates().empty() ? Rates{} : history.rates().back();
  json jobs = json::array();
  for (const auto& [id, job] : jobs_of(figures)) {
    const auto known = now.jobs.find(id);
    jobs.push_back(to_json(job, known == now.jobs.end() ? JobRates{} : known->second));
  }
  json drops = json::object();
  for_each_drop(figures, [&](std::size_t, std::string_view reason, std::uint64_t count) {
    if (count == 0) return;
    json& sum = drops[std::string(reason)];
    sum = count + (sum.is_null() ? 0 : sum.get<std::uint64_t>());
  });
  json logged = json::array();
  for (const LoggedEvent& event : events)
    logged.push_back({{"time", event.time}, {"level", event.level}, {"text", event.text}});
  const json status{{"version", version()},
                    {"build", build_id()},
                    {"host", identity.host},
                    {"shard", identity.shard},
                    {"shards", identity.shards},
                    {"uptime_s", seconds(figures.at - identity.started)},
                    {"draining", figures.draining},
                    {"max_jobs", figures.max_jobs},
                    {"now", to_json(now)},
                    {"capture", capture_of(figures)},
                    {"jobs", jobs},
                    {"lanes", lanes_of(figures)},
                    {"ports", ports_of(figures)},
                    {"drops", drops},
                    {"events", logged},
                    {"history", to_json(history, figures.at)}};
  return status.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace sluice::aggregator
