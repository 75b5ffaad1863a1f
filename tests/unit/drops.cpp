// Every reason for which a packet is dropped has a case here that moves its counter, and no other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/fuzz/forge.hpp"
#include "tests/fuzz/job.hpp"
#include "tests/unit/catch.hpp"

namespace drops_tests {

using namespace sluice;
using namespace std::chrono_literals;

namespace {

using fuzz::Datagram;
using fuzz::datagram_of;
using fuzz::kAggregator;

constexpr std::uint32_t kJob = 1;
constexpr std::uint32_t kSecretJob = 50;
constexpr Endpoint kNewcomer{.port_id = 9, .ipv4 = 9};
constexpr Endpoint kElsewhere{.port_id = 9, .ipv4 = 10, .off_machine = true};

/// All blocks travel; a column has many.
constexpr sim::OpSpec kOp{.element_count = 400, .density = 1};

/// A job of two ranks that has formed, and a process that asks for rank 0 of another one.
struct Bench {
  Bench() : world(config(), 2), job(world, kJob, 2, 1) {
    REQUIRE(job.settle([&] { return job.joined(); }));
  }
  static aggregator::EngineConfig config() {
    aggregator::EngineConfig config;
    config.streams = 1;
    config.payload_bytes = 508;
    config.integrity = true;
    config.reply_rate_limit = 20;
    config.secret = [](std::uint32_t job) {
      return job == kSecretJob ? std::make_shared<const Secret>("sixteen bytes or more") : nullptr;
    };
    return config;
  }

  void submit() {
    for (std::size_t r = 0; r < job.ranks(); ++r) job.rank(r).submit(kOp, world.now);
    world.pump();
  }

  /// The first packet of this kind that is sent from now on; it does not arrive.
  template <class T>
  Datagram take() {
    for (int delivered = 0;; ++delivered) {
      REQUIRE(delivered < 1000);
      REQUIRE(!world.flights.empty());
      const auto bytes = world.flights.front().datagram;
      Packet packet;
      REQUIRE(Packet::parse(*bytes, packet) == DropReason::kNone);
      if (packet.kind() == wire::KindOf<T>::kValue) {
        world.flights.erase(world.flights.begin());
        return *bytes;
      }
      world.deliver(0);
    }
  }
  /// What rank 0 sends in the first round of an op.
  Datagram data() {
    submit();
    return take<wire::Data>();
  }
  Datagram result() {
    submit();
    return take<wire::Result>();
  }
  /// A JOIN of a newcomer whose CHALLENGE is fresh.
  Datagram join() {
    world.flights.clear();
    world.add(std::make_unique<fuzz::Caller>(fuzz::rank_config(kJob + 1, 0, 2, 3), kNewcomer,
                                             std::span(&kAggregator, 1)));
    return take<wire::Join>();
  }

  /// Of rank 0, which has begun an op.
  template <class T>
  T member_packet() {
    const Datagram sent = data();
    T packet = wire::make<T>(kJob);
    const wire::Header header = packet.member.header;
    packet.member = reinterpret_cast<const wire::MemberHeader&>(sent.front());
    packet.member.header = header;
    return packet;
  }
  /// Of the aggregator, which has ended a round.
  template <class T>
  T delivery_packet() {
    const Datagram sent = result();
    T packet = wire::make<T>(kJob);
    const wire::Header header = packet.delivery.header;
    packet.delivery = reinterpret_cast<const wire::DeliveryHeader&>(sent.front());
    packet.delivery.header = header;
    return packet;
  }

  void to_aggregator(const Datagram& bytes, const Endpoint& from) {
    world.arrive({from, kAggregator, std::make_shared<Datagram>(bytes)});
  }
  void to_aggregator(const Datagram& bytes) { to_aggregator(bytes, job.rank(0).self()); }
  void to_rank(const Datagram& bytes) {
    world.arrive({kAggregator, job.rank(0).self(), std::make_shared<Datagram>(bytes)});
  }

  /// Drops of all engines so far.
  std::map<DropReason, std::uint64_t> drops() const {
    std::map<DropReason, std::uint64_t> sums;
    for (std::size_t i = 1; i < kDropReasonCount; ++i) {
      const auto reason = static_cast<DropReason>(i);
      std::uint64_t sum = world.engine->counters().drops[reason];
      for (const auto& caller : world.callers) sum += caller->engine.counters().drops[reason];
      if (sum != 0) sums[reason] = sum;
    }
    return sums;
  }

  fuzz::World world;
  fuzz::HonestJob job;
};

/// `bytes` after `edit`, called with its fixed part.
template <class T, class Edit>
Datagram edited(Datagram bytes, Edit&& edit) {
  edit(reinterpret_cast<T&>(bytes.front()));
  return bytes;
}
template <class Edit>
Datagram hello(Edit&& edit) {
  return edited<wire::Header>(datagram_of(wire::make<wire::Hello>(kJob)), edit);
}

wire::Column& first_column(Datagram& data) {
  return reinterpret_cast<wire::Column&>(data[sizeof(wire::Data) + sizeof(wire::Descriptor)]);
}

struct Case {
  DropReason reason;
  std::function<void(Bench&)> drop;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      // The codec.
      {DropReason::kTooShort, [](Bench& bench) { bench.to_aggregator(Datagram(8)); }},
      {DropReason::kBadMagic,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.magic = 1; }));
       }},
      {DropReason::kBadVersion,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.version = 2; }));
       }},
      {DropReason::kBadKind,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.kind = 0x21; }));
       }},
      {DropReason::kBadLength,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.length = 127; }));
       }},
      {DropReason::kBadFlags,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.flags = 0x8000; }));
       }},
      {DropReason::kBadEnumeration,
       [](Bench& bench) {
         bench.to_aggregator(
             edited<wire::Data>(bench.data(), [](wire::Data& data) { data.shape.wire_type = 12; }));
       }},
      {DropReason::kBadShape,
       [](Bench& bench) {
         bench.to_aggregator(
             edited<wire::Data>(bench.data(), [](wire::Data& data) { data.shape.columns = 0; }));
       }},
      {DropReason::kBadIndex,
       [](Bench& bench) {
         Datagram data = bench.data();
         first_column(data).index = 1'000'000;
         bench.to_aggregator(data);
       }},
      {DropReason::kBadIntegrity,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.integrity = 1; }));
       }},

      // Membership.
      {DropReason::kNoIntegrity,
       [](Bench& bench) { bench.to_aggregator(hello([](wire::Header&) {}), kElsewhere); }},
      {DropReason::kNotAuthentic,
       [](Bench& bench) {
         bench.to_aggregator(hello([](wire::Header& header) { header.job = kSecretJob; }));
       }},
      {DropReason::kRateLimited,
       [](Bench& bench) {
         while (bench.drops().empty()) bench.to_aggregator(hello([](wire::Header&) {}), kNewcomer);
       }},
      {DropReason::kWrongDirection,
       [](Bench& bench) { bench.to_aggregator(datagram_of(wire::make<wire::Poll>(kJob))); }},
      {DropReason::kUnknownJob,
       [](Bench& bench) { bench.to_aggregator(datagram_of(wire::make<wire::Ack>(99))); }},
      {DropReason::kUnknownToken,
       [](Bench& bench) {
         bench.to_aggregator(datagram_of(wire::make<wire::Ack>(kJob)), kNewcomer);
       }},
      {DropReason::kWrongIncarnation,
       [](Bench& bench) {
         bench.to_aggregator(
             edited<wire::Join>(bench.join(), [](wire::Join& join) { join.incarnation = 1; }),
             kNewcomer);
       }},
      {DropReason::kBadChallenge,
       [](Bench& bench) { bench.to_aggregator(bench.join(), bench.job.rank(0).self()); }},
      {DropReason::kStaleJoin,
       [](Bench& bench) {
         const Datagram first = bench.join();
         const Datagram second = bench.join();
         bench.to_aggregator(second, kNewcomer);
         bench.to_aggregator(first, kNewcomer);
       }},
      {DropReason::kBadJoin,
       [](Bench& bench) {
         bench.to_aggregator(
             edited<wire::Join>(bench.join(), [](wire::Join& join) { join.world_size = 300; }),
             kNewcomer);
       }},
      {DropReason::kNotJoined,
       [](Bench& bench) { bench.to_rank(datagram_of(wire::make<wire::Pending>(kJob))); }},
      {DropReason::kWrongEpoch,
       [](Bench& bench) { bench.to_rank(datagram_of(wire::make<wire::Poll>(kJob))); }},

      // Streams.
      {DropReason::kBadStream,
       [](Bench& bench) {
         auto ack = bench.member_packet<wire::Ack>();
         ack.member.stream = 999;
         bench.to_aggregator(datagram_of(ack));
       }},
      {DropReason::kStaleRound,
       [](Bench& bench) {
         bench.submit();
         bench.world.deliver_all();
         bench.to_aggregator(datagram_of(bench.member_packet<wire::Ack>()));
       }},
      {DropReason::kDuplicate,
       [](Bench& bench) {
         const Datagram data = bench.data();
         bench.to_aggregator(data);
         bench.to_aggregator(data);
       }},
      {DropReason::kFutureRound,
       [](Bench& bench) {
         auto ack = bench.member_packet<wire::Ack>();
         ack.position = 1'000'000;
         bench.to_aggregator(datagram_of(ack));
       }},
      {DropReason::kUnfitting,
       [](Bench& bench) {
         Datagram data = bench.data();
         wire::Column& column = first_column(data);
         column.next = column.next + 1;  // the next column's
         bench.to_aggregator(data);
       }},
      {DropReason::kNoBuffer,
       [](Bench& bench) {
         bench.job.rank(0).sink.pool->dry = true;
         bench.job.rank(0).submit(kOp, bench.world.now);
       }},
  };
  return all;
}

}  // namespace

TEST_CASE("every reason to drop a packet has a case") {
  for (std::size_t i = 1; i < kDropReasonCount; ++i) {
    const auto reason = static_cast<DropReason>(i);
    INFO(name(reason));
    CHECK(std::any_of(cases().begin(), cases().end(),
                      [&](const Case& c) { return c.reason == reason; }));
  }
}

TEST_CASE("what drops a packet counts it under its reason, and under no other") {
  for (const Case& c : cases()) {
    INFO(name(c.reason));
    Bench bench;
    REQUIRE(bench.drops().empty());
    c.drop(bench);
    CHECK(bench.drops() == std::map<DropReason, std::uint64_t>{{c.reason, 1}});
  }
}

}  // namespace drops_tests
