// What the service manager is told, and when its watchdog is fed.
#include "aggregator/daemon/service_manager.hpp"

#include <string>
#include <utility>
#include <vector>

#include <spdlog/sinks/null_sink.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "tests/unit/catch.hpp"

namespace service_manager_tests {

using namespace sluice;
using namespace sluice::aggregator;
using namespace std::chrono_literals;

namespace {

const auto kQuiet =
    std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_st>());

struct Manager {
  std::vector<std::string> told;
  ServiceManager service;

  explicit Manager(Duration watchdog = 10s)
      : service([this](const std::string& lines) { told.push_back(lines); }, watchdog, kQuiet) {}

  bool feeds(std::vector<std::uint64_t> turns, Duration at) {
    told.clear();
    service.feed(turns, Time(at));
    return told == std::vector<std::string>{"WATCHDOG=1"};
  }
};

config::Environment environment_of(std::vector<std::pair<std::string, std::string>> set) {
  return [set = std::move(set)](const std::string& name) -> std::optional<std::string> {
    for (const auto& [key, value] : set)
      if (key == name) return value;
    return {};
  };
}

}  // namespace

TEST_CASE("The service manager is told each state with its status") {
  Manager manager;
  manager.service.ready("0 jobs");
  manager.service.status("2 jobs");
  manager.service.stopping("2 jobs");
  CHECK(manager.told == std::vector<std::string>{"READY=1\nSTATUS=0 jobs", "STATUS=2 jobs",
                                                 "STOPPING=1\nSTATUS=2 jobs"});
  manager.service.reloading();
  CHECK_THAT(manager.told.back(), Catch::StartsWith("RELOADING=1\nMONOTONIC_USEC="));
}

TEST_CASE("The watchdog is fed twice in its interval while every lane turns") {
  Manager manager;
  CHECK(manager.feeds({1, 1}, 0s));
  CHECK_FALSE(manager.feeds({2, 2}, 4s));
  CHECK(manager.feeds({3, 3}, 5s));
  CHECK(manager.feeds({4, 4}, 10s));
}

TEST_CASE("The watchdog is not fed while one of the lanes stands still") {
  Manager manager;
  CHECK(manager.feeds({1, 1}, 0s));
  CHECK_FALSE(manager.feeds({900, 1}, 5s));
  CHECK_FALSE(manager.feeds({1800, 1}, 9s));
  CHECK(manager.feeds({1801, 2}, 9s + 20ms));  // it went on in time
  CHECK_FALSE(manager.feeds({1802, 3}, 10s));
  CHECK_FALSE(manager.feeds({1801, 4}, 15s));  // now the other one
}

TEST_CASE("Without a watchdog nothing is fed") {
  Manager manager(0s);
  CHECK_FALSE(manager.feeds({1}, 0s));
}

TEST_CASE("Without NOTIFY_SOCKET nobody is told") {
  ServiceManager service(environment_of({{"WATCHDOG_USEC", "1"}}), kQuiet);
  CHECK_FALSE(service.is_there());
  service.ready("0 jobs");
  service.feed(std::vector<std::uint64_t>{1}, Time(1s));
}

TEST_CASE("A socket of the service manager that is not there is an error") {
  for (const std::string& path : {std::string("/nowhere/notify"), std::string(200, 'x')})
    CHECK_THROWS_AS(ServiceManager(environment_of({{"NOTIFY_SOCKET", path}}), kQuiet), Error);
}

}  // namespace service_manager_tests
