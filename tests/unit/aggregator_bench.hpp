// One aggregator's engine and the packets of a job's ranks, written by hand: for tests that drive
// it packet by packet.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "aggregator/engine/engine.hpp"
#include "common/protocol/secret.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"

namespace sluice::parts {

using namespace std::chrono_literals;

inline constexpr std::uint32_t kJob = 42;
inline constexpr std::uint32_t kBlock = 4;  // elements

inline Endpoint at_rank(unsigned rank) {
  return {.port_id = static_cast<std::uint16_t>(100 + rank), .ipv4 = 10 + rank};
}

struct Seat {
  std::uint64_t nonce = 0;
  std::uint64_t token = 0;
};

/// One aggregator with a job of `ranks`, one stream, one column.
struct Bench {
  explicit Bench(unsigned n = 2, std::uint8_t h = 2) : ranks(n), history(h) {
    config.incarnation = 77;
    config.payload_bytes = 508;
    config.unique = [this] { return ++ids; };
    config.liveness_timeout = 1s;
    config.formation_timeout = 2s;
  }

  aggregator::Engine& engine() {
    if (!made)
      made = std::make_unique<aggregator::Engine>(
          config, [this](const aggregator::JobEvent& event) { events.push_back(event); });
    return *made;
  }

  std::vector<Sent> give(unsigned rank, std::span<const std::byte> bytes) {
    Endpoint from = at_rank(rank);
    from.off_machine = off_machine;
    if (one_port) from.port_id = 100;
    engine().receive(from, received(sink, bytes), now, sink);
    return sink.take();
  }
  template <class T>
  requires std::is_trivially_copyable_v<T> std::vector<Sent> give(unsigned rank, const T& packet) {
    return give(rank, wire::bytes_of(packet));
  }

  std::uint64_t challenge_serial(unsigned rank, std::uint64_t nonce, std::uint32_t job = kJob) {
    auto hello = wire::make<wire::Hello>(job);
    hello.nonce = nonce;
    hello.rank = static_cast<std::uint16_t>(rank);
    const auto answer = give(rank, hello);
    REQUIRE(answer.size() == 1);
    const auto& challenge = answer[0].packet().as<wire::Challenge>();
    challenges[challenge.serial] = challenge.challenge;
    return challenge.serial;
  }
  wire::Join join_packet(unsigned rank, std::uint64_t nonce, std::uint64_t serial) {
    auto join = wire::make<wire::Join>(kJob);
    join.nonce = nonce;
    join.incarnation = config.incarnation;
    join.serial = serial;
    if (const auto found = challenges.find(serial); found != challenges.end())
      join.challenge = found->second;
    join.rank = static_cast<std::uint16_t>(rank);
    join.world_size = static_cast<std::uint16_t>(ranks);
    join.streams = streams;
    join.block_elements = kBlock;
    join.payload_bytes = 508;
    join.shards = 1;
    join.history = history;
    join.flags = wire::kJoinNoProgress;
    return join;
  }
  std::vector<Sent> join(unsigned rank, std::uint64_t nonce) {
    return give(rank, join_packet(rank, nonce, challenge_serial(rank, nonce)));
  }

  void form() {
    std::vector<Sent> last;
    for (unsigned r = 0; r < ranks; ++r) last = join(r, 1000 + r);
    seated(of_kind<wire::Welcome>(last));
  }
  void seated(const std::vector<Sent>& welcomes) {
    REQUIRE(welcomes.size() == ranks);
    seats.resize(ranks);
    for (unsigned r = 0; r < ranks; ++r) {
      const auto& welcome = welcomes[r].packet().as<wire::Welcome>();
      CHECK(welcomes[r].to.ipv4 == at_rank(r).ipv4);
      seats[r] = {welcome.nonce, welcome.token};
      generation = welcome.generation;
      epoch = welcome.epoch;
    }
  }

  /// Forms the job with ranks that have made progress elsewhere.
  void resume(std::uint8_t flags = 0) {
    std::vector<Sent> last;
    for (unsigned r = 0; r < ranks; ++r) {
      auto join = join_packet(r, 1000 + r, challenge_serial(r, 1000 + r));
      join.generation = 99;
      join.flags = flags;
      last = give(r, join);
    }
    seated(of_kind<wire::Welcome>(last));
  }
  std::vector<Sent> sync(unsigned rank, std::uint64_t applied) {
    auto packet = wire::make<wire::Sync>(kJob);
    packet.member = member(rank, packet.member);
    packet.applied = applied;
    return give(rank, packet);
  }

  wire::MemberHeader member(unsigned rank, wire::MemberHeader header) const {
    header.token = seats[rank].token;
    header.rank = static_cast<std::uint16_t>(rank);
    return header;
  }

  /// A tensor of `blocks` full blocks on the only stream; W as it follows from the payload.
  Geometry geometry(std::uint64_t blocks, OpNumber op = 0) const {
    return Geometry::make(blocks * kBlock, ElementType::kFloat32, kBlock, 508, streams, op);
  }

  std::vector<std::byte> data(unsigned rank, std::uint64_t round, bool first,
                              const std::vector<Block>& blocks, std::uint64_t tensor_blocks,
                              OpNumber op = 0, bool ask = false) const {
    return block_packet<wire::Data>(
        kJob, wire::shape_of(geometry(tensor_blocks, op)), first, blocks,
        [&](wire::Data& fixed, wire::Descriptor*) {
          fixed.member = member(rank, fixed.member);
          fixed.round = round;
          fixed.op = op;
          fixed.flags = static_cast<std::uint8_t>((first ? wire::kDataOpening : 0) |
                                                  (ask ? wire::kDataAsk : 0));
        });
  }
  /// The first round of a one-block op.
  std::vector<std::byte> short_op(unsigned rank, std::uint64_t round, float value, OpNumber op,
                                  bool ask = false) const {
    return data(rank, round, true, {{0, kNoBlock.value, std::vector<float>(kBlock, value)}}, 1, op,
                ask);
  }
  /// The block of column 0 in that row.
  std::uint32_t in_row(std::uint32_t row) const {
    return static_cast<std::uint32_t>(geometry(1).block_at(0, row));
  }
  /// An op of five blocks in each column. An owner owns all of column 0; the other columns end with
  /// the first round.
  std::vector<std::byte> long_op(unsigned rank, std::uint64_t round, bool owner) const {
    const Geometry all = geometry(5u * geometry(1).columns);
    std::vector<Block> blocks(all.columns);
    for (std::uint32_t c = 0; c < all.columns && round == 0; ++c) blocks[c].index = c;
    blocks[0].index = in_row(static_cast<std::uint32_t>(round));
    if (owner) blocks[0].next = all.following({blocks[0].index}).value;
    if (owner) blocks[0].elements.assign(kBlock, 1);
    return data(rank, round, round == 0, blocks, all.blocks);
  }
  /// A rank's run of pairs.
  std::vector<std::byte> keyed_data(unsigned rank, std::uint64_t round, bool opening,
                                    const wire::Shape& shape, std::uint64_t horizon,
                                    std::uint64_t following, std::span<const std::byte> run = {},
                                    OpNumber op = 0) const {
    auto packet = wire::make<wire::KeyValueData>(kJob);
    packet.data.member = member(rank, packet.data.member);
    packet.data.member.header.length = static_cast<std::uint16_t>(
        sizeof packet + (opening ? sizeof(wire::Descriptor) : 0) + run.size());
    packet.data.round = round;
    packet.data.op = op;
    packet.data.shape = shape;
    packet.data.flags = opening ? wire::kDataOpening : 0;
    packet.horizon = horizon;
    packet.following = following;
    packet.run_bytes = static_cast<std::uint32_t>(run.size());
    const auto fixed = wire::bytes_of(packet);
    std::vector<std::byte> bytes(fixed.begin(), fixed.end());
    if (opening) {
      wire::Descriptor descriptor;
      descriptor.collective = static_cast<std::uint8_t>(wire::Collective::kSparseAllReduce);
      descriptor.op_type = shape.wire_type;
      descriptor.reduction = static_cast<std::uint8_t>(Reduction::kSum);
      const auto described = wire::bytes_of(descriptor);
      bytes.insert(bytes.end(), described.begin(), described.end());
    }
    bytes.insert(bytes.end(), run.begin(), run.end());
    return bytes;
  }
  /// The first op, of one block; what the last contribution brings.
  std::vector<Sent> short_op_of_all() {
    std::vector<Sent> last;
    for (unsigned r = 0; r < ranks; ++r) last = give(r, short_op(r, 0, 1, 0));
    return last;
  }
  std::vector<Sent> ack(unsigned rank, std::uint64_t position) {
    auto packet = wire::make<wire::Ack>(kJob);
    packet.member = member(rank, packet.member);
    packet.position = position;
    return give(rank, packet);
  }
  std::vector<Sent> probe(unsigned rank, std::uint64_t position, std::uint64_t have = 0) {
    auto packet = wire::make<wire::Probe>(kJob);
    packet.member = member(rank, packet.member);
    packet.position = position;
    packet.have = have;
    return give(rank, packet);
  }
  std::vector<Sent> keep_alive(unsigned rank, std::uint64_t number, std::uint64_t heard = 0) {
    auto packet = wire::make<wire::KeepAlive>(kJob);
    packet.member = member(rank, packet.member);
    packet.number = number;
    packet.newest_beacon = heard;
    return give(rank, packet);
  }
  std::vector<Sent> leave(unsigned rank, bool abort = false) {
    auto packet = wire::make<wire::Leave>(kJob);
    packet.member = member(rank, packet.member);
    packet.abort = abort ? 1 : 0;
    return give(rank, packet);
  }
  std::vector<Sent> leave(unsigned rank, const AbortInfo& why, bool abort = true) {
    auto packet = wire::make<wire::Leave>(kJob);
    packet.member = member(rank, packet.member);
    packet.abort = abort ? 1 : 0;
    set_cause(packet, why);
    return give(rank, packet);
  }
  std::vector<Sent> pass(Duration time) {
    now += time;
    engine().on_time(now, sink);
    return sink.take();
  }

  std::uint64_t drops(DropReason reason) { return engine().counters().drops[reason]; }

  unsigned ranks;
  std::uint8_t history;
  std::uint16_t streams = 1;
  bool off_machine = false;
  bool one_port = false;  ///< all ranks are behind it
  std::uint64_t ids = 5000;
  aggregator::EngineConfig config;
  Sink sink;
  std::vector<aggregator::JobEvent> events;
  std::unique_ptr<aggregator::Engine> made;
  Time now = Time{1h};
  std::map<std::uint64_t, Cookie> challenges;  // by serial
  std::vector<Seat> seats;
  std::uint64_t generation = 0;
  std::uint64_t epoch = 0;
};

inline float sum_of(const Sent& result) {
  return blocks_of(result.packet())[0].elements.at(0);
}

inline AbortInfo abort_of(const std::vector<Sent>& sent) {
  const auto aborts = of_kind<wire::Abort>(sent);
  REQUIRE(!aborts.empty());
  return to_info(aborts[0].packet().as<wire::Abort>());
}

}  // namespace sluice::parts
