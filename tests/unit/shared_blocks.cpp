// Blocks that go by reference: what an aggregator's engine reads and writes in slots, and when a
// job goes so.
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "common/protocol/slots.hpp"
#include "tests/sim/shared_memory.hpp"
#include "tests/unit/aggregator_bench.hpp"

using namespace sluice;
using namespace sluice::parts;

namespace {

constexpr std::uint64_t kFirstSlots = 500;
constexpr std::uint64_t kResults = 600;
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

  /// Writes a block of `value`s into the rank's slot of a round, and sends the DATA that refers to
  /// it.
  std::vector<Sent> refer(unsigned rank, std::uint64_t round, float value, OpNumber op) {
    const std::vector<float> block(kBlock, value);
    const auto slot =
        contribution_slots(regions[slots[rank]]->bytes(), session()).at(0, Round{round});
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
  float sum_in_slot(std::uint64_t round) const {
    float first = 0;
    std::memcpy(&first, result_slots(sums->bytes(), session()).at(0, Round{round}).data(),
                sizeof first);
    return first;
  }

  sim::SharedRegions regions;
  sim::AggregatorMemory memory;
  std::shared_ptr<sim::SharedRegion> sums;
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
    SharingBench bench(2 * limits::kReferencedRoundBytes);  // H + 1 = 3 are needed
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

TEST_CASE("a job whose rank's memory fails ends before anybody is told of a sum") {
  /// As the bench's, but some region may have failed.
  struct FailingMemory final : aggregator::SharedMemory {
    explicit FailingMemory(aggregator::SharedMemory& sound) : sound(sound) {}
    aggregator::SharedBytes<const std::byte> of_worker(std::uint64_t id) override {
      auto bytes = sound.of_worker(id);
      bytes.lost = &lost[id];
      return bytes;
    }
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

TEST_CASE("every epoch has a region of its own") {
  SharingBench bench;
  bench.form();
  REQUIRE(bench.formed_by_reference());
  CHECK(bench.memory.results_bytes(kJob, kResults) == 0);
  CHECK(bench.memory.results_for(kJob, kResults + 1)->id() == kResults + 1);
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
