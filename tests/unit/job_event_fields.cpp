// What the log tells of each event of a job by name, and how often.
#include "aggregator/monitoring/job_event_fields.hpp"

#include <map>
#include <memory>
#include <string>

#include <spdlog/sinks/ringbuffer_sink.h>

#include "aggregator/monitoring/job_log.hpp"
#include "tests/unit/catch.hpp"

namespace job_event_fields_tests {

using namespace sluice;
using namespace sluice::aggregator;
using namespace std::chrono_literals;
using Kind = JobEvent::Kind;

namespace {

std::map<std::string, std::string> told(const JobEvent& event, std::uint16_t lane = 0) {
  std::map<std::string, std::string> fields;
  for (const LogField& field : log_fields(event, lane)) {
    const auto* const number = std::get_if<std::uint64_t>(&field.value);
    const bool is_new =
        fields
            .emplace(field.name, number ? std::to_string(*number)
                                        : '"' + std::get<std::string>(field.value) + '"')
            .second;
    CHECK(is_new);
  }
  return fields;
}

using Fields = std::map<std::string, std::string>;

}  // namespace

TEST_CASE("an event's fields name what it knows, and nothing else") {
  JobEvent event{.kind = Kind::kFormed, .session = {.job = 7, .ranks = 4, .streams = 64}};
  CHECK(
      told(event, 2) ==
      Fields{
          {"job", "7"}, {"lane", "2"}, {"event", "\"formed\""}, {"ranks", "4"}, {"streams", "64"}});
  event = {.kind = Kind::kFormationAbandoned, .session = {.job = 7}};
  CHECK(told(event) == Fields{{"job", "7"}, {"lane", "0"}, {"event", "\"formation_abandoned\""}});

  event = {.kind = Kind::kStraggler, .session = {.job = 7, .ranks = 4, .streams = 64}};
  event.straggler = {.rank = Rank{3}, .op = 12, .streams = 5, .waited = 1500ms};
  CHECK(told(event) == Fields{{"job", "7"},
                              {"lane", "0"},
                              {"event", "\"straggler\""},
                              {"ranks", "4"},
                              {"rank", "3"},
                              {"streams", "5"},
                              {"op", "12"},
                              {"waited_ms", "1500"}});

  event = {.kind = Kind::kAborted, .session = {.job = 7, .ranks = 4, .streams = 64}};
  event.reason = AbortInfo{.reason = wire::AbortReason::kRankSilent, .rank_a = Rank{2}};
  event.reason->value_a = 5000;
  event.reported_by = Rank{1};
  CHECK(told(event) == Fields{{"job", "7"},
                              {"lane", "0"},
                              {"event", "\"aborted\""},
                              {"ranks", "4"},
                              {"streams", "64"},
                              {"rank", "2"},
                              {"reported_by", "1"},
                              {"error", '"' + std::string(name(ErrorCode::kWorkerLost)) + '"'},
                              {"reason", '"' + explain(*event.reason) + '"'}});

  event = {.kind = Kind::kMissesGroup, .session = {.job = 7}, .rank = Rank{9}};
  CHECK(told(event)["event"] == "\"group_unreachable\"");
  CHECK(told(event)["rank"] == "9");
  CHECK(told(event).count("job_name") == 0);

  event = {.kind = Kind::kOtherBuild, .session = {.job = 7}, .rank = Rank{9}, .build = "629700c"};
  event.name = "bert";
  CHECK(told(event)["job_name"] == "\"bert\"");
  CHECK(told(event)["rank_build"] == "\"629700c\"");
  CHECK(event.job() == "bert (7)");
}

TEST_CASE("every kind of event has a name of its own") {
  std::map<std::string, int> names;
  for (const Kind kind : {Kind::kFormed, Kind::kResumed, Kind::kFormationAbandoned, Kind::kLeft,
                          Kind::kAborted, Kind::kRefused, Kind::kStraggler, Kind::kWaits,
                          Kind::kOtherBuild, Kind::kMissesGroup, Kind::kReceivesGroup})
    ++names[told({.kind = kind})["event"]];
  CHECK(names.size() == 11);
  CHECK(names.count("\"?\"") == 0);
}

TEST_CASE("events of every kind are logged at most so often") {
  const auto lines = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(1000);
  const auto logger = std::make_shared<spdlog::logger>("part", lines);
  const auto name_of = [](JobEvent::Kind kind) {
    return told({.kind = kind, .session = {}}).at("event");
  };
  int kinds = 0;
  for (; name_of(Kind(kinds)) != "\"?\""; ++kinds) {
    LimitedLog log(logger, [] { return Time{}; });
    log.limit(2);
    JobEvent event{.kind = Kind(kinds), .session = {.job = 7}};
    event.reason = AbortInfo{};
    event.rank = Rank{1};
    for (int i = 0; i < 20; ++i) log_job_event(log, event, 0);
    log.flush();
    INFO(name_of(Kind(kinds)));
    CHECK(lines->last_formatted().size() == std::size_t(3 * (kinds + 1)));
    CHECK_THAT(lines->last_formatted().back(), Catch::Contains("suppressed 18 lines about "));
  }
  CHECK(kinds == 12);
}

}  // namespace job_event_fields_tests
