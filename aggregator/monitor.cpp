#include "aggregator/monitor.hpp"

#include <string>
#include <string_view>
#include <utility>

#include "aggregator/metrics.hpp"

namespace sluice::aggregator {

Monitor::Monitor(const config::ListenAddress& listen, std::shared_ptr<spdlog::logger> logger)
    : logger_(std::move(logger)),
      server_({.listen = fmt::format("{}:{}", config::ipv4_to_string(listen.ipv4), listen.port),
               .log = [this](std::string_view text) { logger_->debug("HTTP: {}", text); }},
              {{"/metrics", [this] {
                  return http::Response{std::string(kPrometheusType), to_prometheus(*latest())};
                }}}) {
  logger_->info("metrics at http://{}:{}/metrics", config::ipv4_to_string(listen.ipv4),
                server_.port());
}

void Monitor::publish(Figures now) {
  auto published = std::make_shared<const Figures>(std::move(now));
  const std::lock_guard lock(mutex_);
  latest_ = std::move(published);
}

std::shared_ptr<const Figures> Monitor::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

}  // namespace sluice::aggregator
