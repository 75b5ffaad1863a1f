// Who may join a job and who is believed: an aggregator's and its workers' engines joined by a wire
// that a test can read, change and repeat.
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/engine/engine.hpp"
#include "common/protocol/protection.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"
#include "worker/engine/engine.hpp"

namespace trust_tests {

using namespace sluice;
using namespace sluice::parts;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kJob = 42;
constexpr Endpoint kAggregator{.port_id = 1, .ipv4 = 1, .off_machine = true};

std::shared_ptr<const Secret> secret(const std::string& text) {
  return std::make_shared<const Secret>("a secret of a test: " + text);
}

Endpoint at_rank(std::uint16_t rank) {
  return {.port_id = 1, .ipv4 = 10u + rank, .off_machine = true};
}

struct Flight {
  Endpoint from;
  Endpoint to;
  std::vector<std::byte> bytes;
};

/// One aggregator and two ranks. `tap` sees each packet on its way and may change it; false: lost.
struct Wire {
  Wire() {
    aggregator_config.incarnation = 7;
    aggregator_config.unique = [this] { return ++ids; };
    aggregator_config.payload_bytes = 1472;
    aggregator_config.liveness_timeout = 1s;
    for (std::uint16_t r = 0; r < 2; ++r) {
      auto& config = worker_configs[r];
      config.job = kJob;
      config.rank = Rank{r};
      config.ranks = 2;
      config.payload_bytes = 1472;
      config.join_timeout = 2s;
      config.aggregator_timeout = 2s;
      config.unique = [this] { return ++ids; };
    }
  }

  void start() {
    aggregator = std::make_unique<aggregator::Engine>(aggregator_config);
    start_rank(0);
    start_rank(1);
  }
  /// A new process takes the rank.
  void start_rank(std::uint16_t r) {
    workers[r] = std::make_unique<worker::Engine>(worker_configs[r], std::span(&kAggregator, 1));
    workers[r]->start(now, sinks[r]);
  }
  bool leave() {
    for (std::uint16_t r = 0; r < 2; ++r) workers[r]->leave(now, sinks[r]);
    return run_until([&] { return both(worker::Engine::State::kLeft); });
  }

  /// Time passes until `done` or for ten seconds.
  bool run_until(const std::function<bool()>& done) {
    for (const Time end = now + 10s; now < end && !done(); now += 1ms) {
      aggregator->on_time(now, aggregator_sink);
      for (std::uint16_t r = 0; r < 2; ++r) workers[r]->on_time(now, sinks[r]);
      collect();
      for (const Flight& flight : std::exchange(in_flight, {})) deliver(flight);
    }
    return done();
  }
  void collect() {
    for (std::uint16_t r = 0; r < 2; ++r)
      for (const Sent& sent : sinks[r].take()) send({at_rank(r), kAggregator, *sent.datagram});
    for (const Sent& sent : aggregator_sink.take()) send({kAggregator, sent.to, *sent.datagram});
  }
  void send(Flight flight) {
    if (!tap || tap(flight)) in_flight.push_back(std::move(flight));
  }
  void deliver(const Flight& flight) {
    if (flight.to == kAggregator) {
      aggregator->receive(flight.from, received(aggregator_sink, flight.bytes), now,
                          aggregator_sink);
      return;
    }
    for (std::uint16_t r = 0; r < 2; ++r)
      if (flight.to == at_rank(r))
        workers[r]->receive(flight.from, received(sinks[r], flight.bytes), now, sinks[r]);
  }

  bool both(worker::Engine::State state) const {
    return workers[0]->state() == state && workers[1]->state() == state;
  }
  bool join() {
    start();
    return run_until([&] { return both(worker::Engine::State::kActive); });
  }
  /// Both ranks' error when none can join.
  void fail_to_join(ErrorCode code) {
    start();
    REQUIRE(run_until([&] { return both(worker::Engine::State::kFailed); }));
    for (const auto& each : workers) CHECK(each->failure()->code() == code);
    CHECK(aggregator->live_jobs() == 0);
  }
  /// The sum that rank 0 gets of ones and twos; 0 if none comes.
  float sum() {
    std::vector<float> tensors[2] = {std::vector<float>(600, 1), std::vector<float>(600, 2)};
    for (std::uint16_t r = 0; r < 2; ++r) {
      worker::OpRequest request;
      request.input = reinterpret_cast<const std::byte*>(tensors[r].data());
      request.output = reinterpret_cast<std::byte*>(tensors[r].data());
      request.element_count = tensors[r].size();
      workers[r]->submit(request, now, sinks[r]);
    }
    const bool done =
        run_until([&] { return workers[0]->pending_ops() == 0 && workers[1]->pending_ops() == 0; });
    for (auto& each : workers)
      for (const auto& completion : each->take_completions())
        if (completion.error) return 0;
    if (!done || tensors[0] != tensors[1]) return 0;
    return tensors[0] == std::vector<float>(600, tensors[0][0]) ? tensors[0][0] : 0;
  }
  void share_secret() {
    aggregator_config.secret = [](std::uint32_t) { return secret("shared"); };
    for (auto& config : worker_configs) config.secret = secret("shared");
  }

  std::uint64_t drops(DropReason reason) const { return aggregator->counters().drops[reason]; }

  aggregator::EngineConfig aggregator_config;
  worker::EngineConfig worker_configs[2];
  std::unique_ptr<aggregator::Engine> aggregator;
  std::unique_ptr<worker::Engine> workers[2];
  Sink aggregator_sink;
  Sink sinks[2];
  std::vector<Flight> in_flight;
  std::function<bool(Flight&)> tap;
  Time now{1s};
  std::uint64_t ids = 100;
};

wire::Kind kind_of(const Flight& flight) {
  return static_cast<wire::Kind>(reinterpret_cast<const wire::Header*>(flight.bytes.data())->kind);
}

}  // namespace

TEST_CASE("who knows the secret joins, and every packet of the handshake proves it") {
  Wire wire;
  wire.share_secret();
  std::size_t handshakes = 0;
  wire.tap = [&](Flight& flight) {
    Packet packet;
    REQUIRE(Packet::parse(flight.bytes, packet) == DropReason::kNone);
    CHECK(packet.is_authenticated() == wire::uses_handshake_key(packet.kind()));
    handshakes += packet.is_authenticated();
    return true;
  };
  REQUIRE(wire.join());
  CHECK(handshakes >= 8);
  CHECK(wire.sum() == 3);
}

TEST_CASE("another secret, or none on one side, is told in one line and joins nobody") {
  Wire wire;
  wire.share_secret();
  SECTION("another") {
    for (auto& config : wire.worker_configs) config.secret = secret("another");
  }
  SECTION("none at the ranks") {
    for (auto& config : wire.worker_configs) config.secret = nullptr;
  }
  SECTION("none at the aggregator") {
    wire.aggregator_config.secret = nullptr;
  }
  wire.fail_to_join(ErrorCode::kNotAuthenticated);
  CHECK(wire.drops(DropReason::kNotAuthentic) >= 2);
}

TEST_CASE("one rank without the secret does not keep the others from joining later") {
  Wire wire;
  wire.share_secret();
  wire.worker_configs[1].secret = secret("another");
  wire.start();
  REQUIRE(
      wire.run_until([&] { return wire.workers[1]->state() == worker::Engine::State::kFailed; }));
  CHECK(wire.workers[0]->state() == worker::Engine::State::kJoining);
  wire.worker_configs[1].secret = secret("shared");
  wire.start_rank(1);
  CHECK(wire.run_until([&] { return wire.both(worker::Engine::State::kActive); }));
}

TEST_CASE("a worker believes no aggregator that does not know the secret") {
  Wire wire;
  wire.share_secret();
  wire.tap = [](Flight& flight) {  // someone on the path answers in its place
    if (kind_of(flight) != wire::Kind::kWelcome) return true;
    auto& welcome = *reinterpret_cast<wire::Welcome*>(flight.bytes.data());
    welcome.epoch = 666;
    return true;
  };
  wire.aggregator_config.liveness_timeout = 20s;
  wire.start();
  REQUIRE(wire.run_until([&] { return wire.both(worker::Engine::State::kFailed); }));
  CHECK(wire.workers[0]->failure()->code() == ErrorCode::kAggregatorLost);
  CHECK(wire.workers[0]->counters().drops[DropReason::kNotAuthentic] > 0);
}

TEST_CASE("a session authenticates packets if the aggregator or any rank demands it") {
  Wire wire;
  wire.share_secret();
  SECTION("the aggregator") {
    wire.aggregator_config.authenticate_packets = true;
  }
  SECTION("a rank") {
    wire.worker_configs[1].authenticate_packets = true;
  }
  std::size_t seen = 0;
  wire.tap = [&](Flight& flight) {
    Packet packet;
    REQUIRE(Packet::parse(flight.bytes, packet) == DropReason::kNone);
    CHECK(packet.is_authenticated());
    ++seen;
    return true;
  };
  REQUIRE(wire.join());
  CHECK(wire.sum() == 3);
  CHECK(seen > 10);
}

TEST_CASE("a session encrypts what carries values if the aggregator or any rank demands it") {
  Wire wire;
  wire.share_secret();
  SECTION("the aggregator") {
    wire.aggregator_config.encrypt_packets = true;
  }
  SECTION("a rank") {
    wire.worker_configs[1].encrypt_packets = true;
  }
  std::size_t encrypted = 0;
  wire.tap = [&](Flight& flight) {
    Packet packet;
    REQUIRE(Packet::parse(flight.bytes, packet) == DropReason::kNone);
    CHECK(packet.is_authenticated());
    CHECK(packet.is_encrypted() == wire::carries_values(packet.kind()));
    encrypted += packet.is_encrypted();
    return true;
  };
  REQUIRE(wire.join());
  CHECK(wire.sum() == 3);
  CHECK(encrypted >= 4);
}

TEST_CASE("a rank that demands encryption joins no session without") {
  Wire wire;
  wire.share_secret();
  wire.worker_configs[1].encrypt_packets = true;
  wire.worker_configs[1].join_timeout = 500ms;
  wire.tap = [](Flight& flight) {  // an aggregator that does not know how
    if (kind_of(flight) != wire::Kind::kJoin) return true;
    auto& join = *reinterpret_cast<wire::Join*>(flight.bytes.data());
    join.flags = static_cast<std::uint8_t>(join.flags & ~wire::kJoinEncrypt);
    const Key key = handshake_key(*secret("shared"), kJob);
    protect(flight.bytes, {.key = &key});
    return true;
  };
  wire.start();
  REQUIRE(
      wire.run_until([&] { return wire.workers[1]->state() == worker::Engine::State::kFailed; }));
}

TEST_CASE("a packet that was changed on the path is not added, and the sum comes right after all") {
  Wire wire;
  wire.share_secret();
  SECTION("by its trailer") {
    wire.aggregator_config.authenticate_packets = true;
  }
  SECTION("by its trailer, encrypted") {
    wire.aggregator_config.encrypt_packets = true;
  }
  SECTION("by its CRC32C") {
    wire.aggregator_config.integrity = true;
    for (auto& config : wire.worker_configs) config.integrity = true;
  }
  REQUIRE(wire.join());
  int changed = 0;
  wire.tap = [&](Flight& flight) {
    const bool data =
        kind_of(flight) == wire::Kind::kData || kind_of(flight) == wire::Kind::kResult;
    if (data && changed < 6) flight.bytes[flight.bytes.size() - 40] ^= std::byte(1 << changed++);
    return true;
  };
  CHECK(wire.sum() == 3);
  CHECK(changed == 6);
}

namespace {

/// What an aggregator of version 2 makes of a HELLO of version 1.
Flight versions_for(const Flight& hello, std::uint8_t lowest = 2, std::uint8_t highest = 2) {
  const auto& asked = *reinterpret_cast<const wire::Hello*>(hello.bytes.data());
  auto versions = wire::make<wire::Versions>(asked.header.job);
  versions.header.version = highest;
  versions.nonce = asked.nonce;
  versions.lowest = lowest;
  versions.highest = highest;
  versions.header.integrity = integrity_of(wire::bytes_of(versions));
  const auto bytes = wire::bytes_of(versions);
  return {hello.to, hello.from, {bytes.begin(), bytes.end()}};
}

}  // namespace

TEST_CASE("a rank and an aggregator of other versions part with both versions in one line") {
  Wire wire;
  const bool with_secret = GENERATE(false, true);
  if (with_secret) wire.share_secret();
  const bool integrity = GENERATE(false, true);
  wire.aggregator_config.integrity = integrity;
  for (auto& config : wire.worker_configs) config.integrity = integrity;
  std::size_t hellos = 0;
  std::size_t answers = 0;
  wire.tap = [&](Flight& flight) {
    if (kind_of(flight) == wire::Kind::kHello) {  // as if the ranks were of version 2,
      ++hellos;
      flight.bytes[2] = std::byte{2};
      return true;
    }
    REQUIRE(kind_of(flight) == wire::Kind::kVersions);
    CHECK(flight.bytes.size() == sizeof(wire::Versions));
    ++answers;
    auto& versions = *reinterpret_cast<wire::Versions*>(flight.bytes.data());
    CHECK(versions.lowest == 1);
    CHECK(versions.highest == 1);
    CHECK(versions.header.integrity == integrity_of(flight.bytes));
    versions.lowest = versions.highest = versions.header.version = 2;  // or the aggregator
    versions.header.integrity = integrity_of(flight.bytes);
    return true;
  };
  wire.fail_to_join(ErrorCode::kFormationFailed);
  CHECK(hellos == 6);
  CHECK(answers == 6);
  CHECK(wire.drops(DropReason::kBadVersion) == 6);
  CHECK_THAT(wire.workers[0]->failure()->what(),
             Catch::StartsWith("job 42: aggregator 0 speaks version 2 of the protocol, this "
                               "library version 1 (build ") &&
                 Catch::EndsWith("): use the same release on both"));
}

TEST_CASE("an aggregator of several other versions names the least and the greatest") {
  Wire wire;
  wire.tap = [&](Flight& flight) {
    if (kind_of(flight) != wire::Kind::kHello) return true;
    wire.in_flight.push_back(versions_for(flight, 2, 4));
    return false;
  };
  wire.fail_to_join(ErrorCode::kFormationFailed);
  CHECK_THAT(wire.workers[0]->failure()->what(), Catch::Contains("speaks versions 2 to 4 of the"));
}

TEST_CASE("that an aggregator speaks another version is not believed once one has answered") {
  Wire wire;
  const bool with_secret = GENERATE(false, true);
  if (with_secret) wire.share_secret();
  std::map<std::uint32_t, Flight> asked;  // by the rank's address
  wire.tap = [&](Flight& flight) {
    if (kind_of(flight) == wire::Kind::kHello) asked[flight.from.ipv4] = flight;
    if (kind_of(flight) != wire::Kind::kChallenge) return true;
    wire.in_flight.push_back(flight);
    for (int i = 0; i < 5; ++i) wire.in_flight.push_back(versions_for(asked.at(flight.to.ipv4)));
    return false;
  };
  REQUIRE(wire.join());
  CHECK(wire.sum() == 3);
}

TEST_CASE("a VERSION that says nothing of this join, or nothing new, is dropped") {
  Wire wire;
  wire.tap = [&](Flight& flight) {
    if (kind_of(flight) != wire::Kind::kHello) return true;
    for (int i = 0; i < 4; ++i) {
      Flight other = versions_for(flight);
      auto& versions = *reinterpret_cast<wire::Versions*>(other.bytes.data());
      versions.nonce = versions.nonce + 1;
      versions.header.integrity = 0;
      wire.in_flight.push_back(other);
      wire.in_flight.push_back(versions_for(flight, 1, 3));  // ours is among them
      wire.in_flight.push_back(versions_for(flight, 3, 2));  // none is
    }
    return true;
  };
  REQUIRE(wire.join());
  CHECK(wire.workers[0]->counters().drops[DropReason::kNotJoined] >= 12);
  CHECK(wire.sum() == 3);
}

TEST_CASE("a VERSION that was heard too rarely to be believed is told at the end of the join") {
  Wire wire;
  std::map<std::uint32_t, int> said;
  wire.tap = [&](Flight& flight) {
    if (kind_of(flight) == wire::Kind::kHello && said[flight.from.ipv4]++ < 2)
      wire.in_flight.push_back(versions_for(flight));
    return false;
  };
  wire.fail_to_join(ErrorCode::kAggregatorLost);
  CHECK_THAT(wire.workers[0]->failure()->what(),
             Catch::Contains("did not answer within 2 s; something there says, without proof, that "
                             "it speaks version 2 of the protocol, this library version 1"));
}

TEST_CASE("where a shard has standbys, the join goes on: one of them may speak our version") {
  Wire wire;
  for (auto& config : wire.worker_configs) {
    config.addresses = {2};
    config.locate = [](std::uint16_t, unsigned attempt) {
      Endpoint at = kAggregator;
      if (attempt % 2 == 0) at.ipv4 = 2;  // the one of version 2
      return at;
    };
  }
  std::map<std::uint32_t, int> heard;
  wire.tap = [&](Flight& flight) {
    if (kind_of(flight) != wire::Kind::kHello) return true;
    if (flight.to.ipv4 == 2) {
      wire.in_flight.push_back(versions_for(flight));
      return false;
    }
    return ++heard[flight.from.ipv4] > 4;
  };
  REQUIRE(wire.join());
  CHECK(wire.sum() == 3);
}

TEST_CASE("where integrity is demanded, a packet from another machine must have it") {
  Wire wire;
  wire.aggregator_config.integrity = true;
  for (auto& config : wire.worker_configs) config.join_timeout = 500ms;
  wire.fail_to_join(ErrorCode::kAggregatorLost);
  CHECK(wire.drops(DropReason::kNoIntegrity) > 0);
}

TEST_CASE("packets of an earlier session are of no use in a later one") {
  Wire wire;
  wire.share_secret();
  const bool authenticated = GENERATE(false, true);
  wire.aggregator_config.authenticate_packets = authenticated;
  std::vector<Flight> recorded;
  wire.tap = [&](Flight& flight) {
    recorded.push_back(flight);
    return true;
  };
  REQUIRE(wire.join());
  CHECK(wire.sum() == 3);
  REQUIRE(wire.leave());

  // The same aggregator, the same job, new members: all that was said comes again, in between.
  wire.tap = nullptr;
  wire.start_rank(0);
  wire.start_rank(1);
  const auto replay = [&] {
    for (const Flight& flight : recorded) wire.deliver(flight);
    return wire.both(worker::Engine::State::kActive);
  };
  REQUIRE(wire.run_until(replay));
  const std::uint64_t contributions = wire.aggregator->counters().contributions;
  replay();
  CHECK(wire.aggregator->counters().contributions == contributions);
  CHECK(wire.sum() == 3);
  CHECK(wire.aggregator->counters().jobs_aborted == 0);
}

TEST_CASE("a secret that was changed is asked of new jobs, and live ones go on with theirs") {
  Wire wire;
  wire.share_secret();
  REQUIRE(wire.join());
  aggregator::EngineConfig changed = wire.aggregator_config;
  changed.secret = [](std::uint32_t) { return secret("changed"); };
  wire.aggregator->adjust(changed);
  CHECK(wire.sum() == 3);
  REQUIRE(wire.leave());
  wire.start_rank(0);
  wire.start_rank(1);
  REQUIRE(wire.run_until([&] { return wire.both(worker::Engine::State::kFailed); }));
  CHECK(wire.workers[0]->failure()->code() == ErrorCode::kNotAuthenticated);
}

TEST_CASE("no answer to an unauthenticated peer is longer than what was asked, with a secret too") {
  Wire wire;
  wire.share_secret();
  wire.aggregator_config.authenticate_packets = true;
  std::vector<Flight> recorded;
  wire.tap = [&](Flight& flight) {
    recorded.push_back(flight);
    return true;
  };
  REQUIRE(wire.join());
  CHECK(wire.sum() == 3);
  wire.workers[0]->abort(Error(ErrorCode::kAborted, "a test"), wire.sinks[0]);
  REQUIRE(wire.run_until([&] { return wire.both(worker::Engine::State::kFailed); }));
  wire.aggregator_sink.take();
  std::size_t answers = 0;
  for (const Flight& flight : recorded) {
    if (!(flight.to == kAggregator)) continue;
    wire.now += 1ms;
    const Endpoint outsider{.port_id = 1, .ipv4 = 99, .off_machine = true};
    wire.aggregator->receive(outsider, received(wire.aggregator_sink, flight.bytes), wire.now,
                             wire.aggregator_sink);
    for (const Sent& sent : wire.aggregator_sink.take()) {
      CHECK(sent.datagram->size() <= flight.bytes.size());
      ++answers;
    }
  }
  CHECK(answers > 0);
}

// ------------------------------------------------------------- who reads one link, sends from
// another
namespace {

/// A job with secret and authenticated packets, and a host that has read rank 0's link.
struct Segment : Wire {
  Segment() {
    share_secret();
    aggregator_config.authenticate_packets = true;
    tap = [this](Flight& flight) {
      seen[kind_of(flight)] = flight;
      return true;
    };
  }
  std::uint64_t rejoins() const {
    return workers[0]->counters().rejoins + workers[1]->counters().rejoins;
  }
  std::map<wire::Kind, Flight> seen;  // the newest of each kind
};

template <class T>
T as(const Flight& flight) {
  T packet;
  REQUIRE(flight.bytes.size() >= sizeof packet);
  std::memcpy(&packet, flight.bytes.data(), sizeof packet);
  return packet;
}

}  // namespace

TEST_CASE("a forged KEEPALIVE gets no signed answer that disturbs its rank") {
  Segment segment;
  REQUIRE(segment.join());
  CHECK(segment.sum() == 3);
  auto forged = as<wire::KeepAlive>(segment.seen.at(wire::Kind::kKeepAlive));
  forged.member.rank = static_cast<std::uint16_t>(1 - forged.member.rank);
  forged.member.header.flags = 0;
  forged.member.header.length = sizeof forged;
  forged.member.header.integrity = 0;
  const Endpoint attacker{.port_id = 1, .ipv4 = 99, .off_machine = true};
  std::vector<Flight> answers;
  segment.tap = [&](Flight& flight) {
    if (flight.to == attacker) answers.push_back(flight);
    return true;
  };
  segment.deliver(
      {attacker, kAggregator, {wire::bytes_of(forged).begin(), wire::bytes_of(forged).end()}});
  segment.run_until([&, end = segment.now + 5ms] { return segment.now >= end; });
  for (Flight& answer : answers)
    for (std::uint16_t r = 0; r < 2; ++r) segment.deliver({kAggregator, at_rank(r), answer.bytes});
  CHECK(segment.rejoins() == 0);
  CHECK(segment.sum() == 3);
}

TEST_CASE("who was a member is not put out by an unproven word that it does not share the secret") {
  Segment segment;
  REQUIRE(segment.join());
  CHECK(segment.sum() == 3);
  // The daemon dies and comes back; while the ranks join again somebody says what he can say.
  segment.tap = [&](Flight& flight) {
    if (kind_of(flight) != wire::Kind::kHello) return true;
    AbortInfo why{.reason = wire::AbortReason::kNotAuthenticated};
    const auto abort = to_packet(why, kJob, 0, as<wire::Hello>(flight).nonce);
    const auto bytes = wire::bytes_of(abort);
    for (int i = 0; i < 5; ++i)
      segment.in_flight.push_back({kAggregator, flight.from, {bytes.begin(), bytes.end()}});
    return true;
  };
  segment.aggregator_config.incarnation = 8;
  segment.aggregator = std::make_unique<aggregator::Engine>(segment.aggregator_config);
  CHECK(segment.sum() == 3);
  CHECK(segment.rejoins() >= 2);
}

TEST_CASE("a REFUSED that was recorded elsewhere is of no use, or once") {
  Segment segment;
  REQUIRE(segment.join());
  CHECK(segment.sum() == 3);
  segment.tap = [&](Flight& flight) {
    if (flight.from == at_rank(0)) segment.seen[kind_of(flight)] = flight;
    return true;
  };
  segment.seen.clear();
  REQUIRE(segment.run_until([&] { return segment.seen.count(wire::Kind::kKeepAlive) != 0; }));
  auto config = segment.aggregator_config;
  config.incarnation = 9;
  std::uint64_t rejoins_max = 0;
  const auto listens_at = [&](std::uint32_t ipv4, std::uint16_t udp_port) {
    config.place = [=](std::uint16_t) { return aggregator::EngineConfig::Place{ipv4, udp_port}; };
  };
  listens_at(kAggregator.ipv4, kAggregator.udp_port);
  SECTION("at another shard that shares the secret") {
    config.shard = 1, config.shards = 2;
  }
  SECTION("at a standby") {
    listens_at(kAggregator.ipv4 + 1, kAggregator.udp_port);
  }
  SECTION("at another lane") {
    listens_at(kAggregator.ipv4, static_cast<std::uint16_t>(kAggregator.udp_port + 1));
  }
  SECTION("at the aggregator's next life") {
    rejoins_max = 1;
  }
  aggregator::Engine elsewhere(config);
  Sink sink;
  elsewhere.receive(at_rank(0), received(sink, segment.seen.at(wire::Kind::kKeepAlive).bytes),
                    segment.now, sink);
  const auto refused = of_kind<wire::Refused>(sink.take());
  REQUIRE(refused.size() == 1);
  for (int i = 0; i < 100; ++i) {
    segment.deliver({kAggregator, at_rank(0), *refused[0].datagram});
    segment.run_until([&, end = segment.now + 10ms] { return segment.now >= end; });
  }
  CHECK(segment.rejoins() == rejoins_max);
  CHECK(segment.sum() == 3);
}

TEST_CASE("who is taken in again gets another token") {
  Segment segment;
  segment.aggregator_config.liveness_timeout = 5s;
  REQUIRE(segment.join());
  bool cut_off = true;  // rank 0, so that it joins again
  segment.tap = [&](Flight& flight) {
    if (flight.from == at_rank(0)) segment.seen[kind_of(flight)] = flight;
    return !(cut_off && flight.to == at_rank(0));
  };
  const auto token = [&] {
    segment.seen.clear();
    REQUIRE(segment.run_until([&] { return segment.seen.count(wire::Kind::kKeepAlive) != 0; }));
    return std::uint64_t{as<wire::KeepAlive>(segment.seen.at(wire::Kind::kKeepAlive)).member.token};
  };
  const std::uint64_t before = token();
  REQUIRE(segment.run_until([&] { return segment.workers[0]->counters().rejoins == 1; }));
  cut_off = false;
  CHECK(segment.sum() == 3);
  CHECK(token() != before);
  CHECK(segment.rejoins() == 1);
}

TEST_CASE("a flood of forged handshakes keeps nobody out who knows the secret") {
  Segment segment;
  segment.aggregator_config.reply_rate_limit = 10;
  segment.start();
  auto hello = wire::make<wire::Hello>(kJob);
  auto join = wire::make<wire::Join>(kJob);
  join.incarnation = segment.aggregator_config.incarnation;
  const auto flood = [&](const auto& packet) {
    const auto bytes = wire::bytes_of(packet);
    for (std::uint16_t r = 0; r < 2; ++r)
      segment.deliver({at_rank(r), kAggregator, {bytes.begin(), bytes.end()}});
  };
  const Time begin = segment.now;
  REQUIRE(segment.run_until([&] {
    for (int i = 0; i < 50; ++i) flood(hello), flood(join);
    return segment.both(worker::Engine::State::kActive);
  }));
  CHECK(segment.now - begin < 100ms);  // of virtual time
}

}  // namespace trust_tests
