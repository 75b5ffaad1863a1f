// Logs a daemon's counters: totals, and how fast they grow.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "aggregator/monitoring/figures.hpp"
#include "common/base/time.hpp"
#include "common/log/fields.hpp"
#include "common/log/logger.hpp"

namespace sluice::aggregator {

class Report {
 public:
  Report(std::shared_ptr<spdlog::logger> logger, Time started) : logger_(std::move(logger)) {
    before_.at = started;
  }

  /// Logs a line for each kind of counter that has moved since it was logged last, and the rates
  /// since the last call, if there was traffic. Logs nothing while the daemon is idle.
  void tell_progress(const Figures& now);

  /// Logs which build this is, and all counters that ever moved.
  void tell_all(const Figures& now);

 private:
  struct Totals {
    std::string text;
    LogFields fields;
  };
  using Lines = std::map<std::string, Totals>;

  class Line;

  static void add_totals(Lines& lines, const Figures& now, std::size_t lane);
  static Lines totals(const Figures& now);
  static std::string rates(const Figures& before, const Figures& now);
  void tell(const std::string& what, const char* when, const Totals& totals);

  const std::shared_ptr<spdlog::logger> logger_;
  std::map<std::string, std::string> logged_;
  Figures before_;  // of the last call
};

}  // namespace sluice::aggregator
