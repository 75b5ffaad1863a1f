// Every block of an op is on exactly one column of one stream and reached exactly once.
#include "common/protocol/geometry.hpp"

#include <random>
#include <vector>

#include "common/protocol/build.hpp"
#include "tests/unit/catch.hpp"

namespace geometry_tests {

using namespace sluice;

namespace {

constexpr WireType kTypes[] = {
    ElementType::kFloat32,     ElementType::kFloat64,    ElementType::kFloat16,
    ElementType::kBFloat16,    ElementType::kInt32,      ElementType::kInt64,
    ElementType::kInt8,        ElementType::kUInt8,      ElementType::kInt16,
    WireType(Encoding::kInt8), WireType(Encoding::kInt4)};
// What 1500-byte and 9000-byte frames leave, and the limits.
constexpr std::size_t kPayloads[] = {1472, 8972, wire::kMinPayload, wire::kMaxPayload};

/// Visits the op's blocks as the streams do and counts.
void check_mapping(const Geometry& g, OpNumber op) {
  std::vector<unsigned> visits(g.blocks);
  std::uint16_t used = 0;
  for (std::uint16_t s = 0; s < g.streams; ++s) {
    const StreamId stream{s};
    bool has_blocks = false;
    for (std::uint8_t c = 0; c < g.columns; ++c) {
      const BlockIndex first = g.first_index(stream, c);
      if (first == kNoBlock) continue;
      has_blocks = true;
      REQUIRE(first.value < g.blocks);
      for (std::uint64_t b = first.value; b < g.blocks; b += g.stride()) {
        ++visits[static_cast<std::size_t>(b)];
        // The formula of docs/protocol.md.
        const std::uint64_t global = (b + op % g.streams * g.columns) % g.stride();
        REQUIRE(global == std::uint64_t{s} * g.columns + c);
      }
    }
    REQUIRE(g.uses(stream) == (has_blocks || s == op % g.streams));
    used = static_cast<std::uint16_t>(used + g.uses(stream));
  }
  REQUIRE(visits == std::vector<unsigned>(g.blocks, 1));
  REQUIRE(g.used_streams() == used);
  REQUIRE(g.uses(StreamId{g.first_stream}));
  if (g.blocks > 0) REQUIRE(g.first_index(StreamId{g.first_stream}, 0) == BlockIndex{0});
}

/// The blocks lie one after another and make up the tensor.
void check_extent(const Geometry& g) {
  std::size_t end = 0;
  for (std::uint32_t b = 0; b < g.blocks; ++b) {
    REQUIRE(g.offset_of(BlockIndex{b}) == end);
    REQUIRE(g.elements_of(BlockIndex{b}) >= 1);
    REQUIRE(g.elements_of(BlockIndex{b}) <= g.block_elements);
    REQUIRE(g.bytes_of(BlockIndex{b}) == Packet::block_bytes(wire::shape_of(g), b));
    end += g.bytes_of(BlockIndex{b});
  }
  if (g.type.is_scaled()) return;
  REQUIRE(end == g.element_count * g.type.bytes(1));
}

}  // namespace

TEST_CASE("each block is on one column of one stream, reached once") {
  std::mt19937_64 random(20210823);
  const auto upto = [&](std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(0, most)(random);
  };
  for (const std::size_t payload : kPayloads) {
    for (const WireType type : kTypes) {
      for (int i = 0; i < 60; ++i) {
        const auto streams = static_cast<std::uint16_t>(1 + upto(i % 10 == 0 ? 1023 : 40));
        const auto block = static_cast<std::uint32_t>(1 + upto(i % 5 == 0 ? 16383 : 300));
        const std::uint64_t elements = upto(i % 3 == 0 ? 3 * block : 200000);
        const OpNumber op = i % 4 == 0 ? ~OpNumber{0} - upto(2000) : upto(5000);
        CAPTURE(payload, +type.code(), streams, block, elements, op);
        const Geometry g = Geometry::make(elements, type, block, payload, streams, op);
        REQUIRE(g.block_elements <= block);
        check_mapping(g, op);
        check_extent(g);
      }
    }
  }
}

TEST_CASE("the example of docs/protocol.md") {
  // 15 blocks, S = 3 streams of W = 2 columns, op 4: the op begins on stream 1.
  Geometry g;
  g.element_count = 15;
  g.blocks = 15;
  g.streams = 3;
  g.columns = 2;
  g.first_stream = 4 % 3;
  CHECK(g.stride() == 6);
  CHECK(g.first_index(StreamId{1}, 0) == BlockIndex{0});
  CHECK(g.first_index(StreamId{1}, 1) == BlockIndex{1});
  CHECK(g.first_index(StreamId{2}, 0) == BlockIndex{2});
  CHECK(g.first_index(StreamId{2}, 1) == BlockIndex{3});
  CHECK(g.first_index(StreamId{0}, 0) == BlockIndex{4});
  CHECK(g.first_index(StreamId{0}, 1) == BlockIndex{5});
  check_mapping(g, 4);
}

TEST_CASE("an empty op and a barrier use their first stream alone") {
  for (OpNumber op = 0; op < 9; ++op) {
    const Geometry g = Geometry::make(0, ElementType::kFloat32, 256, 1472, 4, op);
    CHECK(g.blocks == 0);
    CHECK(g.used_streams() == 1);
    for (std::uint16_t s = 0; s < 4; ++s) {
      CHECK(g.uses(StreamId{s}) == (s == op % 4));
      for (std::uint8_t c = 0; c < g.columns; ++c) CHECK(g.first_index(StreamId{s}, c) == kNoBlock);
    }
  }
}

TEST_CASE("the widest packets of an op fit the payload") {
  using wire::block_packet_bytes;
  for (std::size_t payload = wire::kMinPayload; payload <= wire::kMaxPayload; ++payload) {
    for (const WireType type : kTypes) {
      for (const std::uint32_t block : {1u, 7u, 64u, 100u, 256u, 1024u, 16384u}) {
        const Geometry g = Geometry::make(1u << 20, type, block, payload, 16, 0);
        if (g.columns < 1 || g.columns > wire::kMaxColumns) FAIL("columns " << +g.columns);
        if (g.type.is_scaled())  // as it would have without an encoding
          REQUIRE(g.block_elements ==
                  fitting_block_elements(block, ElementType::kFloat32, payload));
        const std::size_t blocks = g.columns * g.bytes_of(BlockIndex{0});
        const std::size_t data = block_packet_bytes<wire::Data>(g.columns, true, blocks);
        const std::size_t result = block_packet_bytes<wire::Result>(g.columns, false, blocks);
        const std::size_t widest = std::max(data, result) + sizeof(wire::SessionTrailer);
        if (widest > payload) {
          CAPTURE(payload, +type.code(), block, +g.columns, data, result);
          FAIL("a packet is wider than the payload");
        }
      }
    }
  }
  SUCCEED();
}

TEST_CASE("usual sizes") {
  const Geometry small = Geometry::make(1000, ElementType::kFloat32, 256, 1472, 16, 0);
  CHECK(small.block_elements == 256);
  CHECK(small.columns == 1);
  CHECK(small.blocks == 4);
  CHECK(small.elements_of(BlockIndex{2}) == 256);
  CHECK(small.elements_of(BlockIndex{3}) == 232);
  CHECK(small.bytes_of(BlockIndex{3}) == 928);
  CHECK(small.offset_of(BlockIndex{3}) == 3072);
  const Geometry wide = Geometry::make(1000, ElementType::kFloat32, 256, 8972, 16, 0);
  CHECK(wide.columns == 8);
  // 256 doubles exceed a 1500-byte frame: the block is halved, not the type refused.
  const Geometry halved = Geometry::make(1000, ElementType::kFloat64, 256, 1472, 16, 0);
  CHECK(halved.block_elements == 128);
  CHECK(halved.columns == 1);
}

TEST_CASE("the largest tensor does not overflow the counts") {
  for (const std::size_t payload : kPayloads) {
    for (const std::uint32_t block : {1u, 256u, 16384u}) {
      const std::uint32_t fitting = fitting_block_elements(block, ElementType::kFloat16, payload);
      const std::uint64_t most = max_element_count(fitting);
      const Geometry g = Geometry::make(most, ElementType::kFloat16, block, payload, 1024, 1023);
      CAPTURE(payload, block, +g.columns);
      CHECK(g.blocks == kNoBlock.value);
      CHECK(g.used_streams() == 1024);
      CHECK(g.first_index(StreamId{1022}, 0) == BlockIndex{1023u * g.columns});
      const BlockIndex last{g.blocks - 1};
      CHECK(g.elements_of(last) == g.block_elements);
      CHECK(g.offset_of(last) + g.bytes_of(last) == most * 2);
    }
  }
}

}  // namespace geometry_tests
