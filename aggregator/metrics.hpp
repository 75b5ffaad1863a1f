// A daemon's figures as metrics for Prometheus.
#pragma once

#include <string>
#include <string_view>

#include "aggregator/figures.hpp"

namespace sluice::aggregator {

/// In Prometheus's text format. Names follow its conventions: prefix `sluice_`, base units,
/// `_total` for counters. Labels are lane, job_id, port, reason and event.
std::string to_prometheus(const Figures& figures);

/// What its server expects as the type of that text.
inline constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace sluice::aggregator
