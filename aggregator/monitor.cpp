#include "aggregator/monitor.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <spdlog/fmt/chrono.h>

#include "aggregator/metrics.hpp"
#include "aggregator/status_page.hpp"

namespace sluice::aggregator {
namespace {

constexpr std::size_t kWarningsKept = 100;

}  // namespace

Monitor::Monitor(const config::ListenAddress& listen, const Identity& identity,
                 std::shared_ptr<spdlog::logger> logger)
    : identity_(identity),
      logger_(std::move(logger)),
      warnings_(std::make_shared<Warnings>(kWarningsKept)),
      server_({.listen = fmt::format("{}:{}", config::ipv4_to_string(listen.ipv4), listen.port),
               .log = [this](std::string_view text) { logger_->debug("HTTP: {}", text); }},
              {{"/",
                [] {
                  return http::Response{"text/html; charset=utf-8", kStatusPage};
                }},
               {"/metrics", [this] { return metrics(); }},
               {"/status.json", [this] { return status(); }}}) {
  warnings_->set_level(spdlog::level::warn);
  logger_->sinks().push_back(warnings_);
  logger_->info("metrics at http://{0}:{1}/metrics, for people at http://{0}:{1}/",
                config::ipv4_to_string(listen.ipv4), server_.port());
}

void Monitor::publish(Figures now) {
  auto published = std::make_shared<const Figures>(std::move(now));
  const std::lock_guard lock(mutex_);
  history_.add(*published);
  latest_ = std::move(published);
}

http::Response Monitor::metrics() const {
  std::unique_lock lock(mutex_);
  const auto latest = latest_;
  lock.unlock();
  return {std::string(kPrometheusType), to_prometheus(*latest)};
}

http::Response Monitor::status() const {
  std::unique_lock lock(mutex_);
  const auto latest = latest_;
  const History history = history_;
  lock.unlock();
  return {"application/json", status_json(identity_, *latest, history, events())};
}

/// Latest first.
std::vector<LoggedEvent> Monitor::events() const {
  std::vector<LoggedEvent> events;
  const auto logged = warnings_->last_raw();
  for (auto message = logged.rbegin(); message != logged.rend(); ++message) {
    const auto level = spdlog::level::to_string_view(message->level);
    const auto at = std::chrono::floor<std::chrono::seconds>(message->time);
    events.push_back({fmt::format("{:%FT%TZ}", fmt::gmtime(at)),
                      std::string(level.data(), level.size()),
                      std::string(message->payload.data(), message->payload.size())});
  }
  return events;
}

}  // namespace sluice::aggregator
