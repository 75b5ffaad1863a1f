// Source ports chosen for a device's RSS, against DPDK's software Toeplitz hash over whole tuples.
#include "common/net/rss.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <sluice/error.hpp>

#include "tests/unit/catch.hpp"

namespace rss_tests {

using namespace sluice;
using namespace sluice::net;
using Catch::Contains;

namespace {

using Key = std::vector<std::uint8_t>;

/// That of Microsoft's "Verifying the RSS Hash Calculation", which many drivers have as default.
const Key kKnownKey{0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                    0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                    0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                    0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

constexpr std::uint32_t ipv4(unsigned a, unsigned b, unsigned c, unsigned d) {
  return a << 24 | b << 16 | c << 8 | d;
}

constexpr std::uint32_t kOwn = ipv4(10, 77, 0, 1);
constexpr std::uint16_t kUdpPort = 4747;

std::vector<std::uint16_t> in_turns(std::size_t entries, std::uint16_t queues) {
  std::vector<std::uint16_t> table(entries);
  for (std::size_t i = 0; i < entries; ++i) table[i] = static_cast<std::uint16_t>(i % queues);
  return table;
}

/// The queue to which a device with these brings what a worker sends to a lane.
std::uint16_t queue_of(const Rss& rss, std::uint32_t worker, std::uint16_t from, unsigned lane) {
  const std::uint32_t hash =
      rss_hash(rss.key, {.source_ipv4 = worker,
                         .destination_ipv4 = kOwn,
                         .source_port = from,
                         .destination_port = static_cast<std::uint16_t>(kUdpPort + lane)});
  return rss.table[hash % rss.table.size()];
}

std::optional<SourcePortChooser> chooser_for(const Rss& rss, std::uint16_t lanes) {
  try {
    return std::optional<SourcePortChooser>(std::in_place, rss, kOwn, kUdpPort, lanes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string refusal_of(const Rss& rss, std::uint16_t lanes) {
  try {
    const SourcePortChooser chooser(rss, kOwn, kUdpPort, lanes);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("The hash is that of Microsoft's examples") {
  CHECK(rss_hash(kKnownKey, {ipv4(66, 9, 149, 187), ipv4(161, 142, 100, 80), 2794, 1766}) ==
        0x51ccc178);
  CHECK(rss_hash(kKnownKey, {ipv4(199, 92, 111, 2), ipv4(65, 69, 140, 83), 14230, 4739}) ==
        0xc626b0ea);
  CHECK(rss_hash(kKnownKey, {ipv4(24, 19, 198, 95), ipv4(12, 22, 207, 184), 12898, 38024}) ==
        0x5c2b394a);
  CHECK(rss_hash(kKnownKey, {ipv4(38, 27, 205, 30), ipv4(209, 142, 163, 6), 48228, 2217}) ==
        0xafc7327f);
  CHECK(rss_hash(kKnownKey, {ipv4(153, 39, 163, 191), ipv4(202, 188, 127, 2), 44251, 1303}) ==
        0x10e828a2);
}

TEST_CASE("What is sent from the chosen ports comes to the lanes' queues") {
  std::mt19937 random(7);
  const auto draw = [&] { return static_cast<std::uint32_t>(random()); };
  const auto random_key = [&](std::size_t bytes) {
    Key key(bytes);
    for (auto& byte : key) byte = static_cast<std::uint8_t>(draw());
    return key;
  };
  std::vector<Key> keys{kKnownKey};
  for (int i = 0; i < 12; ++i) keys.push_back(random_key(i % 2 == 0 ? 40 : 52));
  unsigned tried = 0, usable = 0;
  for (const Key& key : keys) {
    for (std::uint16_t lanes = 2; lanes <= limits::kMaxLanes; ++lanes) {
      Rss rss{key, in_turns(std::size_t{16} << draw() % 6, lanes)};
      if (draw() % 2 == 0) std::ranges::shuffle(rss.table, random);
      const auto chooser = chooser_for(rss, lanes);
      ++tried;
      if (!chooser) continue;
      ++usable;
      for (int i = 0; i < 20; ++i) {
        const std::uint32_t worker = draw();
        const Rank rank{static_cast<std::uint16_t>(draw())};
        const SourcePorts ports = chooser->choose(worker, rank);
        CHECK(ports == chooser->choose(worker, rank));
        for (std::size_t lane = 0; lane < ports.size(); ++lane) {
          if (lane >= lanes) {
            CHECK(ports[lane] == 0);
            continue;
          }
          CHECK(is_source_port_of(lane, ports[lane]));
          CHECK(queue_of(rss, worker, ports[lane], static_cast<unsigned>(lane)) == lane);
        }
      }
    }
  }
  CHECK(usable >= tried * 9 / 10);
}

TEST_CASE("Ranks behind one address send from different ports") {
  for (const auto lanes : {std::uint16_t{2}, std::uint16_t{8}}) {
    const Rss rss{kKnownKey, in_turns(128, lanes)};
    const SourcePortChooser chooser(rss, kOwn, kUdpPort, lanes);
    std::set<std::uint16_t> seen;
    for (std::uint16_t rank = 0; rank < limits::kMaxRanks; ++rank) {
      const SourcePorts ports = chooser.choose(ipv4(10, 77, 0, 9), Rank{rank});
      seen.insert(ports.begin(), ports.begin() + lanes);
    }
    CHECK(seen.size() == std::size_t{limits::kMaxRanks} * lanes);
  }
}

TEST_CASE("Where source ports cannot steer it is said why") {
  const Rss good{kKnownKey, in_turns(128, 4)};
  CHECK(refusal_of(good, 4).empty());
  CHECK_THAT(refusal_of({kKnownKey, {}}, 4), Contains("the RSS table has 0 entries"));
  CHECK_THAT(refusal_of({kKnownKey, in_turns(96, 4)}, 4), Contains("has 96 entries"));
  CHECK_THAT(refusal_of({kKnownKey, in_turns(1024, 4)}, 4), Contains("has 1024 entries"));
  CHECK_THAT(refusal_of({kKnownKey, in_turns(128, 3)}, 4), Contains("workers to queue 3"));
  CHECK_THAT(refusal_of({Key(40), in_turns(128, 4)}, 4), Contains("the RSS key or table"));
}

}  // namespace rss_tests
