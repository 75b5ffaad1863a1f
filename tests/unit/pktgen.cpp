// The parts of sluice-pktgen that need neither packets nor ports.
#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <thread>

#include "bench/perf/element.hpp"
#include "bench/pktgen/block_schedule.hpp"
#include "bench/pktgen/histogram.hpp"
#include "bench/pktgen/known_values.hpp"
#include "bench/pktgen/lockstep.hpp"
#include "bench/pktgen/pacer.hpp"
#include "bench/pktgen/pktgen_options.hpp"
#include "bench/pktgen/pktgen_report.hpp"
#include "bench/pktgen/rate_search.hpp"
#include "bench/pktgen/stage_clock.hpp"
#include "tests/unit/catch.hpp"

namespace sluice::pktgen::pktgen_tests {

using namespace std::chrono_literals;

// ------------------------------------------------------------------------------------ histogram
TEST_CASE("A histogram keeps small values exactly") {
  Histogram histogram;
  for (std::uint64_t v = 0; v < 128; ++v) histogram.record(v);
  CHECK(histogram.count() == 128);
  CHECK(histogram.min() == 0);
  CHECK(histogram.max() == 127);
  CHECK(histogram.at(0) == 0);
  CHECK(histogram.at(0.5) == 63);
  CHECK(histogram.at(1) == 127);
}

TEST_CASE("A histogram of nothing is zero") {
  const Histogram histogram;
  CHECK(histogram.count() == 0);
  CHECK(histogram.min() == 0);
  CHECK(histogram.max() == 0);
  CHECK(histogram.at(0.99) == 0);
}

TEST_CASE("Percentiles are at most a 64th too high, at every magnitude") {
  std::mt19937_64 random(5);
  for (int shift = 0; shift < 64; shift += 7) {
    Histogram histogram;
    std::vector<std::uint64_t> values;
    for (int i = 0; i < 10'000; ++i) {
      values.push_back(random() >> shift);
      histogram.record(values.back());
    }
    std::sort(values.begin(), values.end());
    for (const double share : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const auto index =
          static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
      CAPTURE(shift, share);
      CHECK(histogram.at(share) >= values[index]);
      CHECK(histogram.at(share) - values[index] <= values[index] / 64);
    }
    CHECK(histogram.at(1) == values.back());
    CHECK(histogram.min() == values.front());
  }
}

TEST_CASE("The ends of every power of two have their own places") {
  for (unsigned bits = 0; bits < 64; ++bits)
    for (const std::uint64_t value : {(std::uint64_t{1} << bits) - 1, std::uint64_t{1} << bits,
                                      (std::uint64_t{1} << bits) + 1}) {
      Histogram histogram;
      histogram.record(value);
      CHECK(histogram.at(0.5) == value);
    }
}

// ---------------------------------------------------------------------------------- rate search
namespace {

double found(double highest, double loss_free_up_to, int* trials = nullptr) {
  RateSearch search(highest);
  int count = 0;
  while (const auto rate = search.next()) {
    REQUIRE(*rate > 0);
    REQUIRE(*rate <= highest);
    search.tell(*rate <= loss_free_up_to);
    REQUIRE(++count < 64);
  }
  if (trials != nullptr) *trials = count;
  return search.best();
}

}  // namespace

TEST_CASE("The search finds the highest rate without loss to within a hundredth") {
  for (double limit = 0.05e6; limit < 1e6; limit *= 1.07) {
    CAPTURE(limit);
    CHECK(found(1e6, limit) <= limit);
    CHECK(found(1e6, limit) >= 0.989 * limit);
  }
}

TEST_CASE("The search ends at once when the highest rate passes, and with 0 when none does") {
  int trials = 0;
  CHECK(found(1e6, 1e6, &trials) == 1e6);
  CHECK(trials == 1);
  RateSearch search(1e6);
  for (trials = 0; search.next() && trials < 5000; ++trials) search.tell(false);
  CHECK(search.best() == 0);
  CHECK(trials < 20);
}

// ---------------------------------------------------------------------------------------- pacer
TEST_CASE("A pacer lets go what its rate allows, whatever the turns are like") {
  std::mt19937 random(3);
  Pacer pacer;
  Time now{1s};
  pacer.set_rate(123'456, now);
  std::size_t sent = 0;
  const Time end = now + 10s;
  while (now < end) {
    now += Duration(random() % 200'000);
    const std::size_t allowed = pacer.allowance(now);
    const std::size_t some = std::min<std::size_t>(allowed, random() % 64);
    pacer.spend(some);
    sent += some;
  }
  CHECK(sent <= 1'234'560 + 64);
  CHECK(sent >= 1'234'560 - 1300);  // what is saved up at the end
}

TEST_CASE("A pacer makes up for a short pause only") {
  Pacer pacer;
  pacer.set_rate(1e6, Time{1s});
  CHECK(pacer.allowance(Time{1s}) == 0);
  CHECK(pacer.allowance(Time{60s}) == 10'000);
  pacer.set_rate(0, Time{60s});
  CHECK(pacer.allowance(Time{60s}) > 1'000'000'000);
}

// ------------------------------------------------------------------------------- values, schedule
namespace {

template <class T>
double as_number(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
    return perf::to_float(value);
  else
    return static_cast<double>(value);
}

}  // namespace

TEMPLATE_TEST_CASE("Known values have known sums", "", float, double, Float16, BFloat16,
                   std::int32_t, std::int64_t) {
  constexpr std::uint32_t kElements = 21;
  const KnownValues values(ElementTypeOf<TestType>::kValue, kElements);
  REQUIRE(values.block_bytes() == kElements * sizeof(TestType));
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const BlockIndex block{static_cast<std::uint32_t>(random())};
    RankSet ranks;
    std::array<double, kElements> sums{};
    for (int i = 0; i < 5; ++i) {
      const Rank r{static_cast<std::uint16_t>(random() % 256)};
      if (ranks.contains(r)) continue;
      ranks.insert(r);
      std::array<TestType, kElements> mine;
      values.write(reinterpret_cast<std::byte*>(mine.data()), r, block);
      for (std::uint32_t e = 0; e < kElements; ++e) sums[e] += as_number(mine[e]);
    }
    std::array<TestType, kElements> typed;
    for (std::uint32_t e = 0; e < kElements; ++e) {
      if constexpr (std::is_same_v<TestType, Float16>)
        typed[e] = perf::to_float16(static_cast<float>(sums[e]));
      else if constexpr (std::is_same_v<TestType, BFloat16>)
        typed[e] = perf::to_bfloat16(static_cast<float>(sums[e]));
      else
        typed[e] = static_cast<TestType>(sums[e]);
    }
    const auto bytes = std::as_writable_bytes(std::span(typed));
    CHECK(values.is_sum(bytes, ranks, block));
    CHECK_FALSE(values.is_sum(bytes, ranks, {block.value + 1}));
    CHECK_FALSE(values.is_sum(bytes.first(bytes.size() - sizeof(TestType)), ranks, block));
    RankSet others = ranks;
    others.erase(Rank{ranks.lowest()});
    CHECK_FALSE(values.is_sum(bytes, others, block));
    bytes[random() % bytes.size()] ^= std::byte{1};
    CHECK_FALSE(values.is_sum(bytes, ranks, block));
  }
}

TEST_CASE("A schedule says of every op what geometry and pattern say") {
  const Session session{.ranks = 3, .streams = 5, .block_elements = 32, .payload_bytes = 508};
  const PatternOptions options{.rows = 130, .density = 0.05, .seed = 9};
  const BlockSchedule schedule(session, options);
  for (const OpNumber op : {0, 3, 17}) {
    const Geometry& g = schedule.geometry();
    const Geometry geometry = Geometry::make(g.element_count, g.type, 32, 508, 5, op);
    REQUIRE(geometry.columns == 2);
    REQUIRE(geometry.blocks == 130u * 5 * 2);
    const perf::BlockPattern pattern(geometry.blocks, 0.05, perf::Overlap::kRandom, 9);
    for (std::uint16_t s = 0; s < 5; ++s)
      for (std::uint8_t c = 0; c < 2; ++c) {
        const std::uint16_t turn = schedule.turn(StreamId{s}, op);
        REQUIRE(schedule.block(turn, c, 0) == geometry.first_index(StreamId{s}, c));
        REQUIRE(schedule.block(turn, c, kNoRow) == kNoBlock);
        Row next_of_all = kNoRow;
        std::array<Row, 3> next{kNoRow, kNoRow, kNoRow};
        for (Row row = 130; row-- > 0;) {
          REQUIRE(schedule.next_wanted(turn, c, row) == next_of_all);
          RankSet owners;
          for (std::uint16_t r = 0; r < 3; ++r) {
            REQUIRE(schedule.next_own(turn, Rank{r}, c, row) == next[r]);
            const bool nonzero = pattern.nonzero(r, schedule.block(turn, c, row).value);
            REQUIRE(schedule.owns(turn, Rank{r}, c, row) == nonzero);
            if (!nonzero) continue;
            owners.insert(Rank{r});
            next[r] = next_of_all = row;
          }
          REQUIRE(schedule.owners(turn, c, row) == owners);
        }
      }
  }
}

// ---------------------------------------------------------------------------------- stage clock
TEST_CASE("A stage clock counts turns with work, and tells stages apart in some of them") {
  StageClock clock;
  clock.begin_turn();
  clock.end_turn(0);
  CHECK(clock.sums().packets == 0);
  CHECK(clock.sums().cycles == 0);

  volatile std::uint64_t work = 0;
  for (int turn = 0; turn < 80; ++turn) {
    clock.begin_turn();
    clock.enter(Stage::kSum);
    for (int i = 0; i < 20'000; ++i) work = work + 1;
    clock.enter(Stage::kBuild);
    for (int i = 0; i < 200; ++i) work = work + 1;
    clock.end_turn(10);
  }
  const StageCycles& sums = clock.sums();
  CHECK(sums.packets == 700);  // every eighth turn is for the stages
  CHECK(sums.per_packet() > 0);
  CHECK(sums.share(Stage::kSum) > 0.5);
  CHECK(sums.share(Stage::kBuild) < sums.share(Stage::kSum));
  CHECK(sums.share(Stage::kValidate) == 0);
  const StageCycles none = sums.since(sums);
  CHECK(none.packets == 0);
  CHECK(none.per_packet(Stage::kSum) == 0);
}

// -------------------------------------------------------------------------------------- windows
namespace {

Window second() {
  Window window;
  window.end.at = window.begin.at + 1s;
  window.end.clock = 1'000'000;
  return window;
}

}  // namespace

TEST_CASE("A window tells rates and shares") {
  Window window = second();
  window.begin.io.tx_datagrams = 5;
  window.end.io.tx_datagrams = 1005;
  window.end.io.tx_bytes = 100'000;
  window.end.io.rx_datagrams = 500;
  window.end.tally.data_sent = 900;
  window.end.busy_cycles = 300'000;
  window.end.cpu_time = 250ms;
  CHECK(window.to_aggregator().packets == 1000);
  CHECK(window.to_aggregator().frame_bytes == 142'000);
  CHECK(window.handled_per_second() == 1500);
  CHECK(window.data_per_second() == 900);
  CHECK(window.generator_cycles_per_packet() == 200);
  CHECK(window.busy_share() == Approx(0.3));
  CHECK(window.cpu_share() == Approx(0.25));
  CHECK_FALSE(window.lane_cycles());
  CHECK(window.losses() == 0);
}

TEST_CASE("Every kind of loss is one") {
  std::vector<Window> lossy(6, second());
  lossy[0].end.tally.data_resent = 1;
  lossy[1].end.tally.probes_sent = 1;
  lossy[2].end.tally.results_missed = 1;
  lossy[3].end.tally.drops.count(DropReason::kStaleRound);
  lossy[4].end.io.rx_bad_ip_checksum = 1;
  lossy[5].begin.lane.emplace();
  lossy[5].end.lane.emplace().io.tx_fault_lost = 1;
  for (Window& window : lossy) {
    CHECK(window.losses() == 1);
    window.offered = 100;
    window.end.tally.data_sent = 100;
    CHECK_FALSE(sustained(window));
  }
  CHECK(lossy[3].generator_drops() == Drops{{"stale_round", 1}});
  CHECK(lossy[5].lane_drops() == Drops{{"tx_fault_lost", 1}});
}

TEST_CASE("What a port counts beside its drops is no loss") {
  for (const auto& [name, member] : net::kIoCounterNames) {
    INFO(name);
    Window window = second();
    window.end.io.*member += 1;
    CHECK(window.losses() == (net::is_drop(name) || name == "pool_empty" ? 1 : 0));
  }
}

TEST_CASE("The best trial is the fastest that was sustained") {
  std::vector<Window> trials(4, second());
  const auto set = [&](std::size_t i, double offered, std::uint64_t sent) {
    trials[i].offered = offered;
    trials[i].end.tally.data_sent = sent;
  };
  set(0, 0, 1000);    // as fast as possible
  set(1, 1000, 900);  // not reached
  set(2, 500, 500);
  set(3, 750, 745);
  CHECK_FALSE(sustained(trials[0]));
  CHECK_FALSE(sustained(trials[1]));
  CHECK(best_of(trials) == 3);
  trials.resize(2);
  CHECK(best_of(trials) == 0);
}

TEST_CASE("The sum of lanes has all that each counted, and all latencies") {
  std::vector<Window> lanes(3, second());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lanes[i].offered = 100;
    lanes[i].end.tally.data_sent = 10 + i;
    lanes[i].end.io.rx_handed_over = i;
    lanes[i].end.busy_cycles = 300'000 * i;
    lanes[i].latencies.record(i);
  }
  const Window sum = sum_of(lanes);
  CHECK(sum.lanes == 3);
  CHECK(sum.offered == 300);
  CHECK(sum.data_per_second() == 33);
  CHECK(sum.handed_over() == 3);
  CHECK(sum.losses() == 0);  // what is handed over is not lost
  CHECK(sum.busy_share() == Approx(0.3));
  CHECK(sum.latencies.count() == 3);
  CHECK(sum.latencies.min() == 0);
  CHECK(sum.latencies.max() == 2);
}

// ------------------------------------------------------------------------------------- lockstep
namespace {

Options lanes_that_search(std::uint16_t lanes) {
  Options options;
  options.lanes = lanes;
  options.find_rate = true;
  return options;
}

/// Of a lane that loses packets beyond a rate of `can`.
Window measured(double offered, double can) {
  Window window = second();
  window.offered = offered;
  window.end.tally.data_sent = static_cast<std::uint64_t>(offered == 0 ? can : offered);
  window.end.tally.data_resent = offered > can ? 1 : 0;
  return window;
}

}  // namespace

TEST_CASE("Nobody passes a point before the last one is there, and the sum of all decides") {
  const Options options = lanes_that_search(2);
  Lockstep lockstep(options, [] { return false; });
  CHECK(lockstep.arrive(1, {}) == 0);
  CHECK_FALSE(lockstep.passed(0));
  CHECK(lockstep.arrive(0, {}) == 0);
  CHECK(lockstep.passed(0));
  REQUIRE(lockstep.next_rate() == 0.0);
  unsigned point = 0;
  while (const auto rate = lockstep.next_rate()) {
    REQUIRE(++point < 64);
    CHECK(lockstep.arrive(0, measured(*rate / 2, 10'000)) == point);
    CHECK_FALSE(lockstep.passed(point));
    CHECK(lockstep.arrive(1, measured(*rate / 2, 6'000)) == point);
    CHECK(lockstep.passed(point));
  }
  CHECK(lockstep.trials().size() == point);
  std::vector<Window> sums;
  for (const auto& windows : lockstep.trials()) sums.push_back(sum_of(windows));
  CHECK(sums[0].data_per_second() == 16'000);
  CHECK(sums[1].offered == 16'000);
  CHECK(sums[best_of(sums)].offered <= 12'000);  // the slower lane loses nothing up to there
  CHECK(sums[best_of(sums)].offered >= 0.98 * 12'000);
}

TEST_CASE("Without a search there is one trial, and none after a search was stopped") {
  Options options = lanes_that_search(1);
  bool stopped = false;
  Lockstep search(options, [&] { return stopped; });
  search.arrive(0, {});
  search.arrive(0, measured(0, 1000));
  CHECK(search.next_rate() == 1000);
  stopped = true;
  search.arrive(0, measured(1000, 500));
  CHECK_FALSE(search.next_rate());
  search.arrive(0, {});  // it has left
  CHECK_FALSE(search.next_rate());
  CHECK(search.trials().size() == 2);

  options.find_rate = false;
  options.rate = 77;
  Lockstep once(options, [] { return false; });
  once.arrive(0, {});
  CHECK(once.next_rate() == 77);
  once.arrive(0, measured(77, 100));
  CHECK_FALSE(once.next_rate());
}

TEST_CASE("Lanes on threads of their own go through the same trials") {
  constexpr std::uint16_t kLanes = 4;
  const Options options = lanes_that_search(kLanes);
  Lockstep lockstep(options, [] { return false; });
  const auto run = [&](std::uint16_t lane) {
    const auto meet = [&](std::optional<Window> trial) {
      const unsigned point = lockstep.arrive(lane, std::move(trial));
      while (!lockstep.passed(point)) std::this_thread::yield();
    };
    meet({});
    while (const auto rate = lockstep.next_rate()) meet(measured(*rate / kLanes, 1000.0 + lane));
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint16_t lane = 0; lane < kLanes; ++lane) threads.emplace_back(run, lane);
  }
  CHECK(lockstep.trials().size() > 2);
  CHECK(lockstep.trials().front()[3].data_per_second() == 1003);
  for (const auto& windows : lockstep.trials()) {
    REQUIRE(windows.size() == kLanes);
    for (const Window& window : windows) CHECK(window.offered == windows[0].offered);
  }
}

TEST_CASE("Lane 0 decides the session, and the first failure is kept") {
  const Options options = lanes_that_search(2);
  Lockstep lockstep(options, [] { return false; });
  CHECK_FALSE(lockstep.decided());
  CHECK_THROWS_WITH(lockstep.decide({.shards = 3}), "--lanes is 2, but the aggregator has 3");
  CHECK_FALSE(lockstep.decided());
  lockstep.decide({.shards = 2, .generation = 5});
  REQUIRE(lockstep.decided());
  CHECK(lockstep.decided()->generation == 5);

  CHECK_FALSE(lockstep.failed());
  CHECK_NOTHROW(lockstep.rethrow_failure());
  lockstep.fail(std::make_exception_ptr(std::runtime_error("first")));
  lockstep.fail(std::make_exception_ptr(std::runtime_error("second")));
  CHECK(lockstep.failed());
  CHECK_THROWS_WITH(lockstep.rethrow_failure(), "first");
}

TEST_CASE("Of an aggregator with several lanes one may be measured, or all") {
  const auto check = [](std::uint16_t lanes, std::size_t of_aggregator) {
    check_lanes(lanes_that_search(lanes), of_aggregator);
  };
  CHECK_NOTHROW(check(1, 1));
  CHECK_NOTHROW(check(1, 4));
  CHECK_NOTHROW(check(4, 4));
  CHECK_THROWS_WITH(check(4, 2), "--lanes is 4, but the aggregator has 2");
  CHECK_THROWS_WITH(check(2, 1), "--lanes is 2, but the aggregator has 1");
}

// -------------------------------------------------------------------------------------- options
namespace {

Options parse(std::vector<std::string> arguments, const ContextOptions& environment = {}) {
  arguments.push_back("--in-memory");
  return parse_options(arguments, environment);
}

}  // namespace

TEST_CASE("Options are read, and have the defaults of the documentation") {
  const Options defaults = parse({});
  CHECK(defaults.workers == 8);
  CHECK(defaults.streams == 64);
  CHECK(defaults.frame_bytes == 1500);
  CHECK(defaults.duration == 5s);
  CHECK(defaults.check_every == 64);
  CHECK(defaults.rto_min == 20ms);
  CHECK(defaults.aggregator_timeout == 5s);
  CHECK(generator_options(defaults).payload_bytes == 1472);

  const Options options =
      parse({"-w",    "256",    "--type", "half",       "--density", "0.25",       "--overlap",
             "none",  "--rate", "1e6",    "--duration", "0.5",       "--check",    "all",
             "--cpu", "0,1",    "--loss", "0.01",       "--live",    "--find-rate"});
  CHECK(options.workers == 256);
  CHECK(options.pattern.type == ElementType::kFloat16);
  CHECK(options.pattern.density == 0.25);
  CHECK(options.pattern.overlap == perf::Overlap::kNone);
  CHECK(options.rate == 1e6);
  CHECK(options.duration == 500ms);
  CHECK(options.check_every == 1);
  CHECK(options.cpu == std::vector{0});
  CHECK(options.lane_cpu == 1);
  CHECK(options.loss == 0.01);
  CHECK(options.live);
  CHECK(options.find_rate);
}

TEST_CASE("Each of several lanes has a core") {
  const Options options = parse({"--lanes", "3", "--cpu", "0,2,1"});
  CHECK(options.lanes == 3);
  CHECK(options.cpu == std::vector{0, 2, 1});
  CHECK_FALSE(options.lane_cpu);

  ContextOptions environment;
  environment.aggregators = {"vhost:/a"};
  const Options elsewhere =
      parse_options({"--lanes", "2", "--cpu", "3,1", "--find-rate"}, environment);
  CHECK(elsewhere.lanes == 2);
  CHECK(elsewhere.cpu == std::vector{3, 1});
  CHECK_FALSE(elsewhere.lane_cpu);
  CHECK_THROWS_WITH(parse_options({"--lanes", "2", "--cpu", "0"}, environment),
                    "--cpu '0': allowed: 2 cores, one for each lane");
}

TEST_CASE("Blocks that nobody asked for are as long as fits the frame") {
  CHECK(parse({}).block_elements == 256);
  CHECK(parse({"--type", "double"}).block_elements == 128);
  CHECK(parse({"--frame", "576"}).block_elements == 64);
  CHECK(parse({"--frame", "576", "--block-elements", "100"}).block_elements == 100);
}

TEST_CASE("The aggregator is the one named, else the environment's first") {
  ContextOptions environment;
  environment.aggregators = {"vhost:/a", "vhost:/b"};
  environment.port = "net_x0";
  CHECK(parse_options({}, environment).context.aggregators == std::vector<std::string>{"vhost:/a"});
  const Options options = parse_options(
      {"-a", "10.0.0.9", "-p", "net_y0", "--address", "10.0.0.2/24", "-f", "9000"}, environment);
  CHECK(options.context.aggregators == std::vector<std::string>{"10.0.0.9"});
  CHECK(options.context.port == "net_y0");
  CHECK(options.context.address == "10.0.0.2/24");
  CHECK(options.context.mtu == 9000);
  CHECK(parse_options({"--loss", "0.5", "--seed", "3"}, environment).context.faults ==
        "seed=3,loss=0.5,direction=both");
}

TEST_CASE("A wrong option is refused with its name, its value and what is allowed") {
  const auto refusal = [](std::vector<std::string> arguments) -> std::string {
    try {
      parse(std::move(arguments));
    } catch (const bench::UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal({"--workers", "0"}) == "--workers '0': allowed: 1..256");
  CHECK(refusal({"--streams", "1025"}) == "--streams '1025': allowed: 1..1024");
  CHECK(refusal({"--block-elements", "x"}) == "--block-elements 'x': allowed: 1..16384");
  CHECK(refusal({"--block-elements", "4000", "--frame", "9000"}) ==
        "--block-elements '4000': allowed: 1..2206 of float in frames of 9000 B");
  CHECK(refusal({"--block-elements", "332"}) ==
        "--block-elements '332': allowed: 1..331 of float in frames of 1500 B");
  CHECK(refusal({"--block-elements", "331"}) == "accepted");
  CHECK(refusal({"--frame", "9699"}) == "--frame '9699': allowed: 576..9698");
  CHECK(refusal({"--density", "1.5"}) == "--density '1.5': allowed: 0..1");
  CHECK(refusal({"--density", "nan"}) == "--density 'nan': allowed: 0..1");
  CHECK(refusal({"--loss", "0.6"}) == "--loss '0.6': allowed: 0..0.5");
  CHECK(refusal({"--duration", "0"}) == "--duration '0': allowed: 0.05..86400");
  CHECK(refusal({"--rate", "-1"}) == "--rate '-1': allowed: 0..1000000000");
  CHECK(refusal({"--check", "some"}) == "--check 'some': allowed: none, sample, all");
  CHECK(refusal({"--type", "int4"}) ==
        "--type 'int4': allowed: float, double, half, bfloat16, int8, uint8, int16, int32, int64");
  CHECK(refusal({"--overlap", "x"}) == "--overlap 'x': allowed: random, all, none, strided, zipf");
  CHECK(refusal({"--cpu", "1,1"}) == "--cpu '1,1': allowed: two different cores");
  CHECK(refusal({"--cpu", "a"}) ==
        "--cpu 'a': allowed: 0..1023, with --in-memory also two, separated by a comma");
  CHECK_THAT(refusal({"--no-such"}), Catch::Contains("no-such"));

  ContextOptions environment;
  CHECK_THROWS_WITH(parse_options({}, environment), Catch::Contains("no aggregator"));
  environment.aggregators = {"vhost:/a"};
  CHECK_THROWS_WITH(parse_options({"--cpu", "0,1"}, environment), Catch::Contains("one core"));
  CHECK_THROWS_WITH(parse_options({"-a", "nonsense"}, environment),
                    Catch::Contains("--aggregator") && Catch::Contains("nonsense"));
  CHECK_THROWS_WITH(parse_options({"--address", "10.0.0"}, environment),
                    Catch::Contains("--address") && Catch::Contains("10.0.0"));
}

TEST_CASE("Help names every option") {
  const std::string text = bench::to_text(help());
  for (const char* flag : {"workers",
                           "streams",
                           "block-elements",
                           "frame",
                           "type",
                           "density",
                           "overlap",
                           "loss",
                           "duration",
                           "rate",
                           "port",
                           "aggregator",
                           "address",
                           "in-memory",
                           "json",
                           "find-rate",
                           "cpu",
                           "check",
                           "live",
                           "rto-min",
                           "lanes",
                           "aggregator-timeout"})
    CHECK_THAT(text, Catch::Contains("--" + std::string(flag)));
}

}  // namespace sluice::pktgen::pktgen_tests
