// A lane in memory whose process stands still.
#include "bench/pktgen/generator.hpp"
#include "bench/pktgen/memory_lane.hpp"
#include "common/base/random_id.hpp"
#include "common/protocol/secret.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/one_eal.hpp"

namespace pktgen_memory_lane_tests {

using namespace sluice;
using namespace sluice::pktgen;
using namespace std::chrono_literals;

namespace {

constexpr std::uint16_t kPayloadBytes = 508;

aggregator::EngineConfig engine_config() {
  aggregator::EngineConfig config;
  config.payload_bytes = kPayloadBytes;
  config.challenge_key = random_key();
  config.incarnation = random_id();
  config.unique = random_id;
  return config;
}

GeneratorOptions small_job() {
  GeneratorOptions options;
  options.workers = 2;
  options.streams = 1;
  options.block_elements = 16;
  options.payload_bytes = kPayloadBytes;
  options.aggregator_timeout = 1h;
  return options;
}

}  // namespace

TEST_CASE("Ranks are not silent while the process of a lane in memory stands still") {
  net::start_eal_once();
  net::BufferPool payloads{"payloads", 1023, kPayloadBytes};
  net::BufferPool headers{"headers", 255, 0};
  net::MemoryLink link{{.frames = 128, .mtu = 600}, payloads};
  MemoryLane lane(0, engine_config(), link, payloads, headers, {});
  Generator generator(small_job(), link.far_end(MemoryLane::kUdpPort, 0));
  Time now{1s};
  const auto turn = [&] {
    lane.turn(now);
    link.receive([&](const Endpoint& from, Buffer payload) {
      generator.receive(from, std::move(payload), now, link);
    });
    generator.on_time(now, link);
    link.flush();
    now += 100us;
  };
  const auto turn_until = [&](const auto& reached) {
    for (int i = 0; i < 10'000 && !reached(); ++i) turn();
    REQUIRE(reached());
  };
  generator.start({}, now, link);
  turn_until([&] { return generator.active(); });

  now += 20s;
  turn();
  CHECK_FALSE(generator.failure());
  generator.finish();
  generator.leave(now, link);
  turn_until([&] { return generator.left(); });
  CHECK(lane.reading().engine.jobs_aborted == 0);
}

}  // namespace pktgen_memory_lane_tests
