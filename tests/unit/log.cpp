// The forms of the log's lines, whatever text from outside is in them.
#include "common/config/log.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "aggregator/monitoring/limited_log.hpp"
#include "aggregator/monitoring/rate_limit.hpp"
#include "common/log/fields.hpp"
#include "common/log/printable.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::log_tests {
namespace {

using aggregator::LimitedLog;
using aggregator::RateLimit;
using Catch::Contains;
using config::make_logger;
using nlohmann::json;

class Place {
 public:
  Place() {
    std::string made = "/tmp/sluice-log-XXXXXX";
    REQUIRE(mkdtemp(made.data()) != nullptr);
    path_ = made;
  }
  ~Place() { std::filesystem::remove_all(path_); }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// Stands for systemd's journal.
class Journal {
 public:
  explicit Journal(const std::string& path) : socket_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~Journal() { close(socket_); }

  /// The entry that came next; empty: there is none.
  std::string next() {
    std::array<char, 10'000> entry{};
    const ssize_t bytes = recv(socket_, entry.data(), entry.size(), MSG_DONTWAIT);
    return bytes < 0 ? std::string() : std::string(entry.data(), static_cast<std::size_t>(bytes));
  }

 private:
  const int socket_;
};

const std::vector<std::string> kHostile{std::string("nul\0", 4),
                                        "two\nlines\r\n",
                                        "\x1b[31mred\x1b[0m",
                                        "\"quoted\" \\ and\ttab",
                                        "\xff\xfe broken",
                                        "cut \xe2\x82",
                                        "surrogate \xed\xa0\x80",
                                        "\xc2\x9b"
                                        "1A",
                                        "right to left \xe2\x80\xae",
                                        "MESSAGE=x\nPRIORITY=0\n",
                                        "\x7f",
                                        "{\"a\": 1}"};

}  // namespace

TEST_CASE("text from outside is shown without control characters and broken UTF-8") {
  const std::array<std::pair<std::string, std::string>, 17> cases{{
      {"", ""},
      {"plain /path-1_2: \"a\" \\ 'b'", "plain /path-1_2: \"a\" \\ 'b'"},
      {"Gr\xc3\xbc\xc3\x9f"
       "e \xe2\x82\xac \xf0\x9f\x98\x80",
       "Gr\xc3\xbc\xc3\x9f"
       "e \xe2\x82\xac \xf0\x9f\x98\x80"},
      {std::string("a\0b", 3), "a\\x00b"},
      {"a\nb\rc\td", "a\\nb\\rc\\td"},
      {"\x1b[31m", "\\x1b[31m"},
      {"\x7f", "\\x7f"},
      {"\xc2\x9b"
       "2J",
       "\\xc2\\x9b2J"},
      {"\xc2\xa0", "\xc2\xa0"},
      {"\xe2\x80\xae", "\\xe2\\x80\\xae"},
      {"\xe2\x81\xa6", "\\xe2\\x81\\xa6"},
      {"\xff", "\\xff"},
      {"\xe2\x82", "\\xe2\\x82"},
      {"\xe2\x82 x", "\\xe2\\x82 x"},
      {"\xc0\xaf", "\\xc0\\xaf"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
  }};
  for (const auto& [text, shown] : cases) {
    CHECK(printable(text) == shown);
    CHECK(printable(shown) == shown);
  }
  for (const std::string& text : kHostile)
    CHECK_NOTHROW(json(printable(text)).dump());  // which throws on broken UTF-8
}

TEST_CASE("a line of text is one line whatever it tells, and shows no fields") {
  const Place place;
  const auto logger = make_logger({.name = "part", .file = place.at("log")});
  const LogContext context(LogFields{{"job", std::uint64_t{7}}});
  for (const std::string& text : kHostile) logger->warn("worker at {}", text);
  const auto lines = lines_of(place.at("log"));
  REQUIRE(lines.size() == kHostile.size());
  for (std::size_t i = 0; i < lines.size(); ++i)
    CHECK_THAT(lines[i], Catch::EndsWith(" warning part: worker at " + printable(kHostile[i])));
}

TEST_CASE("every line of JSON is an object, whatever it tells") {
  const Place place;
  const auto logger =
      make_logger({.name = "part", .file = place.at("log"), .format = LogFormat::kJson});
  for (const std::string& text : kHostile) {
    const LogContext context({{"job", std::uint64_t{1} << 63}, {"reason", text}});
    logger->error("worker at {}", text);
  }
  logger->info("bare");
  const auto lines = lines_of(place.at("log"));
  REQUIRE(lines.size() == kHostile.size() + 1);
  for (std::size_t i = 0; i < kHostile.size(); ++i) {
    CAPTURE(lines[i]);
    const json line = json::parse(lines[i]);
    CHECK_THAT(line["time"].get<std::string>(),
               Catch::Matches("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
                              "\\.[0-9]{3}Z"));
    CHECK(line["level"] == "error");
    CHECK(line["process"] == "part");
    CHECK(line["message"] == "worker at " + printable(kHostile[i]));
    CHECK(line["job"] == std::uint64_t{1} << 63);
    CHECK(line["reason"] == printable(kHostile[i]));
  }
  CHECK(json::parse(lines.back()).size() == 4);
}

TEST_CASE("fields are those of the innermost context, and of its thread") {
  const auto names = [] {
    std::string all;
    for (const LogField& field : LogContext::current()) all += std::string(field.name) + " ";
    return all;
  };
  CHECK(names().empty());
  {
    const LogContext outer({{"job", std::uint64_t{7}}, {"lane", std::uint64_t{0}}});
    CHECK(names() == "job lane ");
    {
      const LogContext inner(LogFields{{"event", "suppressed"}});
      CHECK(names() == "event ");
    }
    CHECK(names() == "job lane ");
  }
  CHECK(names().empty());
}

TEST_CASE("lines that were kept out are told without the fields of the next one") {
  const Place place;
  const auto logger =
      make_logger({.name = "part", .file = place.at("log"), .format = LogFormat::kJson});
  Time now{};
  LimitedLog log(logger, [&] { return now; });
  log.limit(1);
  for (const Time at : {Time{}, Time{}, Time{} + std::chrono::seconds(1)}) {
    now = at;
    const LogContext context(LogFields{{"job", std::uint64_t{7}}});
    log.log("refused joins", spdlog::level::warn, "refused");
  }
  const auto lines = lines_of(place.at("log"));
  REQUIRE(lines.size() == 3);
  CHECK(json::parse(lines[1])["lines"] == 1);
  CHECK(json::parse(lines[1])["cause"] == "refused joins");
  CHECK_FALSE(json::parse(lines[1]).contains("job"));
  CHECK(json::parse(lines[2])["job"] == 7);
}

TEST_CASE("a flood of one cause is counted, and leaves no line of another out") {
  const Place place;
  const auto logger = make_logger({.name = "part", .file = place.at("log")});
  const auto said = [&](const std::string& text) {
    const auto lines = lines_of(place.at("log"));
    return std::ranges::count_if(lines, [&](const auto& line) { return line.ends_with(text); });
  };
  Time now{};
  LimitedLog log(logger, [&] { return now; });
  const auto flood = [&] {
    for (int i = 0; i < 100; ++i) {
      log.log("formed jobs", spdlog::level::info, "formed");
      log.log("debugging", spdlog::level::debug, "not logged, so not counted");
    }
  };
  flood();
  CHECK(said("formed") == 100);  // nothing is limited before it is told to
  log.limit(2);
  flood();
  log.log("refused joins", spdlog::level::warn, "refused");
  CHECK(said("formed") == 102);
  CHECK(said("refused") == 1);

  SECTION("when its second is over") {
    log.tell_suppressed();
    CHECK(said("suppressed 98 lines about formed jobs") == 0);
    now += std::chrono::seconds(1);
    log.tell_suppressed();
    log.tell_suppressed();
  }
  SECTION("when the log ends") {
    log.flush();
  }
  SECTION("when the limit changes") {
    log.limit(0);
    flood();
    CHECK(said("formed") == 202);
  }
  CHECK(said("info part: ... suppressed 98 lines about formed jobs") == 1);
  CHECK(said("lines about debugging") == 0);
}

TEST_CASE("the journal gets an entry for each line, with the line's fields") {
  const Place place;
  const std::string path = place.at("journal");
  auto journal = std::make_unique<Journal>(path);
  const auto logger = make_logger({.name = "part",
                                   .level = LogLevel::kTrace,
                                   .format = LogFormat::kJournald,
                                   .journal_socket = path});
  {
    const LogContext context({{"job", std::uint64_t{7}}, {"reason", "a\nPRIORITY=0"}});
    logger->warn("ended {}", "x\nMESSAGE=y");
  }
  CHECK(journal->next() ==
        "MESSAGE=ended x\\nMESSAGE=y\nPRIORITY=4\nSYSLOG_IDENTIFIER=part\nSLUICE_JOB=7\n"
        "SLUICE_REASON=a\\nPRIORITY=0\n");
  const std::array<std::pair<spdlog::level::level_enum, int>, 5> priorities{
      {{spdlog::level::critical, 2},
       {spdlog::level::err, 3},
       {spdlog::level::info, 6},
       {spdlog::level::debug, 7},
       {spdlog::level::trace, 7}}};
  for (const auto& [level, priority] : priorities) {
    logger->log(level, "a line");
    CHECK_THAT(journal->next(), Contains("\nPRIORITY=" + std::to_string(priority) + "\n"));
  }

  SECTION("a journal that is gone costs lines alone, and one that is back gets the next") {
    journal.reset();
    const std::uint64_t before = config::log_write_failures();
    CHECK_NOTHROW(logger->error("lost"));
    CHECK(config::log_write_failures() == before + 1);
    std::filesystem::remove(path);
    journal = std::make_unique<Journal>(path);
    logger->error("told");
    CHECK_THAT(journal->next(), Contains("MESSAGE=told\n"));
    CHECK(journal->next().empty());
  }
}

TEST_CASE("a journal that is not there is an error") {
  const Place place;
  const auto error_with = [](const std::string& path) -> std::string {
    try {
      make_logger({.format = LogFormat::kJournald, .journal_socket = path});
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kUnavailable);
      return error.what();
    }
    return "none";
  };
  const std::string path = place.at("nowhere");
  CHECK(error_with(path) ==
        "log-format journald: the journal's socket '" + path + "': No such file or directory");
  CHECK_THAT(error_with(std::string(200, 'x')), Contains("File name too long"));
}

TEST_CASE("the rate limit admits n lines a second and counts the rest") {
  using std::chrono::milliseconds;
  const Time start{std::chrono::hours(1)};
  RateLimit limit(2);
  CHECK(limit.admit(start));
  CHECK(limit.admit(start + milliseconds(500)));
  CHECK_FALSE(limit.admit(start + milliseconds(600)));
  CHECK_FALSE(limit.admit(start + milliseconds(999)));
  CHECK(limit.take_suppressed(start + milliseconds(999)) == 0);
  CHECK(limit.take_suppressed(start + milliseconds(1000)) == 2);
  CHECK(limit.take_suppressed(start + milliseconds(1000)) == 0);
  CHECK(limit.admit(start + milliseconds(1000)));
  CHECK(limit.admit(start + milliseconds(1001)));
  CHECK_FALSE(limit.admit(start + milliseconds(1002)));

  RateLimit none(0);
  for (int i = 0; i < 1000; ++i) CHECK(none.admit(start));
}

}  // namespace sluice::log_tests
