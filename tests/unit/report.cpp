// What a daemon logs of its counters, line by line.
#include "aggregator/monitoring/report.hpp"

#include <memory>
#include <sstream>
#include <string>

#include <spdlog/sinks/ostream_sink.h>

#include "tests/unit/catch.hpp"

namespace report_tests {

using namespace sluice;
using namespace sluice::aggregator;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

struct Log {
  std::ostringstream text;
  std::shared_ptr<spdlog::logger> logger = [this] {
    const auto sink = std::make_shared<spdlog::sinks::ostream_sink_st>(text);
    auto made = std::make_shared<spdlog::logger>("test", sink);
    made->set_pattern("%v");
    return made;
  }();

  std::string take() {
    std::string all = text.str();
    text.str({});
    return all;
  }
};

Figures figures_at(Duration since_start) {
  Figures figures;
  figures.at = Time(since_start);
  LaneFigures& lane = figures.lanes.emplace_back();
  lane.engine.rounds_finished = 4'000;
  lane.io.rx_datagrams = 8'000;
  lane.io.rx_bytes = 20'000'000;
  lane.io.tx_datagrams = 16'000;
  lane.io.tx_bytes = 40'000'000;
  figures.local.emplace().attached = 2;
  return figures;
}

}  // namespace

TEST_CASE("Progress is told in totals and rates") {
  Log log;
  Report report(log.logger, Time(0s));
  report.tell_progress(figures_at(4s));
  const std::string text = log.take();
  CHECK_THAT(text, Contains("counters so far: rounds_finished 4000\n"));
  CHECK_THAT(text, Contains("local workers so far: attached 2\n"));
  CHECK_THAT(text, Contains("in the last 4.0 s: received 2000 packets/s, 5.00 MB/s; "
                            "sent 4000 packets/s, 10.00 MB/s; finished 1000 rounds/s\n"));
}

TEST_CASE("An idle daemon repeats nothing, and tells of what has moved alone") {
  Log log;
  Report report(log.logger, Time(0s));
  report.tell_progress(figures_at(4s));
  log.take();
  report.tell_progress(figures_at(8s));
  CHECK(log.take().empty());

  Figures later = figures_at(10s);
  later.lanes[0].io.rx_datagrams += 100;
  report.tell_progress(later);
  const std::string text = log.take();
  CHECK_THAT(text, Contains("ports so far: rx_datagrams 8100,"));
  CHECK_THAT(text, Contains("in the last 2.0 s: received 50 packets/s"));
  CHECK_THAT(text, !Contains("counters") && !Contains("local workers"));
}

TEST_CASE("At the end all is told once more") {
  Log log;
  Report report(log.logger, Time(0s));
  report.tell_progress(figures_at(4s));
  log.take();
  report.tell_all(figures_at(4s));
  CHECK_THAT(log.take(), Catch::StartsWith("sluice at exit: version ") &&
                             Contains("counters at exit: rounds_finished 4000\n") &&
                             Contains("local workers at exit: attached 2\n"));
}

}  // namespace report_tests
