// What a round of pairs comes to: in which order runs are summed, where it ends, what is rejected.
#include "aggregator/engine/keyed_combiner.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/protocol/build.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"

using namespace sluice;
using aggregator::KeyedCombiner;

namespace {

/// One key of a chunk, and its row of one element.
struct Pair {
  std::uint64_t key = 0;
  float value = 0;
};

/// The only stream of a job, and its op of floats.
class Bench {
 public:
  explicit Bench(std::uint16_t ranks, double threshold = 0, std::uint16_t streams = 1,
                 std::uint64_t key_bound = 4096)
      : session_{.ranks = ranks, .streams = streams, .payload_bytes = 508, .history = 2},
        geometry_(KeyedGeometry::make(key_bound, 1, ElementType::kFloat32, session_, 0).value()),
        combiner(session_),
        threshold_(threshold) {}

  std::vector<std::byte> run_of(const std::vector<Pair>& pairs) const {
    std::vector<std::byte> room(1 << 16);
    ChunkWriter writer(room, geometry_.format());
    for (std::size_t i = 0, end; i < pairs.size(); i = end) {
      const std::uint64_t number = geometry_.chunk_of(pairs[i].key);
      std::vector<std::uint8_t> offsets;
      std::vector<float> rows;
      for (end = i; end < pairs.size() && geometry_.chunk_of(pairs[end].key) == number; ++end) {
        offsets.push_back(static_cast<std::uint8_t>(pairs[end].key % geometry_.chunk_keys()));
        rows.push_back(pairs[end].value);
      }
      std::memcpy(writer.append(number, offsets), rows.data(), rows.size() * sizeof(float));
    }
    room.resize(writer.size());
    return room;
  }

  void take(unsigned rank, const std::vector<Pair>& pairs, std::uint64_t following = kNoChunk) {
    const auto run = run_of(pairs);
    const Packet packet = data(following, run);
    REQUIRE(combiner.fits(packet));
    combiner.take(Rank{static_cast<std::uint16_t>(rank)}, packet, {});
  }

  KeyedCombiner::Merged merge(std::size_t room = 380) {
    REQUIRE(room <= room_.size());
    return combiner.merge(std::span(room_).first(room), scratch_);
  }
  RankSet start_round(const KeyedCombiner::Merged& merged) {
    return combiner.start_round(merged, scratch_);
  }

  std::vector<Pair> pairs_of(std::span<const std::byte> run) const {
    std::vector<Pair> pairs;
    ChunkReader reader(run, geometry_.format());
    KeyedChunk chunk;
    while (reader.next(chunk) == ChunkReader::Read::kChunk) {
      for (std::size_t i = 0; i < chunk.count; ++i) {
        pairs.push_back({(chunk.number << geometry_.chunk_bits) + chunk.offsets[i]});
        std::memcpy(&pairs.back().value, chunk.rows + i * sizeof(float), sizeof(float));
      }
    }
    return pairs;
  }

  std::uint64_t key_in(std::uint64_t chunk) const { return chunk << geometry_.chunk_bits; }

 private:
  Session session_;
  KeyedGeometry geometry_;

 public:
  KeyedCombiner combiner;

 private:
  /// An opening KV_DATA. The first begins the op.
  Packet data(std::uint64_t following, std::span<const std::byte> run) {
    auto fixed = wire::make<wire::KeyValueData>(1);
    fixed.data.flags = wire::kDataOpening;
    fixed.data.shape = wire::shape_of(geometry_);
    fixed.horizon = begun_ ? combiner.horizon() : 0;
    fixed.following = following;
    fixed.run_bytes = static_cast<std::uint32_t>(run.size());
    wire::Descriptor descriptor;
    descriptor.collective = static_cast<std::uint8_t>(wire::Collective::kSparseAllReduce);
    descriptor.op_type = static_cast<std::uint8_t>(ElementType::kFloat32);
    descriptor.reduction = static_cast<std::uint8_t>(Reduction::kSum);
    descriptor.begin = std::bit_cast<std::uint64_t>(threshold_);
    auto& bytes = packets_.emplace_back(sizeof fixed + sizeof descriptor);
    std::memcpy(bytes.data() + sizeof fixed, &descriptor, sizeof descriptor);
    bytes.insert(bytes.end(), run.begin(), run.end());
    fixed.data.member.header.length = static_cast<std::uint16_t>(bytes.size());
    std::memcpy(bytes.data(), &fixed, sizeof fixed);
    Packet packet;
    REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
    if (!begun_) REQUIRE(combiner.begin(packet, StreamId{0}, session_, false));
    begun_ = true;
    return packet;
  }

  double threshold_;
  bool begun_ = false;
  std::vector<std::byte> room_ = std::vector<std::byte>(4096);
  std::vector<std::vector<std::byte>> packets_;
  aggregator::KeyedScratch scratch_;
};

}  // namespace

TEST_CASE("pairs are summed lowest rank first, whoever's run came first") {
  Bench bench(3);
  bench.take(2, {{7, -1e8f}});
  bench.take(0, {{7, 1e8f}, {8, 1}});
  bench.take(1, {{7, 1}, {9, 5}});
  const auto merged = bench.merge();
  CHECK(merged.next == kNoChunk);
  const auto sums = bench.pairs_of(merged.run);
  REQUIRE(sums.size() == 3);
  CHECK(sums[0].key == 7);
  CHECK(sums[0].value == 0);  // 1 is lost beside 1e8
  CHECK(sums[1].value == 1);
  CHECK(sums[2].value == 5);
  CHECK(bench.start_round(merged).size() == 3);
}

TEST_CASE("a round ends before the least chunk that a rank has yet to send") {
  Bench bench(2);
  bench.take(0, {{bench.key_in(1), 1}}, 3);
  bench.take(1, {{bench.key_in(1), 1}, {bench.key_in(3), 1}}, 5);
  const auto merged = bench.merge();
  CHECK(merged.next == 3);
  CHECK(bench.pairs_of(merged.run).size() == 1);
  const RankSet used_up = bench.start_round(merged);
  CHECK(used_up.contains(Rank{0}));
  CHECK(!used_up.contains(Rank{1}));
  // The other's run lasts, and is summed with what comes.
  bench.take(0, {{bench.key_in(3), 1}, {bench.key_in(4), 1}});
  const auto rest = bench.merge();
  CHECK(rest.next == 5);
  const auto sums = bench.pairs_of(rest.run);
  REQUIRE(sums.size() == 2);
  CHECK(sums[0].value == 2);
  CHECK(bench.start_round(rest).contains(Rank{1}));
}

TEST_CASE("a round is cut where its result is full, and the next begins there") {
  Bench bench(1, 4);
  const std::size_t chunk = 2 + 1 + sizeof(float);  // of one key
  bench.take(0, {{bench.key_in(0), 4},
                 {bench.key_in(1), 4},
                 {bench.key_in(2), 4},
                 {bench.key_in(2) + 1, 1},
                 {bench.key_in(3), 1}});
  const auto first = bench.merge(2 * chunk + 3);
  CHECK(first.next == 2);
  CHECK(bench.pairs_of(first.run).size() == 2);
  CHECK(first.rejected == std::array<std::uint32_t, 4>{});  // that of chunk 2 goes with it
  CHECK(bench.merge(2 * chunk + 3).next == 2);              // nothing has changed
  CHECK(bench.start_round(first).empty());                  // its run lasts
  const auto second = bench.merge(2 * chunk + 3);
  CHECK(second.next == kNoChunk);
  CHECK(bench.pairs_of(second.run).size() == 1);
  CHECK(second.rejected == std::array<std::uint32_t, 4>{0, 2, 0, 0});
  CHECK(bench.start_round(second).size() == 1);
}

TEST_CASE("a round is bounded also where it delivers nothing") {
  constexpr std::uint64_t kRanks = 256;
  constexpr std::uint64_t kChunksOfRank = 40;
  Bench bench(kRanks, std::numeric_limits<double>::infinity(), 1, 1 << 20);
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    std::vector<Pair> pairs;
    for (std::uint64_t i = 0; i < kChunksOfRank; ++i)
      pairs.push_back({bench.key_in(i * kRanks + rank), 1});
    bench.take(rank, pairs);
  }
  std::uint64_t rejected = 0;
  for (std::uint64_t next = 0; next != kNoChunk;) {
    const auto merged = bench.merge();
    CHECK(merged.run.empty());
    rejected += merged.rejected[3];
    next += limits::kRoundCursors / kRanks;
    if (next > kRanks * kChunksOfRank) next = kNoChunk;
    CHECK(merged.next == next);
    CHECK(bench.start_round(merged).size() == (next == kNoChunk ? kRanks : 0));
  }
  CHECK(rejected == kRanks * kChunksOfRank);
}

TEST_CASE("sums below the threshold are counted by their magnitude") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Bench bench(2, 8);
  bench.take(0, {{0, 8}, {1, -8}, {2, 7.5f}, {3, -4}, {4, 3.5f}, {5, 2}, {6, 1.5f}});
  bench.take(1, {{7, 1},
                 {8, 0.5f},
                 {9, -0.0f},
                 {10, kNan},
                 {11, -kInfinity},
                 {12, std::numeric_limits<float>::denorm_min()}});
  const auto merged = bench.merge();
  std::vector<std::uint64_t> delivered;
  for (const Pair& sum : bench.pairs_of(merged.run)) delivered.push_back(sum.key);
  CHECK(delivered == std::vector<std::uint64_t>{0, 1, 10, 11});
  CHECK(merged.rejected == std::array<std::uint32_t, 4>{2, 2, 2, 3});
}

TEST_CASE("a threshold that is no number, or not above 0, rejects nothing") {
  const double threshold = GENERATE(0.0, -0.0, -1.0, std::numeric_limits<double>::quiet_NaN());
  Bench bench(1, threshold);
  bench.take(0, {{0, -0.0f}, {1, 1}});
  const auto sums = bench.pairs_of(bench.merge().run);
  REQUIRE(sums.size() == 2);
  CHECK(!std::signbit(sums[0].value));  // no reduction of floats is -0
}
