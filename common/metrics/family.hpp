// One family of Prometheus's metrics, as it is filled with what was counted. Names follow its
// conventions: prefix `sluice_`, base units, `_total` for counters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/metric_family.h>

#include "common/base/latency_histogram.hpp"
#include "common/base/time.hpp"

namespace sluice::metrics {

/// What its server expects as the type of its text format.
inline constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

class Family {
 public:
  using Type = prometheus::MetricType;

  /// `all` must not move its elements while this one is filled. `name`: without the prefix.
  Family(std::vector<prometheus::MetricFamily>& all, Type type, std::string name,
         std::string_view help)
      : family_(all.emplace_back()) {
    family_.type = type;
    family_.name = "sluice_" + std::move(name);
    family_.help = help;
  }

  /// `labels`: name and value, in turn.
  void add(std::initializer_list<std::string> labels, double value) {
    prometheus::ClientMetric& metric = add(labels);
    (family_.type == Type::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  void add(std::initializer_list<std::string> labels, std::uint64_t value) {
    add(labels, static_cast<double>(value));
  }
  void add(std::initializer_list<std::string> labels, const LatencyHistogram& from) {
    auto& histogram = add(labels).histogram;
    for (std::size_t i = 0; i < from.counts().size(); ++i) {
      histogram.sample_count += from.counts()[i];
      if (i < LatencyHistogram::kBuckets)
        histogram.bucket.push_back(
            {histogram.sample_count, seconds(LatencyHistogram::upper_bound(i))});
    }
    histogram.sample_sum = seconds(from.sum());
  }

 private:
  prometheus::ClientMetric& add(std::initializer_list<std::string> labels) {
    prometheus::ClientMetric& metric = family_.metric.emplace_back();
    for (auto label = labels.begin(); label != labels.end(); label += 2)
      metric.label.push_back({*label, *(label + 1)});
    return metric;
  }

  prometheus::MetricFamily& family_;
};

}  // namespace sluice::metrics
