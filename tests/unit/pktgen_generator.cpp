// The generator against a real aggregator's engine, over a wire that may lose and hold up.
#include <deque>
#include <functional>
#include <map>
#include <random>

#include "aggregator/engine/engine.hpp"
#include "bench/pktgen/generator.hpp"
#include "common/base/random_id.hpp"
#include "common/protocol/secret.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"

namespace pktgen_generator_tests {

using namespace sluice;
using namespace sluice::pktgen;
using namespace std::chrono_literals;

namespace {

constexpr std::uint16_t kAggregatorPort = 4747;

using TellPorts = std::function<SourcePorts(const Endpoint&, Rank)>;

aggregator::EngineConfig engine_config(std::uint16_t lane, std::uint16_t lanes,
                                       const TellPorts& tell_ports) {
  aggregator::EngineConfig config;
  config.shard = lane;
  config.shards = config.lanes = lanes;
  config.challenge_key = random_key();
  config.incarnation = random_id();
  config.unique = random_id;
  config.streams = 1024;
  config.straggler_warning = Duration(0);
  config.source_ports = tell_ports;
  return config;
}

GeneratorOptions small_job() {
  GeneratorOptions options;
  options.workers = 4;
  options.streams = 3;
  options.block_elements = 16;
  options.payload_bytes = 508;
  options.pattern.rows = 20;
  options.check_every = 1;
  return options;
}

/// Both, and what is on its way between them.
class Bed {
 public:
  explicit Bed(const GeneratorOptions& options, std::uint16_t lanes = 1,
               const TellPorts& tell_ports = {})
      : generator(options, {.ipv4 = 1, .udp_port = kAggregatorPort}),
        engine(engine_config(options.lane, lanes, tell_ports)) {}

  void join(const std::optional<Session>& decided = {}) {
    generator.start(decided, now, sink);
    turn_until([this] { return generator.active(); });
  }

  void end() {
    generator.finish();
    turn_until([this] { return generator.finished(); });
    generator.leave(now, sink);
    turn_until([this] { return generator.left(); });
  }

  void turn_until(const std::function<bool()>& reached) {
    for (int i = 0; i < 200'000; ++i) {
      if (reached()) return;
      turn();
      now += 100us;
    }
    FAIL("no end of it");
  }

  /// Everything that was sent arrives, but for what `passes` holds back; then the timers.
  void turn() {
    generator.send_ready(at_once, now, sink);
    generator.on_time(now, sink);
    for (parts::Sent& sent : sink.take())
      if (passes(sent, true)) up.push_back(std::move(sent));
    for (; !up.empty(); up.pop_front()) {
      const Endpoint from{
          .ipv4 = 2, .udp_port = up.front().to.local_udp_port, .local_udp_port = kAggregatorPort};
      engine.receive(from, parts::received(engine_sink, *up.front().datagram), now, engine_sink);
    }
    engine.on_time(now, engine_sink);
    for (parts::Sent& sent : engine_sink.take())
      if (passes(sent, false)) down.push_back(std::move(sent));
    for (; !down.empty(); down.pop_front()) deliver(down.front());
    REQUIRE_FALSE(generator.failure());
  }

  void deliver(const parts::Sent& sent) {
    generator.receive({.ipv4 = 1, .udp_port = kAggregatorPort, .local_udp_port = sent.to.udp_port},
                      parts::received(sink, *sent.datagram), now, sink);
  }

  const Tally& tally() const { return generator.tally(); }

  Time now{1s};
  Generator generator;
  aggregator::Engine engine;
  parts::Sink sink;
  parts::Sink engine_sink;
  std::deque<parts::Sent> up, down;
  std::size_t at_once = 1000;
  std::function<bool(const parts::Sent&, bool up)> passes = [](const auto&, bool) { return true; };
};

void some_turns(Bed& bed, int count = 200) {
  for (int i = 0; i < count; ++i, bed.now += 100us) bed.turn();
}

void require_right(const Bed& bed) {
  const Tally& tally = bed.tally();
  const aggregator::Counters& engine = bed.engine.counters();
  CHECK(tally.results_wrong == 0);
  CHECK(tally.results == engine.results_sent);
  CHECK(tally.data_sent == engine.contributions);
  CHECK(engine.jobs_left == 1);
  CHECK(engine.jobs_aborted == 0);
  CHECK(bed.sink.pool->live == 0);
}

/// Ops follow each other, every sum is right and no packet goes twice.
void require_orderly(const GeneratorOptions& options) {
  Bed bed(options);
  bed.join();
  some_turns(bed, 50);
  bed.end();
  require_right(bed);
  CHECK(bed.tally().results_checked == bed.tally().results - bed.tally().results_early);
  CHECK(bed.tally().ops_done > std::uint64_t{2} * options.workers * options.streams);
  CHECK(bed.tally().data_resent + bed.tally().probes_sent + bed.tally().timeouts == 0);
  CHECK(bed.tally().drops.total() == 0);
  CHECK(bed.engine.counters().drops.total() == 0);
}

}  // namespace

TEST_CASE("Ops follow each other, at any density and overlap") {
  GeneratorOptions options = small_job();
  options.workers = GENERATE(as<std::uint16_t>(), 1, 2, 8);
  options.pattern.density = GENERATE(1.0, 0.3, 0.02, 0.0);
  options.pattern.overlap =
      GENERATE(perf::Overlap::kRandom, perf::Overlap::kAll, perf::Overlap::kNone);
  CAPTURE(options.workers, options.pattern.density, options.pattern.overlap);
  require_orderly(options);
}

TEST_CASE("Ops of as many ranks as a job may have follow each other") {
  GeneratorOptions options = small_job();
  options.workers = limits::kMaxRanks;
  options.pattern.rows = 3;
  options.pattern.density = 0.3;
  require_orderly(options);
}

TEST_CASE("Each lane's generator plays the streams of its lane") {
  constexpr std::uint16_t kLanes = 3;
  GeneratorOptions options = small_job();
  options.streams = 8;  // 3, 3 and 2
  std::optional<Session> decided;
  for (std::uint16_t lane = 0; lane < kLanes; ++lane) {
    CAPTURE(lane);
    options.lane = lane;
    Bed bed(options, kLanes);
    bed.join(decided);
    CHECK(bed.generator.session().shards == kLanes);
    CHECK(bed.generator.session().shard == lane);
    if (lane == 0) decided = bed.generator.session();
    some_turns(bed, 50);
    bed.end();
    require_right(bed);
    CHECK(bed.tally().ops_done % (options.workers * (lane < 2 ? 3u : 2u)) == 0);
    CHECK(bed.tally().drops.total() == 0);
    CHECK(bed.engine.counters().drops.total() == 0);
  }
}

TEST_CASE("Ranks send from the ports that they are told, if no other rank does") {
  constexpr std::uint16_t kLanes = 2;
  constexpr unsigned kPorts = 3;  // for four ranks
  GeneratorOptions options = small_job();
  Bed bed(options, kLanes, [](const Endpoint&, Rank rank) {
    return SourcePorts{static_cast<std::uint16_t>(first_source_port(0) + rank.value % kPorts)};
  });
  std::map<std::uint16_t, std::uint64_t> data;  // by our port
  bed.passes = [&](const parts::Sent& sent, bool up) {
    const bool is_data = up && sent.packet().kind() == wire::Kind::kData;
    if (is_data) ++data[sent.to.local_udp_port];
    return true;
  };
  bed.join();
  some_turns(bed);
  bed.end();
  require_right(bed);
  CHECK(data.size() == options.workers);
  for (unsigned i = 0; i < kPorts; ++i)
    CHECK(data.contains(static_cast<std::uint16_t>(first_source_port(0) + i)));
  CHECK(bed.tally().drops.total() == 0);
}

TEST_CASE("All types and shapes") {
  const auto type = GENERATE(ElementType::kFloat32, ElementType::kFloat64, ElementType::kFloat16,
                             ElementType::kBFloat16, ElementType::kInt32, ElementType::kInt64);
  const auto block_elements = GENERATE(as<std::uint16_t>(), 1, 7, 256, 16384);
  const auto payload_bytes = GENERATE(as<std::uint16_t>(), 1472, 8972);
  CAPTURE(type, block_elements, payload_bytes);
  GeneratorOptions options = small_job();
  options.block_elements = block_elements;
  options.payload_bytes = payload_bytes;
  options.pattern.type = type;
  options.pattern.density = 0.5;
  Bed bed(options);
  bed.join();
  some_turns(bed, 30);
  bed.end();
  require_right(bed);
}

TEST_CASE("In a dense op each packet in is a packet out, and so is its payload") {
  Bed bed(small_job());
  bed.join();
  some_turns(bed);
  bed.end();
  CHECK(bed.tally().data_sent == bed.tally().results);
  CHECK(bed.tally().block_bytes_sent == bed.tally().block_bytes_received);
  CHECK(bed.tally().acks_sent == 0);
}

TEST_CASE("What is lost is sent again, and the sums stay right") {
  const auto density = GENERATE(1.0, 0.2, 0.05);
  const auto seed = GENERATE(1u, 2u, 3u);
  CAPTURE(density, seed);
  GeneratorOptions options = small_job();
  options.pattern.density = density;
  options.rto_min = 1ms;
  Bed bed(options);
  std::mt19937 random(seed);
  bool told_of_early_ones = false;
  bed.passes = [&](const parts::Sent& sent, bool) {
    if (const Packet packet = sent.packet(); packet.kind() == wire::Kind::kProbe)
      told_of_early_ones |= packet.as<wire::Probe>().have != 0;
    return random() % 10 != 0;
  };
  bed.join();
  some_turns(bed, 2000);
  if (density == 0.05) bed.turn_until([&] { return told_of_early_ones; });
  bed.end();
  require_right(bed);
  CHECK(bed.tally().data_resent > 0);
  CHECK(bed.tally().probes_sent > 0);
  CHECK(bed.tally().timeouts > 0);
  CHECK(bed.engine.counters().results_repeated > 0);
  CHECK(told_of_early_ones == (bed.tally().results_early > 0));
}

TEST_CASE("Packets that come late and twice change nothing") {
  GeneratorOptions options = small_job();
  options.pattern.density = 0.2;
  Bed bed(options);
  std::mt19937 random(7);
  std::vector<parts::Sent> late;
  bed.passes = [&](const parts::Sent& sent, bool up) {
    if (!up && random() % 4 == 0) late.push_back(sent);
    return true;
  };
  bed.join();
  for (int i = 0; i < 300; ++i) {
    some_turns(bed, 1);
    if (i % 3 != 0) continue;
    for (const parts::Sent& sent : std::exchange(late, {})) bed.deliver(sent);
  }
  bed.end();
  require_right(bed);
  CHECK(bed.tally().drops[DropReason::kStaleRound] > 0);
}

TEST_CASE("A wrong result is noticed, whatever is wrong with it") {
  const auto kind = GENERATE(as<std::string>(), "element", "next", "index", "op", "absent block");
  CAPTURE(kind);
  GeneratorOptions options = small_job();
  options.workers = 1;
  options.streams = 1;
  Bed bed(options);
  bed.passes = [&](const parts::Sent& sent, bool up) {
    if (up || sent.packet().kind() != wire::Kind::kResult) return true;
    std::vector<std::byte>& bytes = *sent.datagram;
    wire::Result result;
    std::memcpy(&result, bytes.data(), sizeof result);
    wire::Column column;
    std::memcpy(&column, bytes.data() + sizeof result, sizeof column);
    if (kind == "element") bytes.back() ^= std::byte{1};
    if (kind == "next") column.next = wire::U32{column.next + 7u};
    if (kind == "index") column.index = wire::U32{column.index + 1u};
    if (kind == "op") result.op = result.op + 1;
    if (kind == "absent block") {
      column.flags = 0;
      bytes.resize(bytes.size() - options.block_elements * sizeof(float));
      result.delivery.header.length = static_cast<std::uint16_t>(bytes.size());
    }
    std::memcpy(bytes.data(), &result, sizeof result);
    std::memcpy(bytes.data() + sizeof result, &column, sizeof column);
    return true;
  };
  bed.join();
  some_turns(bed, 5);
  CHECK(bed.tally().results_checked >= 4);
  CHECK(bed.tally().results_wrong == bed.tally().results_checked);
}

TEST_CASE("A sample is checked, or nothing, as asked") {
  GeneratorOptions options = small_job();
  const auto every = GENERATE(as<std::uint32_t>(), 0, 5);
  options.check_every = every;
  Bed bed(options);
  bed.join();
  some_turns(bed);
  bed.end();
  const std::uint64_t expected = every == 0 ? 0 : (bed.tally().results - 1) / every + 1;
  CHECK(bed.tally().results_checked == expected);
}

TEST_CASE("No more DATA goes than the caller lets go") {
  Bed bed(small_job());
  bed.at_once = 3;
  bed.join();
  for (int i = 0; i < 50; ++i) {
    const std::uint64_t before = bed.tally().data_sent;
    some_turns(bed, 1);
    CHECK(bed.tally().data_sent - before == 3);
  }
  bed.at_once = 1000;
  bed.end();
  require_right(bed);
}

TEST_CASE("An empty pool puts off what was to be sent") {
  Bed bed(small_job());
  bed.join();
  some_turns(bed, 10);
  bed.sink.pool->dry = true;
  some_turns(bed, 10);
  const std::uint64_t before = bed.tally().data_sent;
  CHECK(bed.tally().no_buffer > 0);
  bed.sink.pool->dry = false;
  some_turns(bed, 10);
  CHECK(bed.tally().data_sent > before);
  bed.end();
  require_right(bed);
}

TEST_CASE("Latency is that of the rank that completed the round, and of DATA sent once") {
  GeneratorOptions options = small_job();
  options.streams = 1;
  options.pattern.density = 1;
  Bed bed(options);
  bed.join();
  bed.generator.latencies() = {};
  const std::uint64_t rounds = bed.engine.counters().rounds_finished;
  // Half a millisecond on the way down.
  std::vector<parts::Sent> held;
  bed.passes = [&](const parts::Sent& sent, bool up) {
    if (!up) held.push_back(sent);
    return up;
  };
  for (int i = 0; i < 100; ++i) {
    bed.turn();
    bed.now += 500us;
    for (const parts::Sent& sent : std::exchange(held, {})) bed.deliver(sent);
  }
  const Histogram& latencies = bed.generator.latencies();
  const std::uint64_t finished = bed.engine.counters().rounds_finished - rounds;
  CHECK(latencies.count() + 1 >= finished);
  CHECK(latencies.count() <= finished + 1);
  CHECK(latencies.min() == 500'000);
  CHECK(latencies.max() == 500'000);
}

TEST_CASE("What was sent twice says nothing of the latency") {
  GeneratorOptions options = small_job();
  options.workers = 1;
  options.streams = 1;
  Bed bed(options);
  bool lost = false;
  bed.passes = [&](const parts::Sent& sent, bool up) {
    return !up || sent.packet().kind() != wire::Kind::kData || std::exchange(lost, true);
  };
  bed.join();
  some_turns(bed, 5000);
  CHECK(bed.tally().probes_sent == 1);  // which asks first
  CHECK(bed.tally().data_resent == 1);
  CHECK(bed.tally().results > 100);
  CHECK(bed.generator.latencies().count() == bed.tally().results - 1);
}

TEST_CASE("A job that the aggregator ends, or refuses, is a failure with its reason") {
  Bed bed(small_job());
  bed.join();
  bed.engine.kick(small_job().job, bed.now, bed.engine_sink);
  for (const parts::Sent& sent : bed.engine_sink.take()) bed.deliver(sent);
  REQUIRE(bed.generator.failure());
  CHECK_THAT(bed.generator.failure()->what(), Catch::Contains("aggregator"));

  GeneratorOptions options = small_job();
  options.streams = 1024;
  Bed small(options);
  small.engine.close(true);
  small.generator.start({}, small.now, small.sink);
  for (int i = 0; i < 100 && !small.generator.failure(); ++i, small.now += 100us) {
    for (parts::Sent& sent : small.sink.take())
      small.engine.receive({.udp_port = sent.to.local_udp_port, .local_udp_port = kAggregatorPort},
                           parts::received(small.engine_sink, *sent.datagram), small.now,
                           small.engine_sink);
    for (const parts::Sent& sent : small.engine_sink.take()) small.deliver(sent);
  }
  REQUIRE(small.generator.failure());
}

TEST_CASE("A generator that gives up ends the job, and is silent then") {
  Bed bed(small_job());
  bed.join();
  some_turns(bed, 10);
  bed.generator.give_up(bed.sink);
  std::size_t sent = 0;
  bed.passes = [&](const parts::Sent& each, bool up) {
    if (!up) return false;
    ++sent;
    CHECK(each.packet().kind() == wire::Kind::kLeave);
    return true;
  };
  some_turns(bed, 20'000);  // two seconds
  CHECK(sent == 4);         // of each rank one
  CHECK(bed.engine.counters().jobs_aborted == 1);
  CHECK(bed.tally().results_missed > 0);
}

TEST_CASE("What is not for the generator is dropped under its reason") {
  Bed bed(small_job());
  std::optional<parts::Sent> result;
  bed.passes = [&](const parts::Sent& sent, bool up) {
    if (!up && sent.packet().kind() == wire::Kind::kResult) result = sent;
    return true;
  };
  bed.join();
  some_turns(bed, 3);
  REQUIRE(result);
  const auto altered = [&](auto alter) {
    parts::Sent sent = *result;
    sent.datagram = std::make_shared<std::vector<std::byte>>(*result->datagram);
    wire::Result fixed;
    std::memcpy(&fixed, sent.datagram->data(), sizeof fixed);
    alter(fixed, sent);
    std::memcpy(sent.datagram->data(), &fixed, sizeof fixed);
    bed.deliver(sent);
  };
  const DropCounters& drops = bed.tally().drops;
  altered([](wire::Result& r, parts::Sent&) { r.delivery.epoch = 1; });
  CHECK(drops[DropReason::kWrongEpoch] == 1);
  altered([](wire::Result& r, parts::Sent&) { r.delivery.stream = 9; });
  CHECK(drops[DropReason::kBadStream] == 1);
  altered([](wire::Result& r, parts::Sent&) { r.round = r.round + 64; });
  CHECK(drops[DropReason::kFutureRound] == 1);
  bed.at_once = 0;  // all results are in, and nothing that follows on them has gone
  some_turns(bed, 1);
  altered([](wire::Result& r, parts::Sent&) { r.round = r.round + 1; });
  CHECK(drops[DropReason::kFutureRound] == 2);
  altered([](wire::Result& r, parts::Sent&) { r.delivery.header.length = 80; });
  CHECK(drops[DropReason::kBadLength] == 1);
  altered([](wire::Result& r, parts::Sent&) { r.delivery.header.magic = 1; });
  CHECK(drops[DropReason::kBadMagic] == 1);
  altered([](wire::Result&, parts::Sent& sent) { sent.to.udp_port = 1; });
  CHECK(drops[DropReason::kUnknownToken] == 1);
  altered([](wire::Result&, parts::Sent& sent) { sent.datagram->resize(sizeof(wire::Result)); });
  CHECK(drops[DropReason::kBadLength] == 2);
  CHECK(drops.total() == 8);
}

}  // namespace pktgen_generator_tests
