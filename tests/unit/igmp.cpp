// common/net/igmp: the host's side of IGMP in virtual time.
#include "common/net/igmp.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/unit/catch.hpp"

namespace igmp_tests {

using namespace sluice;
using namespace sluice::net;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<std::byte>;
using Groups = std::vector<std::uint32_t>;
using Outcome = Igmp::Outcome;

constexpr std::uint32_t kA = 0xefc0'0001;  // 239.192.0.1
constexpr std::uint32_t kB = 0xefc0'0002;
constexpr std::uint32_t kStrange = 0xefc0'0063;
constexpr Time kStart{1h};

/// As many as may be joined.
Groups all_groups(std::uint32_t first = kA) {
  Groups groups(kMaxGroups);
  std::iota(groups.begin(), groups.end(), first);
  return groups;
}

Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

Bytes message(int type, int code, std::uint32_t group) {
  return bytes({type, code, 0, 0, static_cast<int>(group >> 24), static_cast<int>(group >> 16),
                static_cast<int>(group >> 8), static_cast<int>(group)});
}

Bytes query(int code, std::uint32_t group = 0, int robustness = 2, int sources = 0) {
  Bytes all = message(0x11, code, group);
  for (const std::byte byte : bytes({robustness, 125, sources >> 8, sources})) all.push_back(byte);
  all.resize(all.size() + 4 * static_cast<std::size_t>(sources), std::byte{10});
  return all;
}

Bytes old_query(int code, std::uint32_t group = 0) {
  return message(0x11, code, group);
}

Bytes old_report(std::uint32_t group) {
  return message(0x16, 0, group);
}

enum Record : std::uint8_t { kIsExclude = 2, kToInclude = 3, kToExclude = 4 };

/// The records of a report of version 3.
std::map<std::uint32_t, int> records(const IgmpMessage& report) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(report.bytes()[i]); };
  REQUIRE(report.to == kReportsVersion3);
  REQUIRE(at(0) == 0x22);
  REQUIRE(report.size == 8 + 8 * (at(6) << 8 | at(7)));
  std::map<std::uint32_t, int> all;
  for (std::size_t i = 8; i < report.size; i += 8) {
    CHECK((at(i + 1) | at(i + 2) | at(i + 3)) == 0);  // no sources, nothing else
    all[at(i + 4) << 24 | at(i + 5) << 16 | at(i + 6) << 8 | at(i + 7)] = static_cast<int>(at(i));
  }
  return all;
}

struct Sent {
  Time when;
  IgmpMessage message;
};

/// A port's, to the next message and the next one.
struct Host {
  Igmp igmp;
  Time now = kStart;

  explicit Host(const Groups& groups = {}, std::uint64_t seed = 1) : igmp(seed) {
    igmp.set_groups(groups);
  }

  /// What is sent within that time.
  std::vector<Sent> run(Duration longest) {
    std::vector<Sent> all;
    const Time end = now + longest;
    for (; igmp.next_time() <= end; now = std::max(now, igmp.next_time())) {
      now = std::max(now, igmp.next_time());
      const auto message = igmp.next_message(now);
      REQUIRE(message);
      all.push_back({now, *message});
      REQUIRE(all.size() < 10'000);
    }
    CHECK_FALSE(igmp.next_message(end));
    now = end;
    return all;
  }
  std::vector<Sent> settle() { return run(100s); }
};

/// One that has reported all its groups.
Host settled(const Groups& groups, std::uint64_t seed = 1) {
  Host host(groups, seed);
  host.settle();
  return host;
}

}  // namespace

TEST_CASE("A group that is joined is reported at once, and again within a second") {
  Host host;
  CHECK(host.igmp.next_time() == kNever);
  CHECK_FALSE(host.igmp.next_message(kStart));
  host.igmp.set_groups(Groups{kA});
  const auto sent = host.settle();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].when == kStart);
  CHECK(sent[1].when > kStart);
  CHECK(sent[1].when <= kStart + 1s);
  for (const Sent& each : sent)
    CHECK(records(each.message) == std::map<std::uint32_t, int>{{kA, kToExclude}});
  CHECK(host.igmp.next_time() == kNever);
}

TEST_CASE("A report is written byte by byte as the standard says") {
  Host host({kA});
  const IgmpMessage report = host.igmp.next_message(kStart).value();
  CHECK(Bytes(report.bytes().begin(), report.bytes().end()) ==
        bytes({0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 192, 0, 1}));
}

TEST_CASE("A group that is left is reported twice, and then forgotten") {
  Host host = settled({kA, kB});
  host.igmp.set_groups(Groups{kB});
  const Time left = host.now;
  const auto sent = host.settle();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].when == left);
  CHECK(sent[1].when <= left + 1s);
  for (const Sent& each : sent)
    CHECK(records(each.message) == std::map<std::uint32_t, int>{{kA, kToInclude}});
  CHECK(host.igmp.take(query(10, kA), host.now) == Outcome::kIgnored);
  CHECK(host.igmp.take(query(10, kB), host.now) == Outcome::kQuery);
}

TEST_CASE("Groups that change together share their reports") {
  Host host = settled({kA});
  host.igmp.set_groups(Groups{kB, kStrange});
  const auto sent = host.settle();
  REQUIRE(sent.size() == 2);
  for (const Sent& each : sent)
    CHECK(records(each.message) ==
          std::map<std::uint32_t, int>{{kA, kToInclude}, {kB, kToExclude}, {kStrange, kToExclude}});
}

TEST_CASE("The same groups again, in another order, are no news") {
  Host host = settled({kA, kB});
  host.igmp.set_groups(Groups{kB, kA});
  CHECK(host.igmp.next_time() == kNever);
}

TEST_CASE("Who changes his mind reports the last state") {
  Host host = settled({kA});
  host.igmp.set_groups({});
  CHECK(records(host.igmp.next_message(host.now).value()).at(kA) == kToInclude);
  host.igmp.set_groups(Groups{kA});
  const auto sent = host.settle();
  REQUIRE(sent.size() == 2);
  for (const Sent& each : sent) CHECK(records(each.message).at(kA) == kToExclude);
}

TEST_CASE("Another switch is told of all groups anew, and of none that was left") {
  Host host = settled({kA, kB});
  host.igmp.set_groups(Groups{kA});
  host.igmp.report_again();
  const auto sent = host.settle();
  REQUIRE(sent.size() == 2);
  for (const Sent& each : sent)
    CHECK(records(each.message) == std::map<std::uint32_t, int>{{kA, kToExclude}});
}

TEST_CASE("However fast groups change, few are kept and all that are joined are reported") {
  Host host;
  for (std::uint32_t turn = 0; turn < 1000; ++turn) {
    const Groups groups = all_groups(kA + turn * std::uint32_t{kMaxGroups});
    host.igmp.set_groups(groups);
    if (turn % 3 != 0) continue;
    const IgmpMessage report = host.igmp.next_message(host.now).value();
    const auto all = records(report);
    CHECK(all.size() <= 2 * kMaxGroups);
    for (const std::uint32_t group : groups) CHECK(all.at(group) == kToExclude);
  }
}

TEST_CASE("A query is answered within the time that it gives") {
  const auto [code, longest] =
      GENERATE(std::pair<int, Duration>{1, 100ms}, std::pair<int, Duration>{100, 10s},
               std::pair<int, Duration>{127, 12'700ms}, std::pair<int, Duration>{128, 12'800ms},
               std::pair<int, Duration>{0xb4, 128s});
  const std::uint32_t group = GENERATE(0u, kA);
  const int sources = group == 0 ? 0 : GENERATE(0, 3);
  Duration latest{};
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Host host = settled({kA}, seed);
    const Time asked = host.now;
    REQUIRE(host.igmp.take(query(code, group, 2, sources), asked) == Outcome::kQuery);
    const auto sent = host.run(2 * longest);
    REQUIRE(sent.size() == 1);
    CHECK(records(sent[0].message) == std::map<std::uint32_t, int>{{kA, kIsExclude}});
    CHECK(sent[0].when <= asked + longest);
    latest = std::max(latest, sent[0].when - asked);
  }
  CHECK(latest > longest * 9 / 10);  // no less than it gives
}

TEST_CASE("Hosts whose addresses differ little answer at different times") {
  std::vector<Time> times;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Host host = settled({kA}, 0x0200'0000'0000 + seed);
    host.igmp.take(query(100), host.now);
    times.push_back(host.igmp.next_time());
  }
  std::ranges::sort(times);
  for (std::size_t i = 10; i < times.size(); ++i) CHECK(times[i] - times[i - 10] > 100ms);
  Host again = settled({kA}, 0x0200'0000'0000);
  again.igmp.take(query(100), again.now);
  CHECK(std::ranges::binary_search(times, again.igmp.next_time()));
}

TEST_CASE("One report answers a query about all groups; one about a group is about it alone") {
  Host host = settled({kA, kB});
  host.igmp.take(query(100), host.now);
  auto sent = host.run(10s);
  REQUIRE(sent.size() == 1);
  CHECK(records(sent[0].message) ==
        std::map<std::uint32_t, int>{{kA, kIsExclude}, {kB, kIsExclude}});
  host.igmp.take(query(10, kB), host.now);
  sent = host.run(10s);
  REQUIRE(sent.size() == 1);
  CHECK(records(sent[0].message) == std::map<std::uint32_t, int>{{kB, kIsExclude}});
}

TEST_CASE("An answer that is due earlier is kept, and answers later queries, too") {
  Host host = settled({kA});
  host.igmp.take(query(10), host.now);
  const Time due = host.igmp.next_time();
  for (int i = 0; i < 100; ++i) host.igmp.take(query(255), host.now);
  CHECK(host.igmp.next_time() == due);
  CHECK(host.settle().size() == 1);
}

TEST_CASE("A report of a change answers a query as well") {
  Host host = settled({kA});
  host.igmp.take(query(255), host.now);
  host.igmp.set_groups({});
  CHECK(host.run(4000s).size() == 2);
  host.igmp.set_groups(Groups{kA});
  host.igmp.take(query(255), host.now);
  CHECK(host.run(4000s).size() == 2);
}

TEST_CASE("No flood of queries makes more than ten messages a second") {
  const Bytes flood = GENERATE(query(0), query(1), query(0, kA), old_query(1), old_query(1, kA),
                               query(0, kA, 7, 100));
  const Groups groups = all_groups();
  Host host = settled(groups);
  std::vector<Sent> sent;
  for (int ms = 0; ms < 10'000; ++ms) {
    for (int i = 0; i < 10; ++i) host.igmp.take(flood, host.now);
    for (const Sent& each : host.run(1ms)) sent.push_back(each);
  }
  CHECK(sent.size() <= 101);
  CHECK(sent.size() >= 50);
}

TEST_CASE("No group waits for ever for others' answers in a flood") {
  const Groups groups = all_groups();
  Host host = settled(groups);
  std::map<std::uint32_t, int> answers;
  for (int ms = 0; ms < 10'000; ++ms) {
    host.igmp.take(old_query(1), host.now);
    for (const Sent& each : host.run(1ms)) ++answers[each.message.to];
  }
  for (const std::uint32_t group : groups) CHECK(answers[group] >= 10);
}

TEST_CASE("No flood of queries holds up the report of a change") {
  Host host;
  host.igmp.set_groups(Groups{kA});
  int changes = 0;
  for (int ms = 0; ms <= 1000; ++ms) {
    host.igmp.take(query(0), host.now);
    for (const Sent& each : host.run(1ms)) changes += records(each.message).at(kA) == kToExclude;
  }
  CHECK(changes == 2);
}

TEST_CASE("The querier says how often changes are reported") {
  const auto [robustness, reports] = GENERATE(std::pair{7, 7}, std::pair{3, 3}, std::pair{0, 2});
  Host host = settled({kA});
  host.igmp.take(query(10, 0, 5), host.now);
  host.igmp.take(query(10, 0, 8 | robustness), host.now);  // 8: a router's own affair
  host.settle();
  host.igmp.set_groups(Groups{kB});
  CHECK(host.settle().size() == static_cast<std::size_t>(reports));
}

TEST_CASE("While a querier of version 2 is there, messages are of that version") {
  Host host = settled({kA, kB});
  const Time asked = host.now;
  CHECK(host.igmp.take(old_query(100), asked) == Outcome::kQuery);
  auto sent = host.run(10s);
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].message.to != sent[1].message.to);
  for (const Sent& each : sent) {
    const auto all = each.message.bytes();
    CHECK(Bytes(all.begin(), all.end()) == old_report(each.message.to));
  }

  host.igmp.set_groups(Groups{kB, kStrange});
  sent = host.run(10s);
  REQUIRE(sent.size() == 4);
  int left = 0;
  for (const Sent& each : sent) {
    const auto all = each.message.bytes();
    const bool leaves = each.message.to == kAllRouters;
    left += leaves;
    CHECK(Bytes(all.begin(), all.end()) == (leaves ? message(0x17, 0, kA) : old_report(kStrange)));
  }
  CHECK(left == 2);

  // It is gone.
  host.now = asked + 260s;
  host.igmp.set_groups(Groups{kB});
  CHECK(records(host.igmp.next_message(host.now).value()).at(kStrange) == kToInclude);
}

TEST_CASE("A querier of version 3 does not end the time of version 2; it ends by itself") {
  Host host = settled({kA});
  const Time asked = host.now;
  host.igmp.take(old_query(100), asked);
  host.run(259s);
  host.igmp.take(query(5), host.now);
  const auto sent = host.run(500ms);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].message.to == kA);
  host.now = asked + 260s;
  host.igmp.take(query(5), host.now);
  CHECK(records(host.run(500ms).at(0).message).at(kA) == kIsExclude);
}

TEST_CASE("A query of version 1 is answered as one of version 2, within ten seconds") {
  Host host = settled({kA});
  CHECK(host.igmp.take(old_query(0), host.now) == Outcome::kQuery);
  const auto sent = host.run(10s);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].message.to == kA);
}

TEST_CASE("In version 2 another host's report stands for ours, in version 3 it does not") {
  Host host = settled({kA, kB});
  CHECK(host.igmp.take(old_report(kA), host.now) == Outcome::kIgnored);  // nobody asked
  host.igmp.take(query(100), host.now);
  CHECK(host.igmp.take(old_report(kA), host.now) == Outcome::kIgnored);
  CHECK(records(host.run(10s).at(0).message).size() == 2);

  host.igmp.take(old_query(100), host.now);
  CHECK(host.igmp.take(old_report(kStrange), host.now) == Outcome::kIgnored);
  CHECK(host.igmp.take(old_report(kA), host.now) == Outcome::kReport);
  const auto sent = host.run(10s);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].message.to == kB);
}

TEST_CASE("Another host's report does not stand for the report that we joined") {
  Host host = settled({kA});
  host.igmp.take(old_query(100), host.now);
  host.settle();
  host.igmp.set_groups(Groups{kA, kB});
  CHECK(host.igmp.take(old_report(kB), host.now) == Outcome::kIgnored);
  CHECK(host.settle().size() == 2);
}

TEST_CASE("What is malformed or about others changes nothing") {
  Host host = settled({kA});
  Bytes ten = query(1);
  ten.resize(10);
  Bytes short_of_sources = query(1, kA, 2, 3);
  short_of_sources.pop_back();
  const std::vector<Bytes> wrong{
      {},
      bytes({0x11}),
      Bytes(7, std::byte{0x11}),
      ten,
      short_of_sources,
      query(1, kStrange),
      old_query(1, kStrange),
      query(1, 0x0a00'0001),  // no multicast address
      query(1, kAllHosts),    // not to be joined
      message(0x12, 0, kA),   // a report of version 1
      message(0x17, 0, kA),   // another host's leave
      message(0x22, 0, 0),    // another host's report of version 3
      message(0x13, 0, kA),   // DVMRP
      message(0xff, 0xff, ~0u),
  };
  for (const Bytes& each : wrong) {
    CHECK(host.igmp.take(each, host.now) == Outcome::kIgnored);
    CHECK(host.igmp.next_time() == kNever);
  }
  host.igmp.set_groups({});
  CHECK(records(host.igmp.next_message(host.now).value()).at(kA) == kToInclude);  // version 3
}

TEST_CASE("Who has joined nothing answers nothing") {
  Host host;
  CHECK(host.igmp.take(query(1), host.now) == Outcome::kQuery);
  CHECK(host.igmp.next_time() == kNever);
}

}  // namespace igmp_tests
