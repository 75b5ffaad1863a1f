// The worker's engine, driven packet by packet: rules 7 to 11, 16, 17, 24 and 25 of
// docs/protocol.md, and each reason for which it drops a packet.
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/rank_set.hpp"
#include "common/protocol/text_field.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"
#include "worker/engine/engine.hpp"

namespace worker_engine_tests {

using namespace sluice;
using namespace sluice::parts;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

constexpr std::uint32_t kJob = 42;
constexpr std::uint32_t kBlock = 4;  // elements
constexpr std::uint64_t kIncarnation = 77;

using Engine = worker::Engine;
using State = Engine::State;

/// Rank 0 of a job of two; `streams` on `shards` aggregators, one result column used.
struct Bench {
  explicit Bench(std::uint8_t h = 4, unsigned m = 1, std::uint16_t l = 1) : history(h), lanes(l) {
    config.job = kJob;
    config.ranks = 2;
    config.block_elements = kBlock;
    config.payload_bytes = 508;
    config.rto = {.min = 10ms, .max = 80ms, .initial = 10ms};
    config.aggregator_timeout = 5s;
    config.join_timeout = 3s;
    config.unique = [this] { return ++ids; };
    for (unsigned shard = 0; shard < m; ++shard) aggregators.push_back({.ipv4 = 1 + shard});
    streams = static_cast<std::uint16_t>(m * l);
    engine = std::make_unique<Engine>(config, aggregators);
  }

  std::vector<Sent> give(std::span<const std::byte> bytes) {
    engine->receive(aggregators[0], received(sink, bytes), now, sink);
    return sink.take();
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<Sent> give(const T& packet) {
    return give(wire::bytes_of(packet));
  }

  std::uint64_t start() {
    engine->start(now, sink);
    const auto hello = of_kind<wire::Hello>(sink.take());
    REQUIRE(hello.size() == 1);
    return hello[0].packet().as<wire::Hello>().nonce;
  }
  std::vector<Sent> challenge(std::uint64_t nonce, std::uint64_t incarnation = kIncarnation) {
    auto packet = wire::make<wire::Challenge>(kJob);
    packet.nonce = nonce;
    packet.lanes = lanes;
    packet.incarnation = incarnation;
    packet.serial = 1;
    return give(packet);
  }
  wire::Welcome welcome_packet(std::uint64_t nonce, std::uint16_t shard = 0) const {
    auto packet = wire::make<wire::Welcome>(kJob);
    packet.nonce = nonce;
    packet.lanes = lanes;
    packet.incarnation = kIncarnation;
    packet.token = 900u + shard;
    packet.generation = 3;
    packet.epoch = 400u + shard;
    packet.delivery_token = 500u + shard;
    packet.streams = streams;
    packet.block_elements = kBlock;
    packet.payload_bytes = 508;
    packet.history = history;
    packet.keep_alive_ms = 1000;
    return packet;
  }
  Endpoint place_of(std::size_t shard) const {
    Endpoint place = aggregators[shard % aggregators.size()];
    const std::size_t lane = shard / aggregators.size();
    place.udp_port = static_cast<std::uint16_t>(place.udp_port + lane);
    place.lane = static_cast<std::uint8_t>(lane);
    return place;
  }
  void join() {
    const std::uint64_t nonce = start();
    REQUIRE(of_kind<wire::Join>(challenge(nonce)).size() == 1);
    auto sent = give(welcome_packet(nonce));
    for (std::uint16_t shard = 1; shard < aggregators.size() * lanes; ++shard) {
      std::uint64_t next = 0;
      for (const Sent& hello : of_kind<wire::Hello>(sent))
        if (hello.to == place_of(shard)) next = hello.packet().as<wire::Hello>().nonce;
      challenge(next);
      give(welcome_packet(next, shard));
    }
    REQUIRE(engine->state() == State::kActive);
    pass(0ms);
  }

  std::vector<Sent> pass(Duration time) {
    now += time;
    engine->on_time(now, sink);
    return sink.take();
  }
  void until_over(Duration limit = 10s) {
    for (const Time begin = now; !engine->over() && now - begin < limit;) pass(10ms);
    REQUIRE(engine->over());
  }
  /// Runs until something of the kind is sent; how long that took.
  template <class T>
  Duration until(Duration limit = 10s) {
    const Time begin = now;
    while (now - begin < limit) {
      if (!of_kind<T>(pass(100us)).empty()) return now - begin;
    }
    FAIL("it was never sent");
    return {};
  }

  Geometry geometry(std::uint64_t blocks, OpNumber op = 0) const {
    return Geometry::make(blocks * kBlock, ElementType::kFloat32, kBlock, 508, streams, op);
  }
  std::vector<Sent> submit(std::vector<float>& tensor, std::chrono::milliseconds timeout = 0ms) {
    worker::OpRequest request;
    request.timeout = worker::OpTimeout::of(now, timeout);
    request.input = reinterpret_cast<const std::byte*>(tensor.data());
    request.output = reinterpret_cast<std::byte*>(tensor.data());
    request.element_count = tensor.size();
    engine->submit(request, now, sink);
    return sink.take();
  }

  std::vector<std::byte> result(std::uint64_t round, const std::vector<Block>& blocks,
                                std::uint64_t tensor_blocks, OpNumber op = 0,
                                std::uint64_t epoch = 400) const {
    return block_packet<wire::Result>(kJob, wire::shape_of(geometry(tensor_blocks, op)), false,
                                      blocks, [&](wire::Result& fixed, wire::Descriptor*) {
                                        fixed.delivery.epoch = epoch;
                                        fixed.delivery.delivery_token = 500;
                                        fixed.round = round;
                                        fixed.op = op;
                                        fixed.completing_rank = 1;
                                      });
  }
  /// The only result of a one-block op.
  std::vector<std::byte> short_result(std::uint64_t round, float value, OpNumber op) const {
    return result(round, {{0, kNoBlock.value, std::vector<float>(kBlock, value)}}, 1, op);
  }
  /// The same for who does not lack its sum.
  std::vector<std::byte> withheld_result(std::uint64_t round,
                                         ElementType type = ElementType::kFloat32) const {
    auto bytes = result(round, {{0, kNoBlock.value}}, 1);
    auto* fixed = reinterpret_cast<wire::Result*>(bytes.data());
    fixed->shape.wire_type = static_cast<std::uint8_t>(type);
    reinterpret_cast<wire::Column*>(fixed + 1)->flags = wire::kColumnWithheld;
    return bytes;
  }
  /// A result of an op whose column 0 goes on and on, owned by the other rank; the other columns
  /// end with the first round.
  std::vector<std::byte> long_result(std::uint64_t round, float value) const {
    const Geometry all = geometry(kLongBlocks);
    std::vector<Block> blocks(all.columns);
    for (std::uint32_t c = 0; c < all.columns && round == 0; ++c) blocks[c].index = c;
    const auto index =
        static_cast<std::uint32_t>(all.block_at(0, static_cast<std::uint32_t>(round)));
    blocks[0] = {index, all.following({index}).value, std::vector<float>(kBlock, value)};
    return result(round, blocks, kLongBlocks);
  }
  template <class T>
  T delivery(std::uint64_t epoch = 400) const {
    auto packet = wire::make<T>(kJob);
    packet.delivery.epoch = epoch;
    packet.delivery.delivery_token = 500;
    return packet;
  }
  /// To the first KEEPALIVE, from the aggregator that took us in.
  wire::Refused refused() const {
    auto packet = wire::make<wire::Refused>(kJob);
    packet.token = 900;
    packet.incarnation = kIncarnation;
    packet.number = 1;
    return packet;
  }
  /// Another aggregator process takes the job over; what the worker says to its WELCOME.
  std::vector<Sent> rejoin(std::uint64_t epoch) {
    const auto hello = of_kind<wire::Hello>(give(refused()));
    REQUIRE(hello.size() == 1);
    const auto nonce = hello[0].packet().as<wire::Hello>().nonce;
    challenge(nonce, kIncarnation + 1);
    auto welcome = welcome_packet(nonce);
    welcome.incarnation = kIncarnation + 1;
    welcome.token = 901;
    welcome.epoch = epoch;
    welcome.flags = wire::kWelcomeResume;
    return give(welcome);
  }
  std::vector<Sent> status(std::uint64_t round, std::initializer_list<std::uint16_t> waiting,
                           std::uint64_t epoch = 400) {
    auto packet = delivery<wire::Status>(epoch);
    packet.round = round;
    packet.live = 1;
    RankSet ranks;
    for (const std::uint16_t r : waiting) ranks.insert(Rank{r});
    packet.waiting = ranks.to_bytes();
    return give(packet);
  }
  std::uint64_t drops(DropReason reason) const { return engine->counters().drops[reason]; }

  static constexpr std::uint64_t kLongBlocks = 2000;
  std::uint8_t history;
  std::uint16_t lanes;
  std::uint16_t streams = 1;
  std::uint64_t ids = 5000;
  worker::EngineConfig config;
  std::vector<Endpoint> aggregators;
  Sink sink;
  std::unique_ptr<Engine> engine;
  Time now = Time{1h};
};

/// The same result, from an aggregator that knows of a rank so many rounds behind.
std::vector<std::byte> lagging(std::vector<std::byte> result, std::uint64_t rounds) {
  reinterpret_cast<wire::Result*>(result.data())->lag = static_cast<std::uint16_t>(rounds);
  return result;
}
std::vector<float> ones(std::uint64_t blocks) {
  return std::vector<float>(blocks * kBlock, 1.0f);
}
std::vector<float> zeros(std::uint64_t blocks) {
  return std::vector<float>(blocks * kBlock, 0.0f);
}

}  // namespace

// --------------------------------------------------------------------------------------- joining
TEST_CASE("a worker joins by HELLO, JOIN and WELCOME") {
  Bench bench;
  const std::uint64_t nonce = bench.start();
  CHECK(bench.engine->state() == State::kJoining);
  const auto join = of_kind<wire::Join>(bench.challenge(nonce));
  REQUIRE(join.size() == 1);
  const auto& packet = join[0].packet().as<wire::Join>();
  CHECK(packet.nonce == nonce);
  CHECK(packet.incarnation == kIncarnation);
  CHECK(packet.world_size == 2);
  CHECK(packet.generation == 0);
  CHECK(packet.flags == wire::kJoinNoProgress);
  bench.give(bench.welcome_packet(nonce));
  CHECK(bench.engine->state() == State::kActive);
  CHECK(of_kind<wire::KeepAlive>(bench.pass(0ms)).size() == 1);
}

TEST_CASE("a WELCOME must match the nonce and the incarnation last answered") {
  Bench bench;
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  auto welcome = bench.welcome_packet(nonce);
  welcome.nonce = nonce + 1;
  bench.give(welcome);
  welcome.nonce = nonce;
  welcome.incarnation = kIncarnation + 1;
  bench.give(welcome);
  CHECK(bench.engine->state() == State::kJoining);
  CHECK(bench.drops(DropReason::kNotJoined) == 2);
}

TEST_CASE("a WELCOME to no generation or epoch is none") {
  Bench bench;
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  auto welcome = bench.welcome_packet(nonce);
  welcome.epoch = 0;
  bench.give(welcome);
  welcome = bench.welcome_packet(nonce);
  welcome.generation = 0;
  bench.give(welcome);
  CHECK(bench.engine->state() == State::kJoining);
  CHECK(bench.drops(DropReason::kNotJoined) == 2);
}

TEST_CASE("a WELCOME to something else than was asked for is none") {
  Bench bench;
  bench.config.streams = 4;
  bench.config.history = 8;
  bench.engine = std::make_unique<Engine>(bench.config, bench.aggregators);
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  auto asked = bench.welcome_packet(nonce);
  asked.streams = 4;
  asked.history = 8;
  const auto refuses = [&](auto&& change) {
    auto welcome = asked;
    change(welcome);
    bench.give(welcome);
    return bench.engine->state() == State::kJoining;
  };
  CHECK(refuses([](auto& welcome) { welcome.streams = 8; }));
  CHECK(refuses([](auto& welcome) { welcome.history = 16; }));
  CHECK(refuses([](auto& welcome) { welcome.block_elements = kBlock / 2; }));
  CHECK(refuses([](auto& welcome) { welcome.payload_bytes = 509; }));  // more than the ports take
  CHECK(bench.drops(DropReason::kNotJoined) == 4);
  bench.give(asked);
  CHECK(bench.engine->state() == State::kActive);
}

TEST_CASE("HELLO is repeated, less and less often, until the worker gives up") {
  Bench bench;
  bench.start();
  const Duration first = bench.until<wire::Hello>();
  const Duration second = bench.until<wire::Hello>();
  CHECK(second > first);
  while (!bench.engine->over()) bench.pass(10ms);
  CHECK(bench.engine->state() == State::kFailed);
  CHECK(bench.engine->failure()->code() == ErrorCode::kAggregatorLost);
}

TEST_CASE("who waits for absent ranks is told their numbers in the end") {
  Bench bench;
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  for (std::uint64_t serial = 1; !bench.engine->over(); ++serial) {
    auto pending = wire::make<wire::Pending>(kJob);
    pending.nonce = nonce;
    pending.serial = serial;
    pending.absent[0] = 2;
    bench.give(pending);
    bench.pass(100ms);
  }
  CHECK(bench.engine->failure()->code() == ErrorCode::kFormationFailed);
  CHECK(std::string(bench.engine->failure()->what()).find("rank 1") != std::string::npos);
}

TEST_CASE("the other aggregators are joined with what aggregator 0 has decided") {
  Bench bench(4, 2);
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  const auto hello = of_kind<wire::Hello>(bench.give(bench.welcome_packet(nonce)));
  REQUIRE(hello.size() == 1);
  CHECK(hello[0].to == bench.aggregators[1]);
  CHECK(bench.engine->state() == State::kJoining);
  const auto next = hello[0].packet().as<wire::Hello>().nonce;
  const auto join = of_kind<wire::Join>(bench.challenge(next));
  REQUIRE(join.size() == 1);
  CHECK(join[0].packet().as<wire::Join>().generation == 3);
  CHECK(join[0].packet().as<wire::Join>().history == 4);
  CHECK(join[0].packet().as<wire::Join>().streams == 2);
  bench.give(bench.welcome_packet(next, 1));
  CHECK(bench.engine->state() == State::kActive);
}

TEST_CASE("an ABORT ends the ops with its cause, once") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  AbortInfo why{.reason = wire::AbortReason::kRankSilent, .rank_a = Rank{1}};
  bench.give(to_packet(why, kJob, 99, 0));  // another generation's
  CHECK(bench.engine->state() == State::kActive);
  CHECK(bench.drops(DropReason::kNotJoined) == 1);
  bench.give(to_packet(why, kJob, 3, 0));
  bench.give(to_packet(why, kJob, 3, 0));
  const auto completions = bench.engine->take_completions();
  REQUIRE(completions.size() == 1);
  CHECK(completions[0].error->code() == ErrorCode::kWorkerLost);
  CHECK(completions[0].error->rank() == 1);
  CHECK(bench.drops(DropReason::kNotJoined) == 2);
  // Further ops fail at once.
  bench.submit(tensor);
  CHECK(bench.engine->take_completions().at(0).error->code() == ErrorCode::kWorkerLost);
}

TEST_CASE("progress is the share of blocks whose results are applied") {
  Bench bench;
  bench.join();
  auto tensor = zeros(Bench::kLongBlocks);
  auto next = zeros(1);
  bench.submit(tensor);
  bench.submit(next);
  CHECK(bench.engine->progress(0) == 0);
  const double blocks = Bench::kLongBlocks;
  const double column = bench.geometry(Bench::kLongBlocks).blocks_between({0}, kNoBlock);
  bench.give(bench.long_result(0, 3));  // all but the first column is done with it
  CHECK(bench.engine->progress(0) == Approx(1 - (column - 1) / blocks));
  bench.give(bench.long_result(1, 3));
  CHECK(bench.engine->progress(0) == Approx(1 - (column - 2) / blocks));
  CHECK(bench.engine->progress(1) == 0);
  auto last = bench.long_result(2, 3);
  reinterpret_cast<wire::Column*>(last.data() + sizeof(wire::Result))->next = kNoBlock.value;
  bench.give(last);
  CHECK(bench.engine->progress(0) == 1);
  CHECK(bench.engine->progress(1) == 0);
}

TEST_CASE("an op that is not done in time ends the job for all") {
  Bench bench(4, 2);
  bench.join();
  auto first = ones(1);
  auto second = ones(1);
  bench.submit(first);
  bench.submit(second, 300ms);
  const bool told = GENERATE(true, false);
  if (told) {  // op 1 has one block, on stream 1
    auto packet = bench.delivery<wire::Status>(401);
    packet.delivery.delivery_token = 501;
    packet.delivery.stream = 1;
    packet.live = 1;
    RankSet waiting;
    waiting.insert(Rank{1});
    packet.waiting = waiting.to_bytes();
    bench.give(packet);
  }
  bench.pass(299ms);
  REQUIRE(bench.engine->state() == State::kActive);
  CHECK(bench.engine->next_deadline() <= bench.now + 1ms);
  const auto leave = of_kind<wire::Leave>(bench.pass(1ms));
  REQUIRE(leave.size() == 2);
  for (const Sent& sent : leave) {
    CHECK(sent.packet().as<wire::Leave>().abort == 1);
    const AbortInfo why = to_info(sent.packet().as<wire::Leave>());
    CHECK(why.reason == wire::AbortReason::kOpTimedOut);
    CHECK(why.rank_a == Rank{0});
    CHECK(why.op == 1);
    CHECK(why.value_a == 300);
    CHECK(why.value_b == (told ? 1 : 0));
    CHECK(why.rank_b == Rank{static_cast<std::uint16_t>(told ? 1 : 0)});
  }
  const auto completions = bench.engine->take_completions();
  REQUIRE(completions.size() == 2);
  for (const auto& completion : completions) {
    REQUIRE(completion.error);
    CHECK(completion.error->code() == ErrorCode::kOpTimedOut);
    CHECK(completion.error->op() == 1);
  }
  CHECK(bench.engine->failure()->what() == "job 42: op 1 (all_reduce) was not done within 300 ms"s +
                                               (told ? "; it waited for rank 1" : ""));
  CHECK(bench.engine->next_deadline() == kNever);
}

TEST_CASE("an op that is done is not overdue, nor one whose time-out was taken away") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor, 100ms);
  bench.give(bench.short_result(0, 3, 0));
  REQUIRE(bench.engine->take_completions().size() == 1);
  bench.submit(tensor, 100ms);
  bench.engine->set_timeout(1, {});
  bench.pass(150ms);
  CHECK(bench.engine->state() == State::kActive);
  // One that comes later than another is looked for once that is done.
  bench.engine->set_timeout(1, worker::OpTimeout::of(bench.now, 100ms));
  bench.submit(tensor, 300ms);
  bench.give(bench.short_result(1, 3, 1));
  bench.pass(299ms);
  CHECK(bench.engine->state() == State::kActive);
  bench.pass(1ms);
  CHECK(bench.engine->state() == State::kFailed);
  CHECK(bench.engine->failure()->op() == 2);
}

TEST_CASE("a time-out holds while an aggregator is joined again") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor, 300ms);
  bench.give(bench.refused());
  bench.pass(299ms);
  CHECK(bench.engine->state() == State::kActive);
  bench.pass(1ms);
  CHECK(bench.engine->failure()->code() == ErrorCode::kOpTimedOut);
}

TEST_CASE("errors name the job and its ranks as their users know them") {
  Bench bench;
  bench.config.alias = worker::JobLabel{.job = "bert (7)", .ranks = {Rank{5}, Rank{3}}};
  bench.engine = std::make_unique<Engine>(bench.config, bench.aggregators);
  bench.join();
  const AbortInfo why{.reason = wire::AbortReason::kOpMismatch,
                      .field = wire::Field::kElementCount,
                      .rank_a = Rank{1},
                      .rank_b = Rank{0},
                      .value_a = 11,
                      .value_b = 12};
  bench.give(to_packet(why, kJob, 3, 0));
  REQUIRE(bench.engine->failure());
  CHECK(bench.engine->failure()->rank() == 3);
  CHECK(bench.engine->failure()->what() ==
        "job bert (7): ranks call different collectives: rank 3 has element count 11, rank 5 has "
        "12 (op "
        "0)"s);
  CHECK(bench.engine->abort_info()->rank_a == Rank{1});
  CHECK(worker::JobLabel{.job = "7", .ranks = {Rank{5}}}.of(Rank{9}) == Rank{9});
}

TEST_CASE("what one aggregator says of the job's end, the others are told unchanged") {
  for (std::uint16_t reason = 1; reason <= wire::kLastAbortReason; ++reason) {
    Bench bench(4, 3);
    bench.join();
    auto tensor = ones(1);
    bench.submit(tensor);
    const AbortInfo why{.reason = static_cast<wire::AbortReason>(reason),
                        .field = wire::Field::kReduction,
                        .rank_a = Rank{1},
                        .rank_b = Rank{0},
                        .value_a = 70'000,
                        .value_b = 2,
                        .op = 17};
    if (why.reason == wire::AbortReason::kNotAuthenticated) continue;  // no member believes it
    CAPTURE(reason);
    const auto leave = of_kind<wire::Leave>(bench.give(to_packet(why, kJob, 3, 0)));
    REQUIRE(leave.size() == 2);  // shard 0 has said it
    for (const Sent& sent : leave) {
      CHECK(sent.packet().as<wire::Leave>().abort == 1);
      CHECK(to_info(sent.packet().as<wire::Leave>()) == why);
    }
    CHECK(bench.engine->take_completions().size() == 1);
  }
}

TEST_CASE("what was said without proof is not passed on as the cause") {
  Bench bench(4, 2);
  bench.challenge(bench.start());
  const auto first = of_kind<wire::Hello>(bench.give(bench.welcome_packet(bench.ids)));
  REQUIRE(first.size() == 1);
  const std::uint64_t nonce = first[0].packet().as<wire::Hello>().nonce;
  const AbortInfo why{.reason = wire::AbortReason::kNotAuthenticated, .rank_a = Rank{0}};
  std::vector<Sent> sent;
  while (!bench.engine->over()) sent = bench.give(to_packet(why, kJob, 0, nonce));
  CHECK(bench.engine->failure()->code() == ErrorCode::kNotAuthenticated);
  const auto leave = of_kind<wire::Leave>(sent);
  REQUIRE(leave.size() == 1);
  CHECK(leave[0].packet().as<wire::Leave>().abort == 1);
  CHECK(leave[0].packet().as<wire::Leave>().reason == 0);
}

TEST_CASE("a worker learns from CHALLENGE how many lanes aggregators have") {
  Bench bench(4, 2, 3);
  const std::uint64_t nonce = bench.start();
  const auto join = of_kind<wire::Join>(bench.challenge(nonce));
  REQUIRE(join.size() == 1);
  CHECK(join[0].packet().as<wire::Join>().shard == 0);
  CHECK(join[0].packet().as<wire::Join>().shards == 6);
  const auto hellos = of_kind<wire::Hello>(bench.give(bench.welcome_packet(nonce)));
  REQUIRE(hellos.size() == 5);
  for (std::size_t i = 0; i < hellos.size(); ++i) CHECK(hellos[i].to == bench.place_of(i + 1));
  const auto next =
      of_kind<wire::Join>(bench.challenge(hellos[4].packet().as<wire::Hello>().nonce));
  REQUIRE(next.size() == 1);
  CHECK(next[0].to == bench.place_of(5));
  CHECK(next[0].packet().as<wire::Join>().shard == 5);
  CHECK(next[0].packet().as<wire::Join>().shards == 6);
}

namespace {

/// A rank of a job at one aggregator that tells it from which ports to send.
struct PortBench : Bench {
  PortBench() : Bench(4, 1, 2) {
    aggregators[0].local_udp_port = kOwn;
    engine = std::make_unique<Engine>(config, aggregators);
    nonce = start();
  }

  /// A CHALLENGE that comes to one of our ports and tells others, by lane.
  std::vector<Sent> tell(std::uint16_t to, std::uint16_t first, std::uint16_t second = kSecond) {
    auto packet = wire::make<wire::Challenge>(kJob);
    packet.nonce = nonce;
    packet.lanes = lanes;
    packet.incarnation = kIncarnation;
    packet.serial = ++serial;
    packet.source_ports[0] = first;
    packet.source_ports[1] = second;
    return give_at(to, wire::bytes_of(packet));
  }
  std::vector<Sent> give_at(std::uint16_t udp_port, std::span<const std::byte> bytes) {
    Endpoint from = aggregators[0];
    from.local_udp_port = udp_port;
    engine->receive(from, received(sink, bytes), now, sink);
    return sink.take();
  }
  /// Of the kind T, all that was sent, and it was one packet, from which port of ours.
  template <class T>
  static std::uint16_t port_of_only(const std::vector<Sent>& sent) {
    REQUIRE(sent.size() == 1);
    REQUIRE(of_kind<T>(sent).size() == 1);
    return sent[0].to.local_udp_port;
  }

  static constexpr std::uint16_t kOwn = 4748;
  static constexpr std::uint16_t kFirst = 49'200;
  static constexpr std::uint16_t kOther = 49'300;
  static constexpr std::uint16_t kSecond = 51'300;
  std::uint64_t nonce = 0;
  std::uint64_t serial = 0;
};

}  // namespace

TEST_CASE("a rank joins from the port that it is told, and sends from there") {
  PortBench bench;
  CHECK(bench.port_of_only<wire::Hello>(bench.tell(PortBench::kOwn, PortBench::kFirst)) ==
        PortBench::kFirst);
  CHECK(bench.tell(PortBench::kOwn, PortBench::kFirst).empty());  // a copy, or late
  const auto joins = bench.tell(PortBench::kFirst, PortBench::kFirst);
  CHECK(bench.port_of_only<wire::Join>(joins) == PortBench::kFirst);
  const auto welcome = bench.welcome_packet(bench.nonce);
  const auto hellos =
      of_kind<wire::Hello>(bench.give_at(PortBench::kFirst, wire::bytes_of(welcome)));
  REQUIRE(hellos.size() == 1);
  CHECK(hellos[0].to.lane == 1);
  CHECK(hellos[0].to.local_udp_port == PortBench::kSecond);  // lane 0 has told it, too
  const auto alive = of_kind<wire::KeepAlive>(bench.pass(0ms));
  REQUIRE(alive.size() == 1);
  CHECK(alive[0].to.local_udp_port == PortBench::kFirst);
}

TEST_CASE("what is lost is asked again from the port that was told") {
  PortBench bench;
  bench.tell(PortBench::kOwn, PortBench::kFirst);
  const auto hellos = of_kind<wire::Hello>(bench.pass(20ms));
  REQUIRE(hellos.size() == 1);
  CHECK(hellos[0].to.local_udp_port == PortBench::kFirst);
  CHECK(bench.port_of_only<wire::Join>(bench.tell(PortBench::kFirst, PortBench::kFirst)) ==
        PortBench::kFirst);
  const auto repeated = of_kind<wire::Join>(bench.pass(40ms));
  REQUIRE(repeated.size() == 1);
  CHECK(repeated[0].to.local_udp_port == PortBench::kFirst);
}

TEST_CASE("a rank that is told one port after the other joins from where it was answered") {
  PortBench bench;
  std::uint16_t at = PortBench::kOwn;
  int asked = 0;
  for (int i = 0; i < 100; ++i) {
    const std::uint16_t told = at == PortBench::kFirst ? PortBench::kOther : PortBench::kFirst;
    const auto sent = bench.tell(at, told);
    REQUIRE(sent.size() == 1);
    if (!of_kind<wire::Join>(sent).empty()) {
      CHECK(sent[0].to.local_udp_port == at);
      break;
    }
    ++asked;
    at = told;
  }
  CHECK(asked == 4);
}

TEST_CASE("a rank whose aggregator has another key when it is back sends from other ports") {
  PortBench bench;
  bench.tell(PortBench::kOwn, PortBench::kFirst);
  bench.tell(PortBench::kFirst, PortBench::kFirst);
  bench.give_at(PortBench::kFirst, wire::bytes_of(bench.welcome_packet(bench.nonce)));
  bench.pass(0ms);
  const auto again = of_kind<wire::Hello>(bench.give(bench.refused()));
  REQUIRE(again.size() == 1);
  CHECK(again[0].to.local_udp_port == PortBench::kFirst);
  bench.nonce = again[0].packet().as<wire::Hello>().nonce;
  CHECK(bench.port_of_only<wire::Hello>(bench.tell(PortBench::kFirst, PortBench::kOther)) ==
        PortBench::kOther);
  CHECK(bench.port_of_only<wire::Join>(bench.tell(PortBench::kOther, PortBench::kOther)) ==
        PortBench::kOther);
}

TEST_CASE("a rank goes back to its own port where nothing is answered at the one told") {
  PortBench bench;
  bench.tell(PortBench::kOwn, PortBench::kFirst);
  int from_told = 0, asked_again = 0;
  for (int i = 0; i < 2900; ++i) {
    for (const Sent& sent : of_kind<wire::Hello>(bench.pass(1ms))) {
      if (sent.to.local_udp_port == PortBench::kFirst) {
        ++from_told;  // which a firewall drops
        continue;
      }
      const auto answer = bench.tell(PortBench::kOwn, PortBench::kFirst);
      if (of_kind<wire::Join>(answer).empty()) {
        ++asked_again;
        continue;
      }
      CHECK(bench.port_of_only<wire::Join>(answer) == PortBench::kOwn);
      CHECK(from_told == 2 * 6);
      CHECK(asked_again == 1);
      const auto welcome = bench.welcome_packet(bench.nonce);
      const auto of_lane_1 =
          of_kind<wire::Hello>(bench.give_at(PortBench::kOwn, wire::bytes_of(welcome)));
      REQUIRE(of_lane_1.size() == 1);
      CHECK(of_lane_1[0].to.local_udp_port == PortBench::kOwn);
      bench.pass(0ms);
      const auto again = of_kind<wire::Hello>(bench.give(bench.refused()));
      REQUIRE(again.size() == 1);
      bench.nonce = again[0].packet().as<wire::Hello>().nonce;
      CHECK(bench.port_of_only<wire::Join>(bench.tell(PortBench::kOwn, PortBench::kFirst)) ==
            PortBench::kOwn);
      return;
    }
  }
  FAIL("it does not join");
}

TEST_CASE("a CHALLENGE that comes to a port from which nothing was asked moves nobody") {
  PortBench bench;
  CHECK(bench.tell(PortBench::kOther, 0).empty());
  CHECK(bench.port_of_only<wire::Join>(bench.tell(PortBench::kOwn, 0)) == PortBench::kOwn);
}

TEST_CASE("a lane that does not answer is named") {
  Bench bench(4, 1, 2);
  bench.config.aggregator_names = {"vhost:/run/sluice"};
  bench.engine = std::make_unique<Engine>(bench.config, bench.aggregators);
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  bench.give(bench.welcome_packet(nonce));
  bench.until_over();
  CHECK(std::string(bench.engine->failure()->what()) ==
        "job 42: aggregator 1 at vhost:/run/sluice, lane 1 did not answer within 3 s");
}

TEST_CASE("who holds a generation asks for its shards, whatever lanes there are now") {
  Bench bench(4, 1, 2);
  bench.join();
  bench.lanes = 4;
  const auto hello = of_kind<wire::Hello>(bench.give(bench.refused()));
  REQUIRE(hello.size() == 1);
  const auto again = hello[0].packet().as<wire::Hello>().nonce;
  const auto join = of_kind<wire::Join>(bench.challenge(again, kIncarnation + 1));
  REQUIRE(join.size() == 1);
  CHECK(join[0].packet().as<wire::Join>().shards == 2);
  auto welcome = bench.welcome_packet(again);
  welcome.incarnation = kIncarnation + 1;
  CHECK(bench.give(welcome).empty());
  CHECK(bench.drops(DropReason::kNotJoined) == 1);
}

TEST_CASE("an aggregator that falls silent is declared failed, and the others are told") {
  Bench bench(4, 2);
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  std::vector<Sent> last;
  for (std::uint64_t n = 1; !bench.engine->over(); ++n) {
    auto ack = wire::make<wire::KeepAliveAck>(kJob);
    ack.epoch = 400;  // aggregator 0 lives
    ack.delivery_token = 500;
    ack.number = n;
    bench.give(ack);
    last = bench.pass(500ms);
  }
  CHECK(bench.engine->failure()->code() == ErrorCode::kAggregatorLost);
  const auto leave = of_kind<wire::Leave>(last);
  REQUIRE(!leave.empty());
  CHECK(leave[0].packet().as<wire::Leave>().abort == 1);
  CHECK(bench.engine->take_completions().size() == 1);
}

TEST_CASE("a worker tells the job's name and its build, and finds an aggregator of another one") {
  Bench bench;
  bench.config.build = "629700c-and-more-than-there-is-room-for";
  bench.config.alias = worker::JobLabel{.job = "bert (7)", .announced_name = "bert"};
  bench.engine = std::make_unique<Engine>(bench.config, bench.aggregators);
  const std::uint64_t nonce = bench.start();
  CHECK(bench.engine->waits_for() == "aggregator 0 to answer");
  const auto join = of_kind<wire::Join>(bench.challenge(nonce));
  REQUIRE(join.size() == 1);
  CHECK(text_of(join[0].packet().as<wire::Join>().name) == "bert");
  const std::string told = text_of(join[0].packet().as<wire::Join>().build);
  CHECK(told == bench.config.build.substr(0, wire::kBuildBytes));
  auto pending = wire::make<wire::Pending>(kJob);
  pending.nonce = nonce;
  pending.serial = 1;
  pending.absent[0] = 2;
  bench.give(pending);
  CHECK(bench.engine->waits_for() == "rank 1 to join");
  auto welcome = bench.welcome_packet(nonce);
  std::vector<std::string> others;
  SECTION("of ours") {
    set_text(welcome.build, bench.config.build);
  }
  SECTION("of none that is told") {
    set_text(welcome.build, "");
  }
  SECTION("of another") {
    set_text(welcome.build, "aaaaaaa\n");
    others = {"aggregator 0 is of build aaaaaaa?"};
  }
  bench.give(welcome);
  REQUIRE(bench.engine->state() == State::kActive);
  CHECK(bench.engine->other_builds() == others);
}

TEST_CASE("from REFUSED to WELCOME a worker applies nothing") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  auto refused = bench.refused();
  const auto is_ignored = [&] { return bench.give(refused).empty(); };
  refused.token = 1;  // not ours
  CHECK(is_ignored());
  refused = bench.refused();
  refused.shard = 1;  // another's that shares the secret
  CHECK(is_ignored());
  refused = bench.refused();
  refused.number = 2;  // of a KEEPALIVE that was not sent
  CHECK(is_ignored());
  CHECK(bench.drops(DropReason::kNotJoined) == 3);
  refused = bench.refused();
  const auto hello = of_kind<wire::Hello>(bench.give(refused));
  REQUIRE(hello.size() == 1);
  bench.give(bench.short_result(0, 3, 0));
  CHECK(bench.drops(DropReason::kWrongEpoch) == 1);
  CHECK(!bench.engine->has_completions());
  CHECK(tensor[0] == 1);

  // The refusal was false: nothing was lost, and the op goes on.
  const auto nonce = hello[0].packet().as<wire::Hello>().nonce;
  const auto join = of_kind<wire::Join>(bench.challenge(nonce));
  CHECK(join.at(0).packet().as<wire::Join>().generation == 3);
  CHECK(of_kind<wire::Data>(bench.give(bench.welcome_packet(nonce))).size() == 1);
  bench.give(bench.short_result(0, 3, 0));
  CHECK(bench.engine->take_completions().size() == 1);
  CHECK(tensor[0] == 3);
}

TEST_CASE("an aggregator that was restarted with other settings cannot take a generation over") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  const auto sent = bench.give(bench.refused());
  const auto nonce = of_kind<wire::Hello>(sent).at(0).packet().as<wire::Hello>().nonce;
  bench.challenge(nonce);
  auto welcome = bench.welcome_packet(nonce);
  welcome.generation = 4;
  welcome.epoch = 401;
  welcome.payload_bytes = 600;
  CHECK(bench.give(welcome).empty());
  CHECK(bench.drops(DropReason::kNotJoined) == 1);
  while (!bench.engine->over()) bench.pass(100ms);
  CHECK(bench.engine->failure()->code() == ErrorCode::kAggregatorLost);
}

TEST_CASE("an aggregator that was restarted ends a job that has made progress") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  bench.give(bench.short_result(0, 3, 0));
  const auto nonce =
      of_kind<wire::Hello>(bench.give(bench.refused())).at(0).packet().as<wire::Hello>().nonce;
  const auto join = of_kind<wire::Join>(bench.challenge(nonce, 78));
  CHECK(join.at(0).packet().as<wire::Join>().flags == 0);  // has progress
  const AbortInfo why{.reason = wire::AbortReason::kCannotResume};
  bench.give(to_packet(why, kJob, 3, nonce));
  CHECK(bench.engine->failure()->code() == ErrorCode::kAggregatorLost);
}

TEST_CASE("a new generation may have other streams than the one before") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  bench.pass(0ms);

  // A standby formed the job with JOINs that were sent before this generation was formed.
  const auto again = of_kind<wire::Hello>(bench.give(bench.refused()));
  REQUIRE(again.size() == 1);
  const auto nonce = again[0].packet().as<wire::Hello>().nonce;
  bench.challenge(nonce, kIncarnation + 1);
  auto welcome = bench.welcome_packet(nonce);
  welcome.incarnation = kIncarnation + 1;
  welcome.epoch = 401;
  welcome.streams = 2;
  CHECK(bench.give(welcome).empty());  // the generation held keeps its number
  CHECK(bench.drops(DropReason::kNotJoined) == 1);
  welcome.generation = 4;
  const auto data = of_kind<wire::Data>(bench.give(welcome));
  REQUIRE(data.size() == 1);
  CHECK(bench.engine->session().generation == 4);
  CHECK(bench.engine->session().streams == 2);
  CHECK(bench.engine->take_completions().empty());
}

// --------------------------------------------------------------------------------------- leaving
TEST_CASE("leaving repeats LEAVE until LEFT") {
  Bench bench;
  bench.join();
  bench.engine->leave(bench.now, bench.sink);
  CHECK(of_kind<wire::Leave>(bench.sink.take()).size() == 1);
  bench.until<wire::Leave>();
  auto left = wire::make<wire::Left>(kJob);
  left.token = 900;
  bench.give(left);
  CHECK(bench.engine->state() == State::kLeft);
}

TEST_CASE("who leaves asks again soon, as the others mostly leave at the same time") {
  Bench bench;
  bench.config.rto = {.min = 80ms, .max = 80ms, .initial = 80ms};
  bench.engine = std::make_unique<Engine>(bench.config, bench.aggregators);
  bench.join();
  bench.engine->leave(bench.now, bench.sink);
  CHECK(of_kind<wire::Leave>(bench.sink.take()).size() == 1);
  CHECK(bench.until<wire::Leave>() <= 11ms);
  CHECK(bench.until<wire::Leave>() >= 19ms);
}

TEST_CASE("leaving is bounded in time") {
  Bench bench;
  bench.join();
  bench.engine->leave(bench.now, bench.sink);
  while (!bench.engine->over()) bench.pass(10ms);
  CHECK(bench.engine->state() == State::kFailed);
}

TEST_CASE("who leaves by an exception says so, and again") {
  Bench bench;
  bench.join();
  bench.engine->leave(bench.now, bench.sink, Departure::kByException);
  const AbortInfo says{.reason = wire::AbortReason::kRankLeft,
                       .rank_a = bench.engine->rank(),
                       .value_a = static_cast<std::uint64_t>(Departure::kByException)};
  auto leave = of_kind<wire::Leave>(bench.sink.take());
  for (int times = 0; times < 2; ++times) {
    while (leave.empty()) leave = of_kind<wire::Leave>(bench.pass(1ms));
    const auto packet = std::exchange(leave, {})[0].packet().as<wire::Leave>();
    CHECK(packet.abort == 0);
    CHECK(to_info(packet) == says);
  }
}

TEST_CASE("leaving with ops pending ends the job for all") {
  const auto departure = GENERATE(Departure::kByChoice, Departure::kByException);
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  bench.engine->leave(bench.now, bench.sink, departure);
  const auto leave = of_kind<wire::Leave>(bench.sink.take());
  REQUIRE(leave.size() == 1);
  const auto& packet = leave[0].packet().as<wire::Leave>();
  CHECK(packet.abort == 1);
  if (departure == Departure::kByChoice) {
    CHECK(packet.reason == 0);
  } else {
    CHECK(to_info(packet) ==
          *cause_of(wire::AbortReason::kRankAborted, bench.engine->rank(), departure));
  }
  CHECK(bench.engine->take_completions().at(0).error->code() == ErrorCode::kAborted);
}

// ------------------------------------------------------------------------------------------- ops
TEST_CASE(
    "an op with more blocks than can be told apart in its session ends the job, and says why") {
  Bench bench;
  bench.config.rank = Rank{1};
  bench.config.block_elements = 1024;
  bench.config.payload_bytes = 1400;  // as in the job that a channel belongs to, and was checked in
  bench.engine = std::make_unique<Engine>(bench.config, bench.aggregators);
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  auto welcome = bench.welcome_packet(nonce);
  welcome.block_elements = 1024;
  bench.give(welcome);  // with 508 bytes: so blocks of an int8 have 256 elements
  REQUIRE(bench.engine->state() == State::kActive);
  bench.pass(0ms);

  std::byte first{};  // of a message that this rank receives; nothing is written
  worker::OpRequest request;
  request.collective = wire::Collective::kBroadcast;
  request.type = ElementType::kInt8;
  request.output = &first;
  request.held.emplace();
  request.element_count = max_element_count(256);
  SECTION("as many as can be: it begins") {
    bench.engine->submit(request, bench.now, bench.sink);
    CHECK(of_kind<wire::Data>(bench.sink.take()).size() == 1);
    CHECK(!bench.engine->has_completions());
  }
  SECTION("one more") {
    ++request.element_count;
    CHECK(bench.engine->submit(request, bench.now, bench.sink) == 0);
    const auto sent = bench.sink.take();
    CHECK(of_kind<wire::Data>(sent).empty());
    REQUIRE(of_kind<wire::Leave>(sent).size() == 1);
    CHECK(of_kind<wire::Leave>(sent)[0].packet().as<wire::Leave>().abort == 1);
    const auto ended = bench.engine->take_completions();
    REQUIRE(ended.size() == 1);
    REQUIRE(ended[0].error);
    CHECK(ended[0].error->code() == ErrorCode::kInvalidArgument);
    CHECK(ended[0].error->what() ==
          "job 42: 1099511627521 elements in blocks of 256 are more than 1099511627520"s);
    bench.engine->submit(request, bench.now, bench.sink);  // and so does every later one
    CHECK(bench.engine->take_completions().size() == 1);
  }
}

TEST_CASE("an op of nothing still runs a round") {
  Bench bench;
  bench.join();
  std::vector<float> nothing;
  const auto data = of_kind<wire::Data>(bench.submit(nothing));
  REQUIRE(data.size() == 1);
  CHECK(data[0].packet().descriptor() != nullptr);
  bench.give(bench.result(0, {}, 0));
  CHECK(bench.engine->take_completions().size() == 1);
}

TEST_CASE("DATA carries the own blocks and the indices of the next ones") {
  Bench bench;
  bench.join();
  const Geometry geometry = bench.geometry(3 * bench.geometry(1).columns);
  auto tensor = zeros(geometry.blocks);
  tensor[geometry.block_at(0, 2) * kBlock] = 5;  // column 0
  tensor[kBlock] = 7;                            // block 1, column 1
  const auto data = of_kind<wire::Data>(bench.submit(tensor));
  REQUIRE(data.size() == 1);
  const auto blocks = blocks_of(data[0].packet());
  CHECK(blocks[0].elements.empty());
  CHECK(blocks[0].next == geometry.block_at(0, 2));
  REQUIRE(blocks[1].elements.size() == kBlock);
  CHECK(blocks[1].elements[0] == 7);
  CHECK(blocks[1].next == kNoBlock.value);
}

TEST_CASE("a block that nobody owns is +0, also where the caller had -0") {
  Bench bench;
  bench.join();
  std::vector<float> tensor(kBlock, -0.0f);
  bench.submit(tensor);
  bench.give(bench.result(0, {{0, kNoBlock.value}}, 1));
  REQUIRE(bench.engine->take_completions().size() == 1);
  for (const float x : tensor) CHECK(!std::signbit(x));
}

TEST_CASE("a result is applied once, and never to memory that was handed back") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  bench.give(bench.short_result(0, 3, 0));
  REQUIRE(bench.engine->take_completions().size() == 1);
  tensor.assign(kBlock, 66);
  bench.give(bench.short_result(0, 3, 0));
  CHECK(tensor[0] == 66);
  CHECK(bench.drops(DropReason::kStaleRound) == 1);
  bench.submit(tensor);
  bench.give(bench.short_result(0, 3, 0));  // of the op before
  CHECK(tensor[0] == 66);
  CHECK(bench.drops(DropReason::kStaleRound) == 2);
}

TEST_CASE("results are applied in round order; one that is early is kept and asked about once") {
  Bench bench;
  bench.join();
  auto tensor = zeros(Bench::kLongBlocks);
  bench.submit(tensor);
  const auto probe = of_kind<wire::Probe>(bench.give(bench.long_result(2, 30)));
  REQUIRE(probe.size() == 1);
  CHECK(probe[0].packet().as<wire::Probe>().position == 0);
  CHECK(probe[0].packet().as<wire::Probe>().have == 2);
  CHECK(of_kind<wire::Probe>(bench.give(bench.long_result(1, 20))).empty());
  CHECK(bench.engine->counters().results_early == 2);
  CHECK(bench.engine->counters().results_applied == 0);
  bench.give(bench.long_result(1, 20));
  CHECK(bench.drops(DropReason::kDuplicate) == 1);
  bench.give(bench.long_result(0, 10));
  CHECK(bench.engine->counters().results_applied == 3);
  CHECK(tensor[0] == 10);
  CHECK(tensor[bench.geometry(1).block_at(0, 1) * kBlock] == 20);
}

TEST_CASE("a silent worker acknowledges every H/2 rounds") {
  Bench bench(8);
  bench.join();
  auto tensor = zeros(Bench::kLongBlocks);
  bench.submit(tensor);
  for (std::uint64_t round = 0; round < 12; ++round) {
    const auto acks = of_kind<wire::Ack>(bench.give(bench.long_result(round, 1)));
    CHECK(acks.size() == (round % 4 == 3 ? 1 : 0));
    if (!acks.empty()) CHECK(acks[0].packet().as<wire::Ack>().position == round + 1);
  }
}

TEST_CASE("time-outs grow from one to the next, up to a bound, and progress ends that") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  std::vector<Duration> waits{bench.until<wire::Probe>()};
  for (int i = 1; i < 7; ++i) waits.push_back(bench.until<wire::Data>());
  for (std::size_t i = 1; i < 4; ++i) CHECK(waits[i] >= waits[i - 1] * 19 / 10);
  CHECK(waits[6] >= bench.config.rto.max * 9 / 10);
  CHECK(waits[6] <= bench.config.rto.max + 1ms);
  CHECK(bench.engine->counters().timeouts == 7);
  CHECK(bench.engine->counters().data_resent == 6);

  bench.give(bench.short_result(0, 3, 0));
  tensor.assign(kBlock, 1);
  bench.submit(tensor);
  CHECK(bench.until<wire::Probe>() <= waits[0] + 1ms);
}

namespace {

std::vector<unsigned> streams(const std::vector<Sent>& sent) {
  std::vector<unsigned> of;
  for (const Sent& data : of_kind<wire::Data>(sent))
    of.push_back(data.packet().as<wire::Data>().member.stream);
  return of;
}

}  // namespace

TEST_CASE("an op's first stream is among those that a narrow window lets run") {
  Bench bench;
  bench.streams = 16;
  bench.join();
  std::vector<float> nothing;
  for (std::uint16_t op = 0; op < 3; ++op) {
    CHECK(streams(bench.submit(nothing)) == std::vector<unsigned>{op});
    auto result = bench.result(0, {}, 0, op);
    reinterpret_cast<wire::Result*>(result.data())->delivery.stream = op;
    bench.give(result);
  }
  auto tensor = ones(16u * bench.geometry(1).columns);
  CHECK(streams(bench.submit(tensor)) ==
        std::vector<unsigned>{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
}

TEST_CASE("a session begins with 8 streams, and each round that ends brings one more") {
  Bench bench;
  bench.streams = 16;
  bench.join();
  const std::uint8_t width = bench.geometry(1).columns;
  auto tensor = ones(16u * width);
  CHECK(streams(bench.submit(tensor)) == std::vector<unsigned>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(bench.engine->running_streams() == 8);
  std::vector<Block> sums;
  for (std::uint32_t c = 0; c < width; ++c)
    sums.push_back({c, kNoBlock.value, std::vector<float>(kBlock, 3)});
  // The op is over on stream 0, so two others may run.
  CHECK(streams(bench.give(bench.result(0, sums, 16u * width))) == std::vector<unsigned>{8, 9});
}

TEST_CASE("the first time-out asks who is waited for; DATA that is resent asks, too") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  const auto flags = [](const std::vector<Sent>& sent) {
    return of_kind<wire::Data>(sent).at(0).packet().as<wire::Data>().flags;
  };
  CHECK(flags(bench.submit(tensor)) == wire::kDataOpening);
  const auto asked = bench.pass(11ms);
  CHECK(of_kind<wire::Data>(asked).empty());
  CHECK(of_kind<wire::Probe>(asked).size() == 1);
  CHECK(flags(bench.pass(21ms)) == (wire::kDataOpening | wire::kDataAsk));
}

TEST_CASE("who is not waited for probes instead of sending its blocks again") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  bench.status(0, {1});
  const auto sent = bench.pass(11ms);
  CHECK(of_kind<wire::Data>(sent).empty());
  CHECK(of_kind<wire::Probe>(sent).size() == 1);
  // And sends them if it turns out to be waited for.
  CHECK(of_kind<wire::Data>(bench.status(0, {0})).size() == 1);
}

TEST_CASE("a waited-for worker that owes no blocks acknowledges") {
  Bench bench(8);
  bench.join();
  auto tensor = zeros(Bench::kLongBlocks);
  bench.submit(tensor);
  bench.give(bench.long_result(0, 1));
  CHECK(of_kind<wire::Ack>(bench.status(1, {0})).size() == 1);
  auto poll = bench.delivery<wire::Poll>();
  poll.streams.fill(0xff);  // also streams beyond the session's
  CHECK(of_kind<wire::Ack>(bench.give(poll)).size() == 1);
  bench.status(0, {0});
  CHECK(bench.drops(DropReason::kStaleRound) == 1);
}

TEST_CASE("what is not for this worker, or not now, has no effect") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  SECTION("another formation's result") {
    bench.give(bench.result(0, {{0, kNoBlock.value, {3, 3, 3, 3}}}, 1, 0, 401));
    CHECK(bench.drops(DropReason::kWrongEpoch) == 1);
  }
  SECTION("a result without the delivery token") {
    auto bytes = bench.short_result(0, 3, 0);
    reinterpret_cast<wire::Result*>(bytes.data())->delivery.delivery_token = 1;
    bench.give(bytes);
    CHECK(bench.drops(DropReason::kWrongEpoch) == 1);
  }
  SECTION("a stream that does not exist") {
    auto bytes = bench.short_result(0, 3, 0);
    reinterpret_cast<wire::Result*>(bytes.data())->delivery.stream = 65535;
    bench.give(bytes);
    CHECK(bench.drops(DropReason::kBadStream) == 1);
  }
  SECTION("a round beyond the history") {
    bench.give(bench.short_result(4, 3, 0));
    bench.give(bench.short_result(~std::uint64_t{0}, 3, 0));
    CHECK(bench.drops(DropReason::kFutureRound) == 2);
  }
  SECTION("another job's") {
    auto left = wire::make<wire::Left>(kJob + 1);
    bench.give(left);
    CHECK(bench.drops(DropReason::kUnknownJob) == 1);
  }
  SECTION("what workers send") {
    bench.give(wire::make<wire::Ack>(kJob));
    CHECK(bench.drops(DropReason::kWrongDirection) == 1);
  }
  SECTION("no packet at all") {
    const std::byte noise[3] = {};
    bench.give(noise);
    CHECK(bench.drops(DropReason::kTooShort) == 1);
  }
  CHECK(tensor[0] == 1);
  CHECK(bench.engine->state() == State::kActive);
  bench.give(bench.short_result(0, 3, 0));
  CHECK(tensor[0] == 3);
}

TEST_CASE("a stream runs from its op's beginning to its end, or the job's") {
  Bench bench;
  bench.join();
  CHECK(bench.engine->running_streams() == 0);
  auto tensor = ones(1);
  bench.submit(tensor);
  CHECK(bench.engine->running_streams() == 1);
  SECTION("with a result") {
    bench.give(bench.short_result(0, 3, 0));
  }
  SECTION("with the job") {
    bench.engine->abort(Error(ErrorCode::kAborted, "enough"), bench.sink);
  }
  SECTION("again, in another epoch of a generation without progress") {
    const auto hello = of_kind<wire::Hello>(bench.give(bench.refused()));
    const auto nonce = hello.at(0).packet().as<wire::Hello>().nonce;
    bench.challenge(nonce, 78);
    auto welcome = bench.welcome_packet(nonce);
    welcome.incarnation = 78;
    welcome.epoch = 401;
    CHECK(of_kind<wire::Data>(bench.give(welcome)).size() == 1);
    CHECK(bench.engine->running_streams() == 1);
    bench.give(bench.result(0, {{0, kNoBlock.value, std::vector<float>(kBlock, 3)}}, 1, 0, 401));
  }
  CHECK(bench.engine->running_streams() == 0);
}

TEST_CASE("rounds whose results some rank lacks are replayed, with what was sent for them") {
  Bench bench;
  bench.join();
  const std::uint32_t width = bench.geometry(1).columns;
  const Geometry geometry = bench.geometry(2 * width);
  auto tensor = ones(2 * width);
  const auto round = [&](std::uint32_t number, std::uint64_t epoch) {
    std::vector<Block> blocks(width);
    for (std::uint32_t c = 0; c < width; ++c) {
      const auto index = static_cast<std::uint32_t>(geometry.block_at(c, number));
      blocks[c] = {index, geometry.following({index}).value, std::vector<float>(kBlock, 3)};
    }
    return bench.give(lagging(bench.result(number, blocks, 2 * width, 0, epoch), number));
  };
  bench.submit(tensor);
  round(0, 400);
  round(1, 400);
  CHECK(bench.engine->take_completions().size() == 1);
  CHECK(tensor == std::vector<float>(tensor.size(), 3));
  tensor.assign(tensor.size(), 7);  // the caller's again

  const auto sync = of_kind<wire::Sync>(bench.rejoin(401));
  REQUIRE(sync.size() == 1);
  CHECK(sync[0].packet().as<wire::Sync>().applied == 2);
  const auto first = of_kind<wire::Data>(bench.status(0, {0, 1}, 401));
  REQUIRE(first.size() == 1);
  CHECK(first[0].packet().as<wire::Data>().round == 0);
  CHECK(first[0].packet().as<wire::Data>().flags == wire::kDataOpening);
  CHECK(first[0].packet().member().token == 901);
  REQUIRE(blocks_of(first[0].packet()).size() == width);
  CHECK(blocks_of(first[0].packet())[0].elements == std::vector<float>(kBlock, 1));
  CHECK(blocks_of(first[0].packet())[0].next == geometry.block_at(0, 1));
  SECTION("and a result without our block fails the job") {
    bench.give(bench.result(0, {{0, width}}, 2 * width, 0, 401));
    CHECK(bench.engine->failure()->code() == ErrorCode::kProtocol);
    return;
  }
  const auto second = of_kind<wire::Data>(round(0, 401));
  REQUIRE(second.size() == 1);
  CHECK(second[0].packet().as<wire::Data>().round == 1);
  CHECK(second[0].packet().as<wire::Data>().flags == 0);
  CHECK(blocks_of(second[0].packet())[0].elements == std::vector<float>(kBlock, 1));
  CHECK(round(1, 401).empty());
  CHECK(bench.engine->counters().rounds_replayed == 2);
  CHECK(!bench.engine->has_completions());
  CHECK(tensor == std::vector<float>(tensor.size(), 7));
}

TEST_CASE("a stream is resumed amidst an op, also by who owns nothing") {
  Bench bench;
  bench.join();
  auto tensor = zeros(Bench::kLongBlocks);
  bench.submit(tensor);
  CHECK(bench.give(bench.long_result(0, 3)).empty());
  CHECK(bench.give(bench.long_result(1, 3)).empty() == false);  // an ACK: half the history
  bench.rejoin(401);
  const auto data = of_kind<wire::Data>(bench.status(1, {0, 1}, 401));  // rank 1 lacks round 1
  REQUIRE(data.size() == 1);
  CHECK(data[0].packet().as<wire::Data>().flags == wire::kDataOpening);
  CHECK(data[0].packet().columns()[0].index == bench.geometry(1).block_at(0, 1));
  CHECK(data[0].packet().columns()[0].next == kNoBlock.value);
  CHECK(data[0].packet().columns()[0].flags == 0);
}

TEST_CASE("what was sent is kept as long as some rank may lack its round's result") {
  Bench bench(8);
  bench.join();
  auto tensor = ones(1);
  const auto apply = [&](std::uint64_t round, std::uint64_t lag) {
    bench.submit(tensor);
    bench.give(lagging(bench.short_result(round, 1, round), lag));
  };
  apply(0, 0);
  apply(1, 1);
  CHECK(bench.sink.pool->live == 2);
  apply(2, 1);
  CHECK(bench.sink.pool->live == 2);
  apply(3, 0);
  CHECK(bench.sink.pool->live == 1);
  bench.rejoin(401);
  SECTION("a round that nobody lacks is not resumed with") {
    bench.status(2, {0, 1}, 401);
    CHECK(bench.engine->failure()->code() == ErrorCode::kProtocol);
  }
  SECTION("nor one that has not begun") {
    bench.status(5, {0, 1}, 401);
    CHECK(bench.engine->failure()->code() == ErrorCode::kProtocol);
  }
  SECTION("but the last one") {
    CHECK(of_kind<wire::Data>(bench.status(3, {0, 1}, 401)).size() == 1);
  }
}

TEST_CASE("a result that tells of a rank further behind than one can be is dropped") {
  Bench bench(2);
  bench.join();
  auto tensor = ones(1);
  for (std::uint64_t round = 0; round < 3; ++round) {
    bench.submit(tensor);
    bench.give(lagging(bench.short_result(round, 1, round), round));
  }
  CHECK(bench.drops(DropReason::kFutureRound) == 1);
  CHECK(bench.engine->take_completions().size() == 2);
}

TEST_CASE("who wants no sums says so, and takes results without them") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  worker::OpRequest request;
  request.collective = wire::Collective::kReduce;
  request.input = reinterpret_cast<const std::byte*>(tensor.data());
  request.element_count = tensor.size();
  request.root = 1;
  request.wanted.emplace();
  bench.engine->submit(request, bench.now, bench.sink);
  const auto data = of_kind<wire::Data>(bench.sink.take());
  REQUIRE(data.size() == 1);
  CHECK(data[0].packet().descriptor()->flags == wire::kWantsPart);
  CHECK(data[0].packet().descriptor()->count == 0);
  bench.give(bench.withheld_result(0));
  const auto completions = bench.engine->take_completions();
  REQUIRE(completions.size() == 1);
  CHECK(!completions[0].error);
  CHECK(completions[0].statistics.blocks_sent == 1);
  CHECK(completions[0].statistics.blocks_received == 0);
  CHECK(tensor == ones(1));
}

TEST_CASE("a block that this rank alone moves need not come back") {
  Bench bench;
  bench.join();
  const auto input = ones(1);
  std::vector<float> output(input.size());
  worker::OpRequest request;
  request.collective = wire::Collective::kAllGather;
  request.input = reinterpret_cast<const std::byte*>(input.data());
  request.output = reinterpret_cast<std::byte*>(output.data());
  request.element_count = input.size();
  SECTION("its own is its result") {
    bench.engine->submit(request, bench.now, bench.sink);
    bench.give(bench.withheld_result(0, ElementType::kInt32));
    const auto completions = bench.engine->take_completions();
    REQUIRE(completions.size() == 1);
    CHECK(!completions[0].error);
    CHECK(completions[0].statistics.blocks_received == 1);
    CHECK(output == input);
  }
  SECTION("another's must come") {
    request.held = worker::ElementRange{};
    bench.engine->submit(request, bench.now, bench.sink);
    bench.give(bench.withheld_result(0, ElementType::kInt32));
    CHECK(bench.engine->failure()->code() == ErrorCode::kProtocol);
  }
}

TEST_CASE("a result that cannot be of the running round fails the job loudly") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  SECTION("our block is not in it") {
    bench.give(bench.result(0, {{0, kNoBlock.value}}, 1));
  }
  SECTION("another op's") {
    bench.give(bench.short_result(0, 3, 1));
  }
  SECTION("a sum that we want is withheld") {
    bench.give(bench.withheld_result(0));
  }
  SECTION("another tensor's") {
    bench.give(bench.result(0, {{0, kNoBlock.value, {3, 3, 3, 3}}}, 2));
  }
  CHECK(bench.engine->failure()->code() == ErrorCode::kProtocol);
  CHECK(bench.drops(DropReason::kUnfitting) == 1);
  CHECK(tensor[0] == 1);
}

TEST_CASE("an empty pool delays DATA, and the op ends well") {
  Bench bench;
  bench.join();
  bench.sink.pool->dry = true;
  auto tensor = ones(1);
  CHECK(bench.submit(tensor).empty());
  CHECK(bench.drops(DropReason::kNoBuffer) == 1);
  bench.sink.pool->dry = false;
  CHECK(of_kind<wire::Data>(bench.pass(1ms)).size() == 1);
  CHECK(bench.engine->counters().data_resent == 0);
  bench.give(bench.short_result(0, 3, 0));
  CHECK(bench.engine->take_completions().size() == 1);
}

TEST_CASE("the statistics of an op count its blocks and packets once") {
  Bench bench;
  bench.join();
  auto tensor = zeros(2);
  tensor[0] = 1;
  bench.submit(tensor);
  bench.pass(11ms);  // resent once
  bench.give(
      bench.result(0, {{0, kNoBlock.value, {1, 0, 0, 0}}, {1, kNoBlock.value, {2, 0, 0, 0}}}, 2));
  const auto completions = bench.engine->take_completions();
  REQUIRE(completions.size() == 1);
  const auto& statistics = completions[0].statistics;
  CHECK(statistics.blocks == 2);
  CHECK(statistics.blocks_sent == 1);
  CHECK(statistics.blocks_received == 2);
  CHECK(statistics.packets_sent == 2);
  CHECK(statistics.packets_received == 1);
  CHECK(statistics.retransmissions == 1);
}

TEST_CASE("buffers go back when the job is over") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  bench.give(bench.short_result(0, 3, 0));
  CHECK(bench.sink.pool->live == 1);  // kept as others may lack the result
  bench.engine->abort(Error(ErrorCode::kAborted, "enough"), bench.sink);
  CHECK(bench.sink.pool->live == 0);
}

// -------------------------------------------------------------------------------------- multicast
TEST_CASE(
    "a worker tells the newest BEACON that it received, at once where it may seem not to receive "
    "any") {
  Bench bench;
  const auto beacon = [&](std::uint64_t number, std::uint64_t epoch = 400) {
    auto packet = wire::make<wire::Beacon>(kJob);
    packet.epoch = epoch;
    packet.delivery_token = 500;
    packet.number = number;
    bench.give(packet);
    return of_kind<wire::KeepAlive>(bench.pass(1ms));
  };
  bench.join();
  const auto said = beacon(1);
  REQUIRE(said.size() == 1);
  CHECK(said[0].packet().as<wire::KeepAlive>().newest_beacon == 1);
  CHECK(said[0].packet().as<wire::KeepAlive>().beacons_received == 1);
  CHECK(beacon(2).empty());
  CHECK(beacon(2).empty());
  CHECK(beacon(5).empty());
  CHECK(beacon(9, 401).empty());  // of another epoch
  const auto again = beacon(9);
  REQUIRE(again.size() == 1);
  CHECK(again[0].packet().as<wire::KeepAlive>().newest_beacon == 9);
  CHECK(again[0].packet().as<wire::KeepAlive>().beacons_received == 0b1'1001'0001);  // 9, 5, 2, 1
  CHECK(beacon(8).empty());
  CHECK(beacon(60).size() == 1);
  CHECK(bench.engine->counters().beacons_received == 5);
  CHECK(bench.drops(DropReason::kNotJoined) == 3);

  bench.rejoin(401);  // where none was heard yet
  const auto first = of_kind<wire::KeepAlive>(bench.pass(1ms));
  REQUIRE(first.size() == 1);
  CHECK(first[0].packet().as<wire::KeepAlive>().newest_beacon == 0);
}

TEST_CASE("a worker is in the group of its session until the job is over for it") {
  Bench bench;
  const auto groups = [&] {
    std::vector<std::uint32_t> all;
    bench.engine->for_each_group([&](std::uint32_t group) { all.push_back(group); });
    return all;
  };
  const std::uint64_t nonce = bench.start();
  bench.challenge(nonce);
  CHECK(groups().empty());
  auto welcome = bench.welcome_packet(nonce);
  welcome.group = 0xefff'4a2a;
  bench.give(welcome);
  CHECK(groups() == std::vector<std::uint32_t>{0xefff'4a2a});
  bench.give(bench.refused());  // it joins again
  CHECK(groups().size() == 1);
  bench.engine->abort(Error(ErrorCode::kAborted, "by choice"), bench.sink);
  CHECK(groups().empty());
}

/// Lets time pass in which an aggregator acknowledges KEEPALIVEs and, if wanted, says that it waits
/// for rank 1.
void pass_answered(Bench& bench, std::uint16_t shard, Duration time, bool with_status) {
  for (const Time end = bench.now + time; bench.now < end && !bench.engine->over();)
    for (const Sent& sent : bench.pass(10ms)) {
      const auto kind = sent.packet().kind();
      if (sent.to != bench.aggregators[shard]) continue;
      if (with_status && (kind == wire::Kind::kProbe || kind == wire::Kind::kData)) {
        auto status = bench.delivery<wire::Status>(400u + shard);
        status.delivery.delivery_token = 500u + shard;
        status.delivery.stream = shard;
        status.live = 1;
        RankSet late;
        late.insert(Rank{1});
        status.waiting = late.to_bytes();
        bench.give(status);
      }
      if (kind != wire::Kind::kKeepAlive) continue;
      auto ack = wire::make<wire::KeepAliveAck>(kJob);
      ack.epoch = 400u + shard;
      ack.delivery_token = 500u + shard;
      ack.number = sent.packet().as<wire::KeepAlive>().number;
      bench.give(ack);
    }
}

TEST_CASE("an aggregator that answers only short packets is given up, and the length is named") {
  Bench bench;
  bench.join();
  auto tensor = ones(1);
  bench.submit(tensor);
  pass_answered(bench, 0, 60s, true);  // another rank is late
  CHECK(bench.engine->state() == State::kActive);
  pass_answered(bench, 0, defaults::kAggregatorTimeout - 1s, false);
  CHECK(bench.engine->state() == State::kActive);
  pass_answered(bench, 0, 10s, false);
  REQUIRE(bench.engine->state() == State::kFailed);
  CHECK(bench.engine->failure()->code() == ErrorCode::kAggregatorLost);
  CHECK_THAT(bench.engine->failure()->what(), Catch::Contains("IP packets of 536 bytes"));
}

TEST_CASE("an aggregator that answers is not declared failed while another is down") {
  Bench bench(4, 2);
  bench.join();
  bench.pass(0ms);
  auto of_shard_0 = ones(1);
  auto of_shard_1 = ones(1);
  bench.submit(of_shard_0);
  bench.submit(of_shard_1);
  pass_answered(bench, 1, 200ms, false);  // the path is bad for a while
  REQUIRE(of_kind<wire::Hello>(bench.give(bench.refused())).size() == 1);
  pass_answered(bench, 1, 60s, true);  // what it says has no effect, but it comes
  REQUIRE(bench.engine->state() == State::kFailed);
  CHECK_THAT(bench.engine->failure()->what(), Catch::Contains("aggregator 0"));
}

}  // namespace worker_engine_tests
