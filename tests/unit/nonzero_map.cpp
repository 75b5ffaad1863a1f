// The map of non-zero blocks against a plain loop, whatever the order of the queries.
#include "worker/engine/nonzero_map.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/unit/catch.hpp"

namespace nonzero_map_tests {

using namespace sluice;
using worker::NonZeroMap;

namespace {

constexpr std::uint32_t kBlock = 4;  // elements

numeric::BlockedTensor tensor_of(const std::vector<float>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size(), kBlock,
          ElementType::kFloat32};
}

std::vector<float> values_of(const std::vector<bool>& blocks) {
  std::vector<float> values(blocks.size() * kBlock);
  for (std::size_t b = 0; b < blocks.size(); ++b)
    if (blocks[b]) values[b * kBlock + b % kBlock] = 1;
  return values;
}

Geometry geometry_of(std::size_t blocks, std::uint16_t streams, std::uint8_t columns) {
  Geometry geometry;
  geometry.block_elements = kBlock;
  geometry.element_count = blocks * kBlock;
  geometry.blocks = static_cast<std::uint32_t>(blocks);
  geometry.streams = streams;
  geometry.columns = columns;
  return geometry;
}

/// In an op of one stream.
std::uint32_t next(NonZeroMap& map, std::uint32_t from, std::uint8_t columns = 1) {
  const Geometry geometry = geometry_of(map.blocks(), 1, columns);
  const BlockIndex found = map.next(geometry, geometry.column_of({from}), {from});
  return found == kNoBlock ? map.blocks() : found.value;
}

BlockIndex plain_search(const std::vector<bool>& blocks, const Geometry& geometry,
                        BlockIndex from) {
  while (from != kNoBlock && !blocks[from.value]) from = geometry.following(from);
  return from;
}

/// Queries in any order find what a plain loop finds.
void check_queries(NonZeroMap& map, const std::vector<bool>& blocks, std::mt19937_64& random) {
  REQUIRE(map.blocks() == blocks.size());
  for (int query = 0; query < 50 && !blocks.empty(); ++query) {
    const Geometry geometry =
        geometry_of(blocks.size(), static_cast<std::uint16_t>(1 + random() % 20),
                    static_cast<std::uint8_t>(1 + random() % 30));
    const BlockIndex from{static_cast<std::uint32_t>(random() % blocks.size())};
    REQUIRE(map.next(geometry, geometry.column_of(from), from) ==
            plain_search(blocks, geometry, from));
  }
}

}  // namespace

TEST_CASE("queries in any order find what a plain loop finds") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = std::vector<std::size_t>{0, 1, 63, 64, 512, 513, 9000}[random() % 7];
    std::bernoulli_distribution is_set(std::vector<double>{0, 0.001, 0.1, 1}[random() % 4]);
    std::vector<bool> blocks(count);
    for (std::size_t b = 0; b < count; ++b) blocks[b] = is_set(random);
    const std::vector<float> values = values_of(blocks);
    NonZeroMap map(tensor_of(values), {});
    check_queries(map, blocks, random);
  }
}

TEST_CASE("only blocks that may be other than zero are read") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    const std::size_t count = 1 + random() % 2000;
    std::vector<std::uint64_t> searched(count / 64 + 1);
    for (std::uint64_t& word : searched) word = random() & random();
    std::vector<bool> blocks(count), found(count);
    for (std::size_t b = 0; b < count; ++b) {
      blocks[b] = random() % 3 == 0;
      found[b] = blocks[b] && (searched[b / 64] >> (b % 64) & 1) != 0;
    }
    const std::vector<float> values = values_of(blocks);
    NonZeroMap map(tensor_of(values), {}, {}, {}, searched);
    check_queries(map, found, random);
  }
}

TEST_CASE("of a tensor that is held in part, all else is zero") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = 1 + random() % 2000;
    std::vector<bool> blocks(count);
    for (std::size_t b = 0; b < count; ++b) blocks[b] = random() % 50 == 0;
    const std::vector<float> values = values_of(blocks);
    const std::uint64_t x = random() % (values.size() + 1), y = random() % (values.size() + 1);
    const worker::ElementRange held{std::min(x, y), random() % 4 == 0 ? x : std::max(x, y)};
    std::vector<bool> expected(count);
    for (std::uint64_t e = held.begin; e < held.end; ++e) {
      const std::uint64_t b = e / kBlock;
      const bool is_whole = b * kBlock >= held.begin && (b + 1) * kBlock <= held.end;
      expected[b] = blocks[b] || !is_whole;  // in part: taken for one that is not zero
    }
    numeric::BlockedTensor tensor = tensor_of(values);
    tensor.data += held.begin * sizeof(float);
    NonZeroMap map(tensor, {}, {}, held);
    check_queries(map, expected, random);
  }
}

TEST_CASE("a map that the caller gives is believed, and the tensor not read") {
  const std::vector<std::uint64_t> given{std::uint64_t{1} << 3, 1};
  NonZeroMap map({nullptr, 100 * kBlock, kBlock, ElementType::kFloat32}, given);
  CHECK(next(map, 0) == 3);
  CHECK(next(map, 4) == 64);
  CHECK(next(map, 65) == 100);
}

TEST_CASE("one query reads no further than the horizon, and the next one goes on there") {
  std::vector<float> values(40 * kBlock);
  values[30 * kBlock] = 1;
  const std::uint64_t block_bytes = kBlock * sizeof(float);
  NonZeroMap map(tensor_of(values), {}, {.ahead_bytes = 1, .lookahead_bytes = 16 * block_bytes});
  CHECK(next(map, 0) == 16);  // not known, taken for one that is not zero
  CHECK(next(map, 17) == 30);
  CHECK(next(map, 31) == 40);
  CHECK(next(map, 16) == 30);  // known by now
  CHECK_FALSE(map.contains(16));
  CHECK(map.contains(30));

  SECTION("of a tensor that is held in part it counts from where that begins") {
    numeric::BlockedTensor tensor = tensor_of(values);
    tensor.element_count -= 1;  // the last block is short
    tensor.data += 20 * block_bytes;
    NonZeroMap part(tensor, {}, {.ahead_bytes = 1, .lookahead_bytes = 8 * block_bytes},
                    worker::ElementRange{20 * kBlock, tensor.element_count});
    CHECK(next(part, 1, 3) == 30);  // has looked at 21, 26 and 28
    CHECK(next(part, 0) == 29);
    CHECK(next(part, 29) == 30);
    CHECK(next(part, 31) == 39);
    CHECK(next(part, 39) == 40);
    CHECK_FALSE(part.contains(10));
    CHECK_FALSE(part.contains(28));
    CHECK(part.contains(30));
  }
}

TEST_CASE("a -0 is noticed in the blocks that were read") {
  std::vector<float> values(1 << 20);
  values[0] = -0.0F;
  values[1] = 1;
  values[kBlock] = 1;
  values[values.size() - 1] = -0.0F;
  NonZeroMap map(tensor_of(values), {});
  CHECK(next(map, 0) == 0);
  CHECK_FALSE(map.saw_negative_zero());
  CHECK(next(map, 2) == map.blocks());
  CHECK(map.saw_negative_zero());
}

}  // namespace nonzero_map_tests
