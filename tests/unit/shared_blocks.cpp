// Blocks that go by reference: what an aggregator's engine reads and writes in slots, and when a
// job goes so.
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "common/protocol/slots.hpp"
#include "tests/sim/shared_memory.hpp"
#include "tests/unit/aggregator_bench.hpp"
#include "tests/unit/catch.hpp"

using namespace sluice;
using namespace sluice::parts;

namespace {

constexpr std::uint64_t kFirstSlots = 500;
constexpr std::uint64_t kResults = 600;
constexpr std::uint64_t kFirstTensor = 701;
constexpr std::size_t kMiB = std::size_t{1} << 20;

/// A job of two ranks that share memory with their aggregator.
struct SharingBench : Bench {
  explicit SharingBench(std::size_t slots_bytes = kMiB, std::size_t results_bytes = kMiB)
      : memory(regions, results_bytes) {
    for (unsigned r = 0; r < ranks; ++r) {
      slots.push_back(kFirstSlots + r);
      regions[slots[r]] = std::make_shared<sim::SharedRegion>(slots[r], slots_bytes);
    }
    sums = memory.results_for(kJob, kResults);
    results = kResults;
    config.shared_memory = &memory;
  }

  bool formed_by_reference() const {
    REQUIRE(!events.empty());
    REQUIRE(events.back().kind == aggregator::JobEvent::Kind::kFormed);
    return events.back().session.by_reference;
  }
  const Session& session() const { return events.back().session; }

  /// As who was taken in elsewhere, in a generation that goes by reference, and has no progress.
  std::vector<Sent> join_holding_references(unsigned rank, std::uint64_t nonce) {
    auto join = join_packet(rank, nonce, challenge_serial(rank, nonce));
    join.generation = 5;
    join.flags = wire::kJoinNoProgress | wire::kJoinByReference;
    return give(rank, join);
  }

  /// Writes a block of `value`s into the rank's slot, and sends the DATA that refers to it.
  std::vector<Sent> refer(unsigned rank, std::uint64_t round, float value, OpNumber op) {
    const std::vector<float> block(kBlock, value);
    const auto slot = ContributionSlots(regions[slots[rank]]->bytes(), session()).at(StreamId{0});
    std::memcpy(slot.data(), block.data(), kBlock * sizeof(float));
    return give(rank, reference(rank, round, op));
  }
  std::vector<std::byte> reference(unsigned rank, std::uint64_t round, OpNumber op) const {
    const Geometry g =
        Geometry::make(kBlock, ElementType::kFloat32, kBlock, 508, streams, op, true);
    auto bytes = block_packet<wire::Data>(kJob, wire::shape_of(g), true, {{0, kNoBlock.value}},
                                          [&](wire::Data& fixed, wire::Descriptor*) {
                                            fixed.member = member(rank, fixed.member);
                                            fixed.round = round;
                                            fixed.op = op;
                                            fixed.flags = wire::kDataOpening;
                                          });
    reinterpret_cast<wire::Column*>(bytes.data() + sizeof(wire::Data) + sizeof(wire::Descriptor))
        ->flags = wire::kColumnReferenced;
    return bytes;
  }
  /// Shares a tensor of one block of `value`s, by a rank, and gives its region's id.
  std::uint64_t share_tensor(unsigned rank, float value) {
    const std::uint64_t id = kFirstTensor + 8 * tensors.size();
    auto& tensor = tensors.emplace_back(kBlock, value);
    regions[id] = std::make_shared<sim::SharedRegion>(id, std::as_writable_bytes(std::span(tensor)),
                                                      slots[rank]);
    return id;
  }
  /// The DATA of an op of one block that is in a tensor.
  std::vector<Sent> refer_to_tensor(unsigned rank, std::uint64_t round, std::uint64_t region,
                                    std::uint64_t offset, OpNumber op) {
    auto bytes = reference(rank, round, op);
    const std::size_t columns = bytes.size();
    reinterpret_cast<wire::Column*>(bytes.data() + sizeof(wire::Data) + sizeof(wire::Descriptor))
        ->flags = wire::kColumnInTensor;
    wire::TensorPlace place;
    place.region = region;
    place.offset = offset;
    bytes.resize(columns + sizeof place);
    std::memcpy(bytes.data() + columns, &place, sizeof place);
    reinterpret_cast<wire::Header*>(bytes.data())->length =
        static_cast<std::uint16_t>(bytes.size());
    return give(rank, bytes);
  }
  float sum_in_slot(std::uint64_t round) const {
    float first = 0;
    const auto slot = ResultSlots(sums->bytes(), session()).at(StreamId{0}, Round{round});
    std::memcpy(&first, slot.sums.data(), sizeof first);
    return first;
  }

  sim::SharedRegions regions;
  sim::AggregatorMemory memory;
  std::shared_ptr<sim::SharedRegion> sums;
  std::deque<std::vector<float>> tensors;
};

}  // namespace

TEST_CASE("sums of blocks in slots are written to a slot, and RESULT refers to it") {
  SharingBench bench;
  bench.form();
  REQUIRE(bench.formed_by_reference());
  bench.refer(1, 0, 2, 0);  // held: its block is read when rank 0's is in
  const auto results = of_kind<wire::Result>(bench.refer(0, 0, 1, 0));
  REQUIRE(results.size() == 2);
  CHECK(results[0].packet().has_references());
  CHECK(!results[0].packet().has_blocks());
  CHECK(bench.sum_in_slot(0) == 3);
  bench.refer(0, 1, 10, 1);
  bench.refer(1, 1, 20, 1);
  CHECK(bench.sum_in_slot(1) == 30);
  CHECK(bench.sum_in_slot(0) == 3);  // H rounds have slots of their own
}

TEST_CASE("blocks are summed where they lie, in slots or in tensors") {
  SharingBench bench;
  bench.form();
  const std::uint64_t tensor = bench.share_tensor(0, 5);
  bench.refer_to_tensor(0, 0, tensor, 0, 0);
  CHECK(of_kind<wire::Result>(bench.refer(1, 0, 2, 0)).size() == 2);
  CHECK(bench.sum_in_slot(0) == 7);
}

TEST_CASE("a reference to what its rank does not share, or beyond its end, is not taken") {
  SharingBench bench;
  bench.form();
  const std::uint64_t own = bench.share_tensor(0, 5);
  const std::uint64_t of_other = bench.share_tensor(1, 6);
  const struct {
    std::uint64_t region, offset;
  } wrong[] = {{own, 1},
               {own, kBlock * sizeof(float)},
               {own, ~std::uint64_t{0}},
               {own, ~std::uint64_t{0} - kBlock * sizeof(float) + 1},
               {own, std::uint64_t{1} << 63},
               {of_other, 0},
               {bench.slots[0], 0},  // has no tensors
               {12'345, 0},
               {0, 0}};
  std::uint64_t drops = 0;
  for (const auto& place : wrong) {
    CHECK(bench.refer_to_tensor(0, 0, place.region, place.offset, 0).empty());
    CHECK(bench.drops(DropReason::kUnfitting) == ++drops);
  }
  bench.refer_to_tensor(0, 0, own, 0, 0);
  bench.refer(1, 0, 2, 0);
  CHECK(bench.sum_in_slot(0) == 7);
}

TEST_CASE("a tensor that goes away is read to the end of the round, and not longer") {
  SharingBench bench;
  bench.form();
  const std::uint64_t tensor = bench.share_tensor(0, 5);
  const std::weak_ptr<sim::SharedRegion> region = bench.regions[tensor];
  bench.refer_to_tensor(0, 0, tensor, 0, 0);
  bench.regions.erase(tensor);
  bench.pass(1ms);
  CHECK(!region.expired());
  bench.refer(1, 0, 2, 0);
  CHECK(bench.sum_in_slot(0) == 7);
  bench.pass(1ms);
  CHECK(region.expired());
}

TEST_CASE("no sum is told of once the job has ended for a rank whose tensor was read") {
  SharingBench bench;
  bench.form();
  bench.refer_to_tensor(0, 0, bench.share_tensor(0, 5), 0, 0);
  const auto memory = bench.regions[bench.slots[0]]->bytes();
  ContributionSlots(memory, bench.session()).end();
  CHECK(bench.refer(1, 0, 2, 0).empty());
  std::fill(memory.begin(), memory.end(), std::byte{0});  // it takes that back
  CHECK(of_kind<wire::Result>(bench.probe(1, 0)).empty());
}

TEST_CASE("a session takes packets of its own kind only") {
  SharingBench by_reference;
  by_reference.form();
  CHECK(by_reference.give(0, by_reference.short_op(0, 0, 1, 0)).empty());
  CHECK(by_reference.drops(DropReason::kUnfitting) == 1);

  SharingBench in_packets;
  in_packets.config.shared_memory = nullptr;
  in_packets.form();
  REQUIRE(!in_packets.formed_by_reference());
  CHECK(in_packets.give(0, in_packets.reference(0, 0, 0)).empty());
  CHECK(in_packets.drops(DropReason::kUnfitting) == 1);
}

TEST_CASE("blocks go in packets where a rank shares nothing, or too little") {
  SECTION("one has no memory") {
    SharingBench bench;
    bench.slots[1] = 0;
    bench.form();
    CHECK(!bench.formed_by_reference());
  }
  SECTION("one names memory that nobody has shared") {
    SharingBench bench;
    bench.slots[1] = 12'345;
    bench.form();
    CHECK(!bench.formed_by_reference());
  }
  SECTION("its quota has no room for the region of the sums, though for packets") {
    SharingBench bench;
    bench.config.job_memory_bytes_max = limits::kResultsBytes;
    bench.form();
    CHECK(!bench.formed_by_reference());
  }
  SECTION("slots are too few") {
    SharingBench bench(limits::kReferencedRoundBytes - 1);
    bench.form();
    CHECK(!bench.formed_by_reference());
  }
  SECTION("results have too little room") {
    SharingBench bench(kMiB, limits::kReferencedRoundBytes);  // H = 2 are needed
    bench.form();
    CHECK(!bench.formed_by_reference());
  }
}

TEST_CASE("a rank that names a region which another session took is waited for") {
  SharingBench bench;
  bench.results = kResults - 1;
  CHECK(of_kind<wire::Pending>(bench.join(0, 7)).size() == 1);
  bench.results = kResults;
  CHECK(of_kind<wire::Welcome>(bench.join(1, 8)).empty());
  const auto welcomes = of_kind<wire::Welcome>(bench.join(0, 7));
  REQUIRE(welcomes.size() == 2);
  CHECK(bench.formed_by_reference());
  CHECK(welcomes[0].packet().as<wire::Welcome>().results == kResults);
}

TEST_CASE("a new generation goes by reference if that of any rank did") {
  const unsigned holder = GENERATE(0u, 1u);
  SharingBench bench;
  bench.join_holding_references(holder, 7);
  const unsigned other = 1 - holder;
  auto join = bench.join_packet(other, 8, bench.challenge_serial(other, 8));
  join.generation = 4;  // which went in packets
  CHECK(of_kind<wire::Welcome>(bench.give(other, join)).size() == 2);
  CHECK(bench.formed_by_reference());
}

TEST_CASE("a formation in packets is abandoned for a rank that holds another by reference") {
  SharingBench bench;
  bench.slots[0] = 0;  // as its JOIN of before said
  bench.form();
  REQUIRE(!bench.formed_by_reference());
  bench.slots[0] = kFirstSlots;
  bench.join_holding_references(0, 55);
  for (std::uint64_t n = 1; bench.events.back().kind == aggregator::JobEvent::Kind::kFormed; ++n) {
    REQUIRE(n < 20);
    bench.keep_alive(1, n);
    CHECK(of_kind<wire::Abort>(bench.pass(100ms)).empty());
  }
  CHECK(bench.events.back().kind == aggregator::JobEvent::Kind::kFormationAbandoned);
  CHECK(of_kind<wire::Refused>(bench.keep_alive(1, 30)).size() == 1);
  bench.join_holding_references(0, 56);
  CHECK(of_kind<wire::Welcome>(bench.join(1, 57)).size() == 2);
  CHECK(bench.formed_by_reference());
}

TEST_CASE("a job whose rank's memory fails ends before anybody is told of a sum") {
  /// As the bench's, but some region may have failed.
  struct FailingMemory final : aggregator::SharedMemory {
    explicit FailingMemory(aggregator::SharedMemory& sound) : sound(sound) {}
    aggregator::SharedBytes<const std::byte> of_worker(std::uint64_t id) override {
      auto bytes = sound.of_worker(id);
      bytes.lost = &lost[id];
      return bytes;
    }
    aggregator::SharedBytes<const std::byte> tensors(std::uint64_t id,
                                                     std::uint64_t slots) override {
      return sound.tensors(id, slots);
    }
    std::uint64_t changes() const override { return 0; }
    std::size_t results_bytes(std::uint32_t job, std::uint64_t id) override {
      return sound.results_bytes(job, id);
    }
    aggregator::SharedBytes<std::byte> take_results(std::uint32_t job, std::uint64_t id) override {
      return sound.take_results(job, id);
    }
    aggregator::SharedMemory& sound;
    std::map<std::uint64_t, std::atomic<bool>> lost;
  };
  SharingBench bench;
  FailingMemory memory(bench.memory);
  bench.config.shared_memory = &memory;
  bench.form();
  REQUIRE(bench.formed_by_reference());
  bench.refer(0, 0, 1, 0);
  memory.lost[bench.slots[1]] = true;
  const auto sent = bench.refer(1, 0, 2, 0);
  CHECK(of_kind<wire::Result>(sent).empty());
  const auto why = abort_of(sent);
  CHECK(why.reason == wire::AbortReason::kRankDisconnected);
  CHECK(why.rank_a == Rank{1});
  CHECK(explain(why) == "rank 1 is lost: the memory that it shares cannot be read any more");
  REQUIRE(!bench.events.empty());
  CHECK(bench.events.back().kind == aggregator::JobEvent::Kind::kAborted);
}

TEST_CASE("a round that waits for a buffer is not tried again when its job has ended for a rank") {
  SharingBench bench;
  bench.form();
  bench.refer(0, 0, 1, 0);
  bench.sink.pool->dry = true;
  CHECK(bench.refer(1, 0, 2, 0).empty());
  CHECK(bench.engine().next_deadline() <= bench.now);
  ContributionSlots(bench.regions[bench.slots[0]]->bytes(), bench.session()).end();
  bench.sink.pool->dry = false;
  CHECK(of_kind<wire::Result>(bench.pass(1ms)).empty());
  CHECK(bench.engine().next_deadline() > bench.now);
}

TEST_CASE("every epoch has a region of its own") {
  SharingBench bench;
  bench.form();
  REQUIRE(bench.formed_by_reference());
  CHECK(bench.memory.results_bytes(kJob, kResults) == 0);
  CHECK(bench.memory.results_for(kJob, kResults + 1)->id() == kResults + 1);
}

TEST_CASE("a stream that goes by reference resumes with the first round that no rank has") {
  SharingBench bench;
  bench.resume(wire::kJoinByReference);
  CHECK(of_kind<wire::Status>(bench.sync(0, 6)).at(0).packet().as<wire::Status>().live == 0);
  const auto live = of_kind<wire::Status>(bench.sync(1, 5));
  REQUIRE(live.size() == 2);
  for (const Sent& status : live) CHECK(status.packet().as<wire::Status>().round == 6);

  // Rank 1 reads what it lacks, and may need everybody if this aggregator fails, too.
  CHECK(of_kind<wire::Left>(bench.leave(0)).empty());
  bench.pass(std::chrono::milliseconds(10));
  const auto polls = of_kind<wire::Poll>(bench.leave(0));
  REQUIRE(polls.size() == 1);
  CHECK(polls[0].to == at_rank(1));
  CHECK(bench.probe(1, 5).empty());  // it was told that the stream is at round 6
  CHECK(bench.drops(DropReason::kStaleRound) == 1);
  bench.ack(1, 6);
  CHECK(of_kind<wire::Left>(bench.leave(0)).size() == 1);
}

TEST_CASE("a result's slot has the packet that refers to it, too") {
  SharingBench bench;
  bench.form();
  bench.refer(0, 0, 1, 0);
  const auto results = of_kind<wire::Result>(bench.refer(1, 0, 2, 0));
  REQUIRE(results.size() == 2);
  const auto slot = ResultSlots(bench.sums->bytes(), bench.session()).at(StreamId{0}, Round{0});
  const auto sent = results[0].packet().bytes();
  CHECK(std::equal(sent.begin(), sent.end(), slot.packet.begin()));
}

TEST_CASE("a generation that goes by reference is refused where no memory is shared") {
  SharingBench bench;
  bench.config.shared_memory = nullptr;
  auto join = bench.join_packet(0, 7, bench.challenge_serial(0, 7));
  join.generation = 99;
  join.flags = wire::kJoinByReference;
  const auto why = abort_of(bench.give(0, join));
  CHECK(why.reason == wire::AbortReason::kRefusedSetting);
  CHECK(why.field == wire::Field::kSharedMemory);
  CHECK(explain(why).find("shared memory") != std::string::npos);
}

TEST_CASE("a generation that goes by reference names the rank whose memory is not there") {
  SharingBench bench;
  bench.config.formation_timeout = std::chrono::milliseconds(50);
  bench.regions.erase(bench.slots[1]);  // it has ended, and its JOIN is an old copy
  for (unsigned rank = 0; rank < bench.ranks; ++rank) {
    auto join = bench.join_packet(rank, 7 + rank, bench.challenge_serial(rank, 7 + rank));
    join.generation = 99;
    join.flags |= wire::kJoinByReference;
    CHECK(of_kind<wire::Abort>(bench.give(rank, join)).empty());
  }
  const auto error = to_error(abort_of(bench.pass(std::chrono::milliseconds(50))), kJob);
  CHECK(error.code() == ErrorCode::kFormationFailed);
  CHECK(error.rank() == 1);
  CHECK(std::string(error.what()).find("can read none of rank 1") != std::string::npos);
}
