// Keyed pairs: how keys are divided among streams, how sums are put in order, and what a caller is
// told.
#include "common/protocol/keyed.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tests/sim/random.hpp"
#include "tests/unit/catch.hpp"
#include "worker/engine/keyed_operation.hpp"
#include "worker/engine/op_request.hpp"

namespace keyed_tests {

using namespace sluice;

namespace {

Session session_of(std::uint16_t payload_bytes, std::uint16_t streams = 8) {
  return {.ranks = 4,
          .streams = streams,
          .block_elements = 256,
          .payload_bytes = payload_bytes,
          .history = 8};
}

}  // namespace

TEST_CASE("chunks have 1 KiB of rows, or what fits the smallest packet") {
  const auto bits = [](std::uint16_t row_elements, WireType type, std::uint16_t payload) {
    const auto g = KeyedGeometry::make(1'000'000, row_elements, type, session_of(payload), 7);
    return g ? int{g->chunk_bits} : -1;
  };
  CHECK(bits(1, ElementType::kFloat32, 1472) == 8);
  CHECK(bits(1, ElementType::kFloat64, 1472) == 7);
  CHECK(bits(1, ElementType::kInt8, 1472) == 8);  // a key in its chunk is a byte
  CHECK(bits(64, ElementType::kFloat32, 1472) == 2);
  CHECK(bits(300, ElementType::kFloat32, 1472) == 0);
  CHECK(bits(400, ElementType::kFloat32, 1472) == -1);
  CHECK(bits(400, ElementType::kFloat32, 8972) == 0);
  CHECK(bits(1, ElementType::kFloat32, 508) == 6);
  // Scaled rows: as those of fp32, which their sums are.
  CHECK(bits(2, WireType(Encoding::kInt4), 1472) == 7);
  CHECK(bits(400, WireType(Encoding::kInt8), 1472) == -1);
}

TEST_CASE("stripes have 4 chunks, or fewer where each stream would have few stripes") {
  const auto bits = [](std::uint64_t key_bound, std::uint16_t row_elements, std::uint16_t streams) {
    const auto g = KeyedGeometry::make(key_bound, row_elements, ElementType::kFloat32,
                                       session_of(1472, streams), 0);
    return int{g->stripe_bits};
  };
  CHECK(bits(1 << 20, 1, 64) == 10);
  CHECK(bits(1 << 19, 1, 64) == 9);
  CHECK(bits(1000, 1, 64) == 8);
  CHECK(bits(1000, 1, 1) == 8);
  CHECK(bits(1 << 20, 64, 64) == 4);
  CHECK(bits(~std::uint64_t{0} - 1, 1, 1024) == 10);
}

TEST_CASE("keys and local keys are each other's") {
  sim::Random random(6);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t bound = random.pick<std::uint64_t>(
        {1, random.between(1, 5000), random.below(1 << 30) + 1, ~std::uint64_t{0} - 1});
    const auto streams = static_cast<std::uint16_t>(random.between(1, 70));
    const auto op = random.below(200);
    const auto g =
        *KeyedGeometry::make(bound, 1, ElementType::kFloat32, session_of(1472, streams), op);
    std::map<std::uint16_t, std::uint64_t> keys;  // of each place
    const auto look = [&](std::uint64_t key) {
      const auto dealt = g.deal(g.stripe_of(key));
      const std::uint64_t local = g.local_of(key);
      REQUIRE(dealt.place < g.used_streams());
      REQUIRE(g.place_of(g.stream_at(dealt.place)) == dealt.place);
      REQUIRE(g.uses(g.stream_at(dealt.place)));
      REQUIRE(local < g.local_bound(dealt.place));
      REQUIRE(local < bound);
      REQUIRE(g.key_of(dealt.place, local) == key);
      ++keys[dealt.place];
    };
    for (std::uint64_t key = 0; key < std::min<std::uint64_t>(bound, 5000); ++key) look(key);
    look(bound - 1);
    look(random.below(bound));
    if (bound > 5000) continue;
    --keys[g.deal(g.stripe_of(bound - 1)).place];  // which was looked at again
    keys.clear();
    for (std::uint64_t key = 0; key < bound; ++key) ++keys[g.deal(g.stripe_of(key)).place];
    for (std::uint16_t place = 0; place < g.used_streams(); ++place)
      REQUIRE(g.local_bound(place) == keys[place]);  // they have no gaps
  }
}

TEST_CASE("local keys rise as keys do") {
  const auto g = *KeyedGeometry::make(1u << 30, 1, ElementType::kFloat32, session_of(1472, 7), 3);
  std::map<std::uint16_t, std::uint64_t> last;
  for (std::uint64_t key = 12'345; key < 1u << 20; key += 17) {
    auto [at, is_new] = last.emplace(g.deal(g.stripe_of(key)).place, g.local_of(key));
    REQUIRE((is_new || at->second < g.local_of(key)));
    at->second = g.local_of(key);
  }
}

TEST_CASE("neighbouring stripes are dealt to all streams alike") {
  const auto g = *KeyedGeometry::make(1u << 30, 1, ElementType::kFloat32, session_of(1472, 16), 5);
  std::vector<int> stripes(16);
  for (std::uint64_t stripe = 1000; stripe < 1000 + 16'000; ++stripe)
    ++stripes.at(g.deal(stripe).place);
  for (const int n : stripes) CHECK((n >= 999 && n <= 1001));
  CHECK(g.used_streams() == 16);
  // Also where only some have keys, at equal distances.
  for (const std::uint64_t distance : {2, 16, 89, 256, 4096, 1 << 20}) {
    std::ranges::fill(stripes, 0);
    for (std::uint64_t i = 0; i < 16'000; ++i) ++stripes.at(g.deal(i * distance).place);
    for (const int n : stripes) CHECK((n > 800 && n < 1200));
  }
  // A small op bothers few, and always the stream on which descriptors meet.
  const auto small = *KeyedGeometry::make(600, 1, ElementType::kFloat32, session_of(1472, 16), 5);
  CHECK(small.used_streams() == 3);
  for (std::uint16_t s = 0; s < 16; ++s) CHECK(small.uses(StreamId{s}) == (s >= 5 && s < 8));
}

namespace {

/// The sums of an op, as they come from the streams.
class Sums {
 public:
  explicit Sums(const KeyedGeometry& geometry)
      : geometry_(geometry), sums(geometry, ElementType::kFloat32, memory_) {}

  /// Each pair's value is its key's number. A run has some of them.
  void add(const std::vector<std::uint64_t>& keys, std::size_t run_keys) {
    std::map<std::uint16_t, std::vector<std::pair<std::uint64_t, float>>> streams;
    for (const std::uint64_t key : keys)
      streams[geometry_.deal(geometry_.stripe_of(key)).place].emplace_back(
          geometry_.local_of(key), static_cast<float>(key % 1000));
    for (const auto& [place, pairs] : streams)
      for (std::size_t first = 0; first < pairs.size(); first += run_keys)
        add_run(geometry_.stream_at(place),
                std::span(pairs).subspan(first, std::min(run_keys, pairs.size() - first)));
  }

  std::optional<std::size_t> add_run(StreamId s,
                                     std::span<const std::pair<std::uint64_t, float>> pairs) {
    std::vector<std::uint64_t> keys;
    for (const auto& [key, value] : pairs) keys.push_back(key);
    const RunPlan plan = plan_run(keys, 8900, geometry_.format(), false);
    std::vector<std::byte> run(plan.bytes);
    std::byte* rows = write_keys(plan.coding, keys, run);
    for (const auto& [key, value] : pairs) {
      std::memcpy(rows, &value, sizeof value);
      rows += sizeof value;
    }
    return sums.add(s, run, 0, kNoKey);
  }

 private:
  KeyedGeometry geometry_;
  std::shared_ptr<worker::ResultMemory> memory_ = std::make_shared<worker::ResultMemory>();

 public:
  worker::KeyedSums sums;
};

}  // namespace

TEST_CASE("sums are put in order, however far apart their keys are") {
  sim::Random random(7);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t bound = random.pick<std::uint64_t>(
        {1, random.between(1, 3000), random.below(1 << 24) + 1, ~std::uint64_t{0} - 1});
    const auto g = *KeyedGeometry::make(
        bound, 1, ElementType::kFloat32,
        session_of(1472, static_cast<std::uint16_t>(random.between(1, 20))), random.below(9));
    std::set<std::uint64_t> some;
    const std::uint64_t below = random.chance(0.5) ? bound : std::min<std::uint64_t>(bound, 2000);
    for (std::uint64_t n = random.below(800); n > 0; --n) some.insert(random.below(below));
    const std::vector<std::uint64_t> keys(some.begin(), some.end());
    Sums sums(g);
    sums.add(keys, random.between(1, 100));
    REQUIRE(sums.sums.size() == keys.size());
    std::vector<std::uint64_t> found(keys.size());
    std::vector<float> rows(keys.size());
    sums.sums.merge(found, std::as_writable_bytes(std::span(rows)));
    REQUIRE(found == keys);
    for (std::size_t k = 0; k < keys.size(); ++k)
      REQUIRE(rows[k] == static_cast<float>(keys[k] % 1000));
  }
}

TEST_CASE("sums of keys that lack parts are not written beyond the caller's memory") {
  const auto g = *KeyedGeometry::make(300, 1, ElementType::kFloat32, session_of(1472, 1), 0);
  Sums sums(g);
  sums.add({0, 3, 6, 9, 12}, 5);  // the first of three parts each
  std::vector<std::uint64_t> keys(9, 77);
  std::vector<std::byte> rows(100, std::byte{7});
  sums.sums.merge(std::span(keys).first(1), std::span(rows).first(3 * sizeof(float)), 3);
  CHECK(std::ranges::count(keys, 77u) == 8);
  CHECK(rows[3 * sizeof(float)] == std::byte{7});
}

TEST_CASE("a run is written as it was planned, whatever was planned since then") {
  const auto g = *KeyedGeometry::make(4096, 1, ElementType::kFloat32, session_of(1472, 4), 0);
  REQUIRE(g.used_streams() == 4);
  std::vector<std::uint64_t> keys;  // none at place 1
  for (std::uint64_t key = 0; key < 4096; key += 5)
    if (g.deal(g.stripe_of(key)).place != 1) keys.push_back(key);
  const std::vector<float> rows(keys.size(), 1.0F);
  worker::KeyedSums sums;
  worker::KeyedOperation op({.keys = keys,
                             .rows = reinterpret_cast<const std::byte*>(rows.data()),
                             .key_bound = 4096,
                             .sums = &sums},
                            ElementType::kFloat32, g, nullptr);
  const auto written = [&](StreamId s, const worker::KeyedOperation::Run& run) {
    std::vector<std::byte> out(run.plan.bytes);
    op.write(s, run, {}, out);
    return out;
  };
  const StreamId second = g.stream_at(2);
  const auto run = op.run_from(second, {}, 1000);
  const auto expected = written(second, run);
  op.run_from(g.stream_at(0), {}, 1000);
  CHECK(written(second, run) == expected);
  op.run_from(second, {}, 1000);
  op.run_from(g.stream_at(0), {}, 1000);
  op.run_from(g.stream_at(1), {}, 1000);  // its segments would begin where those of place 2 do
  CHECK(written(second, run) == expected);
}

TEST_CASE("sums with keys that the op does not have are refused") {
  const auto g = *KeyedGeometry::make(300, 1, ElementType::kFloat32, session_of(1472, 4), 0);
  Sums sums(g);
  for (std::uint16_t place = 0; place < g.used_streams(); ++place) {
    const std::uint64_t bound = g.local_bound(place);
    const std::vector<std::pair<std::uint64_t, float>> bad{{bound, 1}}, good{{bound - 1, 1}};
    CHECK(sums.add_run(g.stream_at(place), bad) == std::nullopt);
    CHECK(sums.add_run(g.stream_at(place), good) == 1u);
  }
  CHECK(sums.sums.size() == g.used_streams());
}

TEST_CASE("what a caller asks for is checked") {
  const Session session = session_of(1472);
  const std::vector<std::uint64_t> keys{3, 7, 9};
  const std::vector<float> rows{1, 2, 3};
  worker::KeyedSums sums;
  worker::KeyedRequest good{.keys = keys,
                            .rows = reinterpret_cast<const std::byte*>(rows.data()),
                            .key_bound = 10,
                            .result_bytes = 1000,
                            .sums = &sums};
  const auto verdict = [&](const worker::KeyedRequest& keyed) -> std::string {
    worker::OpRequest request{.collective = wire::Collective::kSparseAllReduce};
    request.keyed = keyed;
    try {
      worker::check(request, "op", session);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  using Catch::Contains;
  CHECK(verdict(good) == "");
  auto bad = good;
  bad.key_bound = 9;
  CHECK_THAT(verdict(bad), Contains("the last key is 9; less than key_bound 9 expected"));
  bad.key_bound = 0;
  CHECK_THAT(verdict(bad), Contains("key_bound is 0; 1..2^64 - 2 expected"));
  bad = good;
  bad.row_elements = 400;
  CHECK_THAT(verdict(bad), Contains("a row of 400 elements of float"));
  bad = good;
  bad.threshold = -1;
  CHECK_THAT(verdict(bad), Contains("the threshold is -1"));
  bad.threshold = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(verdict(bad), Contains("the threshold is nan"));
  bad = good;
  const std::vector<std::uint64_t> repeated{3, 7, 7};
  bad.keys = repeated;
  CHECK_THAT(verdict(bad), Contains("key 2 is 7, as the one before it; keys must rise"));
  const std::vector<std::uint64_t> unsorted{3, 7, 5};
  bad.keys = unsorted;
  CHECK_THAT(verdict(bad), Contains("key 2 is 5, less than the one before it"));
  bad = good;
  bad.rows = nullptr;
  CHECK_THAT(verdict(bad), Contains("the values are null"));
}

}  // namespace keyed_tests
