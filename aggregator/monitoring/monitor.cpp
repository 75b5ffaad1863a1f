#include "aggregator/monitoring/monitor.hpp"

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <spdlog/fmt/chrono.h>

#include "aggregator/monitoring/metrics.hpp"
#include "aggregator/monitoring/status_page.hpp"
#include "common/log/printable.hpp"
#include "common/metrics/family.hpp"
#include "common/net/io_counters.hpp"
#include "common/protocol/drop_reason.hpp"

namespace sluice::aggregator {
namespace {

using Numbers = net::Telemetry::Numbers;

constexpr std::size_t kWarningsKept = 100;

/// The response before the first figures are published.
http::Response starting() {
  return {"text/plain; charset=utf-8", "The daemon is starting.\n", "503 Service Unavailable"};
}

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<Numbers> counters_of_lane(const Figures& figures, std::string_view parameter) {
  const auto lane = number_of(parameter.empty() ? "0" : parameter);
  if (!lane || *lane >= figures.lanes.size()) return std::nullopt;
  const LaneFigures& counted = figures.lanes[*lane];
  Numbers numbers{{"live_jobs", counted.jobs.size()}};
  counted.engine.for_each(
      [&](std::string_view name, std::uint64_t value) { numbers.emplace_back(name, value); });
  for (const auto& [name, member] : net::kIoCounterNames)
    numbers.emplace_back(name, counted.io.*member);
  for (std::size_t r = 1; r < kDropReasonCount; ++r)
    numbers.emplace_back(name(DropReason(r)), counted.engine.drops[DropReason(r)]);
  return numbers;
}

Numbers numbers_of_jobs(const Figures& figures) {
  Numbers numbers;
  for (const auto& [id, job] : jobs_of(figures))
    if (numbers.size() < net::Telemetry::kMostNumbers)
      numbers.emplace_back(std::to_string(id), job.session.ranks);
  return numbers;
}

std::optional<Numbers> counters_of_job(const Figures& figures, std::string_view parameter) {
  const auto jobs = jobs_of(figures);
  const auto id = number_of(parameter);
  const auto found = id ? jobs.find(*id) : jobs.end();
  if (found == jobs.end()) return std::nullopt;
  const JobFigures& job = found->second;
  Numbers numbers{{"ranks", job.session.ranks},
                  {"present_ranks", job.present.size()},
                  {"awaited_ranks", job.waited_for.size()}};
  for (const auto& counter : kJobCounterNames)
    numbers.emplace_back(counter.name, job.counters.*counter.member);
  return numbers;
}

}  // namespace

Monitor::Monitor(const Identity& identity, std::shared_ptr<spdlog::logger> logger)
    : identity_(identity),
      logger_(std::move(logger)),
      warnings_(std::make_shared<Warnings>(kWarningsKept)) {
  warnings_->set_level(spdlog::level::warn);
  logger_->sinks().push_back(warnings_);
}

void Monitor::serve_http(const config::ListenAddress& listen) {
  const std::string ipv4 = config::ipv4_to_string(listen.ipv4);
  server_ = std::make_unique<http::Server>(
      http::Server::Options{.ipv4 = ipv4, .port = listen.port},
      http::Server::Pages{{"/",
                           [] {
                             return http::Response{"text/html; charset=utf-8", kStatusPage};
                           }},
                          {"/metrics", [this] { return metrics(); }},
                          {"/status.json", [this] { return status(); }}});
  logger_->info("metrics at http://{0}:{1}/metrics, for people at http://{0}:{1}/", ipv4,
                server_->port());
}

void Monitor::serve_telemetry() {
  telemetry_ = std::make_unique<net::Telemetry>(std::vector<net::Telemetry::Command>{
      {"/sluice/lane", "Counters of a lane. Parameter: its number, 0 if there is none",
       [this](std::string_view lane) { return counters_of_lane(latest()->figures, lane); }},
      {"/sluice/jobs", "Jobs that are forming or active, each with its number of ranks",
       [this](std::string_view) { return numbers_of_jobs(latest()->figures); }},
      {"/sluice/job", "Counters of a job. Parameter: its number",
       [this](std::string_view job) { return counters_of_job(latest()->figures, job); }}});
}

void Monitor::publish(Figures now) {
  History history = latest()->history;  // this thread alone changes it
  history.add(now);
  auto published = std::make_shared<const Sample>(Sample{std::move(now), std::move(history)});
  const std::lock_guard lock(mutex_);
  latest_ = std::move(published);
}

std::shared_ptr<const Monitor::Sample> Monitor::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

http::Response Monitor::metrics() {
  const auto text = metrics_.text(
      [this] { return latest(); },
      [](const Sample& sample) {
        return sample.figures.lanes.empty() ? std::string() : to_prometheus(sample.figures);
      });
  return text->empty() ? starting() : http::Response{std::string(metrics::kPrometheusType), *text};
}

std::string Monitor::status_json() {
  return *status_.text([this] { return latest(); },
                       [this](const Sample& sample) {
                         return sample.figures.lanes.empty()
                                    ? std::string()
                                    : aggregator::status_json(identity_, sample.figures,
                                                              sample.history, events());
                       });
}

http::Response Monitor::status() {
  const std::string status = status_json();
  return status.empty() ? starting() : http::Response{"application/json", status};
}

/// The kept warnings and errors, latest first.
std::vector<LoggedEvent> Monitor::events() const {
  std::vector<LoggedEvent> events;
  const auto logged = warnings_->last_raw();
  for (auto message = logged.rbegin(); message != logged.rend(); ++message) {
    const auto level = spdlog::level::to_string_view(message->level);
    const auto at = std::chrono::floor<std::chrono::seconds>(message->time);
    events.push_back({fmt::format("{:%FT%TZ}", fmt::gmtime(at)),
                      std::string(level.data(), level.size()),
                      printable({message->payload.data(), message->payload.size()})});
  }
  return events;
}

}  // namespace sluice::aggregator
