// What a round of pairs comes to: in which order runs are summed, where it ends, what is rejected.
#include "aggregator/engine/keyed_combiner.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "common/protocol/build.hpp"
#include "tests/sim/random.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"

namespace keyed_combiner_tests {

using namespace sluice;
using aggregator::KeyedCombiner;

namespace {

/// A key, and its row of one element.
struct Pair {
  std::uint64_t key = 0;
  float value = 0;
};

/// The only stream of a job, and its op of floats.
class Bench {
 public:
  explicit Bench(std::uint16_t ranks, double threshold = 0, std::uint16_t streams = 1,
                 std::uint64_t key_bound = 4096, WireType type = ElementType::kFloat32,
                 std::uint64_t horizon = 0)
      : session_{.ranks = ranks, .streams = streams, .payload_bytes = 508, .history = 2},
        geometry_(KeyedGeometry::make(key_bound, 1, type, session_, 0).value()),
        combiner(session_),
        threshold_(threshold),
        horizon_(horizon) {}

  std::vector<std::byte> run_of(const std::vector<Pair>& pairs) const {
    std::vector<std::uint64_t> keys;
    for (const Pair& pair : pairs) keys.push_back(pair.key);
    const RunPlan plan = plan_run(keys, 8900, geometry_.format(), false);
    std::vector<std::byte> run(plan.bytes);
    if (pairs.empty()) return run;
    std::byte* rows = write_keys(plan.coding, keys, run);
    for (const Pair& pair : pairs) {
      std::memcpy(rows, &pair.value, sizeof pair.value);
      rows += sizeof pair.value;
    }
    return run;
  }

  void take(unsigned rank, const std::vector<Pair>& pairs, std::uint64_t following = kNoKey) {
    const auto run = run_of(pairs);
    const Packet packet = data(following, run);
    REQUIRE(combiner.fits(packet));
    combiner.take(Rank{static_cast<std::uint16_t>(rank)}, packet, {}, scratch_);
  }

  std::uint64_t chunk_keys() const { return geometry_.chunk_keys(); }

  /// Scaled rows: each key with a 1.
  void take_scaled(unsigned rank, const std::vector<std::uint64_t>& keys) {
    const RunFormat format = geometry_.format();
    const RunPlan plan = plan_run(keys, 8900, format, false);
    std::vector<std::byte> run(plan.bytes);
    std::byte* rows = write_keys(plan.coding, keys, run);
    for (std::size_t first = 0, end; first < keys.size(); first = end) {
      for (end = first;
           end < keys.size() && format.chunk_of(keys[end]) == format.chunk_of(keys[first]);)
        ++end;
      put_scale(rows, 0);
      rows = std::fill_n(rows, end - first, std::byte{1});
    }
    const Packet packet = data(kNoKey, run);
    REQUIRE(combiner.fits(packet));
    combiner.take(Rank{static_cast<std::uint16_t>(rank)}, packet, {}, scratch_);
  }

  KeyedCombiner::Merged merge(std::size_t room = 380) {
    REQUIRE(room <= room_.size());
    return combiner.merge(std::span(room_).first(room), scratch_);
  }
  RankSet start_round(const KeyedCombiner::Merged& merged, std::size_t room = 380) {
    return combiner.start_round(merged, room, scratch_);
  }

  std::vector<Pair> pairs_of(std::span<const std::byte> run) const {
    const auto view = RunView::parse(run);
    REQUIRE(view);
    std::vector<std::uint64_t> keys(view->coding.keys + 1);
    keys.resize(KeyReader(*view).read_below(kNoKey, 0, keys.data()));
    std::vector<Pair> pairs;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      pairs.push_back({keys[i]});
      std::memcpy(&pairs.back().value, view->rows.data() + i * sizeof(float), sizeof(float));
    }
    return pairs;
  }

 private:
  Session session_;
  KeyedGeometry geometry_;

 public:
  KeyedCombiner combiner;

 private:
  /// An opening KV_DATA. The first begins the op, or goes on with it.
  Packet data(std::uint64_t following, std::span<const std::byte> run) {
    auto fixed = wire::make<wire::KeyValueData>(1);
    fixed.data.flags = wire::kDataOpening;
    fixed.data.shape = wire::shape_of(geometry_);
    fixed.horizon = begun_ ? combiner.horizon() : horizon_;
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
    if (!begun_) REQUIRE(combiner.begin(packet, StreamId{0}, session_, horizon_ != 0));
    begun_ = true;
    return packet;
  }

  double threshold_;
  std::uint64_t horizon_;  // of the first round here
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
  CHECK(merged.next == kNoKey);
  const auto sums = bench.pairs_of(merged.run);
  REQUIRE(sums.size() == 3);
  CHECK(sums[0].key == 7);
  CHECK(sums[0].value == 0);  // 1 is lost beside 1e8
  CHECK(sums[1].value == 1);
  CHECK(sums[2].value == 5);
  CHECK(bench.start_round(merged).size() == 3);
}

TEST_CASE("a round ends before the least key that a rank has yet to send") {
  Bench bench(2);
  bench.take(0, {{100, 1}}, 300);
  bench.take(1, {{100, 1}, {300, 1}}, 700);
  const auto merged = bench.merge();
  CHECK(merged.next == 300);
  CHECK(bench.pairs_of(merged.run).size() == 1);
  const RankSet contributors = bench.start_round(merged, merged.run.size());
  CHECK(contributors.contains(Rank{0}));
  CHECK(!contributors.contains(Rank{1}));
  // The other's run lasts, and is summed with what comes.
  bench.take(0, {{300, 1}, {400, 1}});
  const auto rest = bench.merge();
  CHECK(rest.next == 700);
  const auto sums = bench.pairs_of(rest.run);
  REQUIRE(sums.size() == 2);
  CHECK(sums[0].value == 2);
  CHECK(bench.start_round(rest).contains(Rank{1}));
}

TEST_CASE("runs are renewed that would end the next round before its result is full") {
  Bench bench(3);
  bench.take(0, {{100, 1}}, 300);
  bench.take(1, {{100, 1}, {300, 1}, {500, 1}}, 899);
  bench.take(2, {{100, 1}, {300, 1}, {500, 1}}, 900);
  const auto merged = bench.merge();
  REQUIRE(merged.next == 300);
  // The result has half of its room: a full one would reach from 300 to 900.
  const RankSet contributors = bench.start_round(merged, 2 * merged.run.size());
  CHECK(contributors.contains(Rank{0}));
  CHECK(contributors.contains(Rank{1}));
  CHECK(!contributors.contains(Rank{2}));
  bench.take(0, {{400, 1}});
  bench.take(1, {{300, 1}, {500, 1}, {899, 1}});  // replaces what was left
  const auto sums = bench.pairs_of(bench.merge().run);
  REQUIRE(sums.size() == 4);
  CHECK(sums[0].value == 2);  // of 300
  CHECK(sums[2].value == 2);  // of 500
}

TEST_CASE("a round is cut where its result is full, and the next begins there") {
  Bench bench(1, 4);
  bench.take(0, {{0, 4}, {1, 4}, {2, 1}, {200, 4}, {201, 1}, {300, 1}});
  const std::size_t room = sizeof(wire::RunHeader) + 2 * sizeof(float) + 2;
  const auto first = bench.merge(room);
  CHECK(first.next == 200);
  CHECK(bench.pairs_of(first.run).size() == 2);
  CHECK(first.rejected == std::array<std::uint32_t, 4>{0, 1, 0, 0});  // not those behind
  CHECK(bench.merge(room).next == 200);                               // nothing has changed
  CHECK(bench.start_round(first).empty());                            // its run lasts
  const auto second = bench.merge(room);
  CHECK(second.next == kNoKey);
  CHECK(bench.pairs_of(second.run).size() == 1);
  CHECK(second.rejected == std::array<std::uint32_t, 4>{0, 2, 0, 0});
  CHECK(bench.start_round(second).size() == 1);
}

TEST_CASE("a round is bounded also where it delivers nothing") {
  constexpr std::uint64_t kRanks = 256;
  constexpr std::uint64_t kKeysOfRank = 40;
  Bench bench(kRanks, std::numeric_limits<double>::infinity(), 1, 1 << 20);
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    std::vector<Pair> pairs;
    for (std::uint64_t i = 0; i < kKeysOfRank; ++i) pairs.push_back({64 * (i * kRanks + rank), 1});
    bench.take(rank, pairs);
  }
  std::uint64_t rejected = 0;
  for (std::uint64_t next = 0; next != kNoKey;) {
    const auto merged = bench.merge();
    CHECK(merged.run.empty());
    rejected += merged.rejected[3];
    next += 64 * limits::kMostRejected;
    if (next > 64 * kRanks * kKeysOfRank) next = kNoKey;
    CHECK(merged.next == next);
    CHECK(bench.start_round(merged).size() == (next == kNoKey ? kRanks : 0));
  }
  CHECK(rejected == kRanks * kKeysOfRank);
}

TEST_CASE("rounds deliver each key's sum once, however dense keys are and wherever rounds end") {
  sim::Random random(1);
  for (int i = 0; i < 150; ++i) {
    const auto ranks = static_cast<std::uint16_t>(random.between(1, 5));
    const double threshold = random.chance(0.5) ? 0 : 3;
    Bench bench(ranks, threshold, 1, std::uint64_t{1} << 50);
    const std::uint64_t span = random.pick<std::uint64_t>({300, 3000, 100'000, 1ull << 40});
    std::vector<std::vector<Pair>> pairs(ranks);
    std::map<std::uint64_t, float> expected;
    for (auto& of_rank : pairs) {
      std::set<std::uint64_t> keys;
      for (std::uint64_t n = random.below(300); n > 0; --n) keys.insert(random.below(span));
      for (const std::uint64_t key : keys) {
        const auto value = static_cast<float>(random.between(1, 4));
        of_rank.push_back({key, value});
        expected[key] += value;
      }
    }
    if (threshold != 0) std::erase_if(expected, [](const auto& sum) { return sum.second < 3; });
    struct Run {
      std::vector<Pair> pairs;
      std::uint64_t following;
    };
    std::vector<Run> runs(ranks);  // that were sent last
    // A rank's run begins with its first pair from the horizon on, and has any number of them.
    const auto take = [&](std::uint16_t rank, std::uint64_t horizon) {
      const auto& all = pairs[rank];
      const auto begin = std::ranges::lower_bound(all, horizon, {}, &Pair::key);
      const auto left = static_cast<std::uint64_t>(all.end() - begin);
      const auto end = begin + static_cast<std::ptrdiff_t>(std::min(left, random.between(1, 90)));
      runs[rank] = {{begin, end}, end == all.end() ? kNoKey : end->key};
      bench.take(rank, runs[rank].pairs, runs[rank].following);
    };
    for (std::uint16_t rank = 0; rank < ranks; ++rank) take(rank, 0);
    std::map<std::uint64_t, float> found;
    for (std::uint64_t horizon = 0; horizon != kNoKey;) {
      const std::size_t room = random.between(30, 380);
      const auto merged = bench.merge(room);
      REQUIRE(merged.run.size() <= room);
      REQUIRE(merged.next > horizon);
      // An aggregator that takes over comes to the same result.
      Bench other(ranks, threshold, 1, std::uint64_t{1} << 50, ElementType::kFloat32, horizon);
      for (std::uint16_t rank = 0; rank < ranks; ++rank)
        other.take(rank, runs[rank].pairs, runs[rank].following);
      const auto again = other.merge(room);
      REQUIRE(std::ranges::equal(again.run, merged.run));
      REQUIRE(again.next == merged.next);
      REQUIRE(again.rejected == merged.rejected);
      if (!merged.run.empty())
        for (const Pair& sum : bench.pairs_of(merged.run)) {
          REQUIRE(sum.key >= horizon);
          REQUIRE(sum.key < merged.next);
          REQUIRE(found.emplace(sum.key, sum.value).second);
        }
      horizon = merged.next;
      const RankSet contributors = bench.start_round(merged, room);
      if (horizon != kNoKey) contributors.for_each([&](Rank r) { take(r.value, horizon); });
    }
    REQUIRE(found == expected);
  }
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

TEST_CASE("a round of scaled sums ends between chunks") {
  Bench bench(1, 0, 1, 1 << 20, WireType(Encoding::kInt8));
  const std::uint64_t chunk = bench.chunk_keys();
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 1; key < 6 * chunk; key += 3) keys.push_back(key);
  bench.take_scaled(0, keys);
  std::size_t rounds = 0;
  for (std::uint64_t horizon = 0; horizon != kNoKey; ++rounds) {
    const auto merged = bench.merge(2 * chunk);
    REQUIRE(merged.next > horizon);
    REQUIRE((merged.next == kNoKey || merged.next % chunk == 0));
    horizon = merged.next;
    bench.start_round(merged);
  }
  CHECK(rounds > 1);
}

TEST_CASE("scaled sums of the last keys that there are end the op") {
  constexpr std::uint64_t kBound = kNoKey - 1;
  Bench bench(1, 0.5, 1, kBound, WireType(Encoding::kInt8));
  bench.take_scaled(0, {kBound - 9, kBound - 7});
  const auto merged = bench.merge();
  CHECK(merged.next == kNoKey);
  CHECK(bench.start_round(merged).size() == 1);
}

TEST_CASE("a threshold that is no number, or not above 0, rejects nothing") {
  const double threshold = GENERATE(0.0, -0.0, -1.0, std::numeric_limits<double>::quiet_NaN());
  Bench bench(1, threshold);
  bench.take(0, {{0, -0.0f}, {1, 1}});
  const auto sums = bench.pairs_of(bench.merge().run);
  REQUIRE(sums.size() == 2);
  CHECK(!std::signbit(sums[0].value));  // no reduction of floats is -0
}

}  // namespace keyed_combiner_tests
