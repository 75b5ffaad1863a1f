// The numbers of docs/sizing.md are those of the code, and of the formulas that the page states.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/engine/stream_memory.hpp"
#include "common/base/limits.hpp"
#include "common/base/packet_memory.hpp"
#include "common/config/aggregator_config.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/protocol_page.hpp"

namespace sizing_tests {

using namespace sluice;
using sluice::config::AggregatorConfig;
using sluice::config::packet_memory_mib;

namespace {

constexpr std::uint16_t kShort = 1500;
constexpr std::uint16_t kLong = 9000;
constexpr double kMib = 1 << 20;

/// The numbers in each cell of each row of the table whose head begins so.
using Cell = std::vector<double>;
std::vector<std::vector<Cell>> table(const std::string& head) {
  std::ifstream page(test::source_file("docs/sizing.md"));
  REQUIRE(page);
  std::vector<std::vector<Cell>> rows;
  std::string line;
  while (std::getline(page, line) && !line.starts_with(head)) continue;
  std::getline(page, line);  // the line below the head
  while (std::getline(page, line) && line.starts_with('|')) {
    static const std::regex number("[0-9.]+");
    std::istringstream cells(line.substr(1));
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '|');) {
      Cell& numbers = rows.back().emplace_back();
      for (std::sregex_iterator found(cell.begin(), cell.end(), number), end; found != end; ++found)
        numbers.push_back(std::stod(found->str()));
    }
  }
  REQUIRE(rows.size() > 4);
  return rows;
}

double rounded(double number, double step) {
  return std::round(number / step) * step;
}

AggregatorConfig one_port(double streams, double history, double lanes, std::uint16_t mtu) {
  AggregatorConfig config;
  config.ports = {"net_tap0"};
  config.port_mtu = mtu;
  config.streams = static_cast<std::uint16_t>(streams);
  config.history = static_cast<std::uint8_t>(history);
  config.lanes = static_cast<std::uint16_t>(lanes);
  return config;
}

double lanes_busy(double gbits, double mtu, double cycles) {
  constexpr double kFraming = 38;  // Ethernet, check sequence, preamble, gap
  constexpr double kHz = 2.6e9;
  return rounded(2 * gbits * 1e9 / 8 / (mtu + kFraming) * cycles / kHz, 0.01);
}

Session session_of(double ranks, std::uint16_t mtu) {
  Session session;
  session.ranks = static_cast<std::uint16_t>(ranks);
  session.streams = defaults::kStreams;
  session.history = defaults::kHistory;
  session.block_elements = defaults::kBlockElements;
  session.payload_bytes = static_cast<std::uint16_t>(mtu - 28);
  return session;
}

double quota_mib(double ranks, std::uint16_t mtu) {
  return std::ceil(static_cast<double>(aggregator::job_bytes(session_of(ranks, mtu))) / kMib);
}

double buffers_of_job(double ranks) {
  const std::size_t of_stream = aggregator::stream_buffers(session_of(ranks, kShort));
  return static_cast<double>(defaults::kStreams * of_stream);
}

double mib_of(double buffers, std::uint16_t mtu) {
  return rounded(buffers * static_cast<double>(packet_buffer_bytes(mtu)) / kMib, 0.1);
}

double buffers_of_jobs(const AggregatorConfig& config) {
  const double mib = packet_memory_mib(config) - config::dpdk_memory_mib(config);
  const auto bytes = static_cast<double>(packet_buffer_bytes(config.port_mtu));
  return std::floor(mib * kMib / bytes) - static_cast<double>(config::ring_buffers(config));
}

}  // namespace

/// "1", "3 to 4" or "more than 8", of what keeps that many cores busy.
void check_lanes(const Cell& cell, double low, double high) {
  const double most = limits::kMaxLanes;
  CHECK(cell.front() == std::min(std::ceil(low), most));
  CHECK(cell.back() == std::min(std::ceil(high), most));
}

TEST_CASE("docs/sizing.md: lanes for a full link") {
  for (const auto& row : table("| link, Gbit/s | busy")) {
    const double link = row.at(0).at(0);
    INFO("link of " << link << " Gbit/s");
    const Cell in_short{lanes_busy(link, kShort, 242 + 107), lanes_busy(link, kShort, 550)};
    const Cell in_long{lanes_busy(link, kLong, 507 + 310), lanes_busy(link, kLong, 1446)};
    CHECK_THAT(row.at(1), Catch::Matchers::Approx(in_short));
    check_lanes(row.at(2), in_short[0], in_short[1]);
    CHECK_THAT(row.at(3), Catch::Matchers::Approx(in_long));
    check_lanes(row.at(4), in_long[0], in_long[1]);
  }
}

TEST_CASE("docs/sizing.md: streams that fill a link") {
  constexpr double kRoundTrip = 100e-6;
  for (const auto& row : table("| link, Gbit/s | streams")) {
    const double bytes = row.at(0).at(0) * 1e9 * kRoundTrip / 8;
    INFO("link of " << row[0][0] << " Gbit/s");
    CHECK(row.at(1) == Cell{std::round(bytes / 1174)});
    CHECK(row.at(2) == Cell{std::round(bytes / 8426)});
  }
}

TEST_CASE("docs/sizing.md: packet memory that is computed") {
  for (const auto& row : table("| streams | history")) {
    const double streams = row.at(0).at(0);
    const double history = row.at(1).at(0);
    const double lanes = row.at(2).at(0);
    INFO(streams << " streams, history " << history << ", " << lanes << " lanes");
    for (const auto& [column, mtu] : {std::pair{3, kShort}, std::pair{4, kLong}}) {
      const auto mib = packet_memory_mib(one_port(streams, history, lanes, mtu));
      CHECK(row.at(static_cast<std::size_t>(column)) == Cell{static_cast<double>(mib)});
    }
  }
}

TEST_CASE("docs/sizing.md: what a job takes") {
  const AggregatorConfig config = one_port(defaults::kStreams, defaults::kHistory, 1, kShort);
  for (const auto& row : table("| ranks | buffers")) {
    const double ranks = row.at(0).at(0);
    INFO(ranks << " ranks");
    const double buffers = buffers_of_job(ranks);
    CHECK(row.at(1) == Cell{buffers});
    CHECK_THAT(row.at(2), Catch::Matchers::Approx(Cell{mib_of(buffers, kShort)}));
    CHECK_THAT(row.at(3), Catch::Matchers::Approx(Cell{mib_of(buffers, kLong)}));
    CHECK(row.at(4) == Cell{std::floor(buffers_of_jobs(config) / buffers)});
    CHECK(row.at(5) == Cell{quota_mib(ranks, kShort)});
    CHECK(row.at(6) == Cell{quota_mib(ranks, kLong)});
  }
}

TEST_CASE("docs/sizing.md: up to so many ranks a job gets all streams without asking") {
  for (const std::uint16_t mtu : {kShort, kLong}) {
    const double half =
        buffers_of_jobs(one_port(defaults::kStreams, defaults::kHistory, 1, mtu)) / 2;
    CHECK(buffers_of_job(198) <= half);
    CHECK(buffers_of_job(200) > half);
  }
}

}  // namespace sizing_tests
