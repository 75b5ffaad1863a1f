// Every block of an op is on exactly one column of one stream and reached exactly once.
#include "common/protocol/geometry.hpp"

#include <algorithm>
#include <random>
#include <utility>
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

/// The formula of docs/protocol.md: a block's column, counted over all streams.
std::uint64_t column_of(const Geometry& g, std::uint64_t block, OpNumber op) {
  const std::uint64_t all = std::uint64_t{g.streams} * g.columns, row = block / all;
  const std::uint64_t rotation = row * 0x5D9D7397 % (std::uint64_t{1} << 32) * all >> 32;
  return (block + op % g.streams * g.columns + rotation) % all;
}

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
      std::uint32_t passed = 0;
      for (BlockIndex b = first; b != kNoBlock; b = g.following(b)) {
        ++visits[b.value];
        REQUIRE(column_of(g, b.value, op) == std::uint64_t{s} * g.columns + c);
        REQUIRE(g.column_of(b) == g.first_column(stream) + c);
        REQUIRE(g.blocks_between(first, b) == passed++);
      }
      REQUIRE(g.blocks_between(first, kNoBlock) == passed);
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
  CHECK(g.row_blocks() == 6);
  CHECK(g.first_index(StreamId{1}, 0) == BlockIndex{0});
  CHECK(g.first_index(StreamId{1}, 1) == BlockIndex{1});
  CHECK(g.first_index(StreamId{2}, 0) == BlockIndex{2});
  CHECK(g.first_index(StreamId{2}, 1) == BlockIndex{3});
  CHECK(g.first_index(StreamId{0}, 0) == BlockIndex{4});
  CHECK(g.first_index(StreamId{0}, 1) == BlockIndex{5});
  CHECK(g.following({4}) == BlockIndex{8});
  check_mapping(g, 4);
}

TEST_CASE("a block's row is found without a division") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100'000; ++i) {
    const auto streams = static_cast<std::uint16_t>(1 + random() % 1024);
    const Geometry g = Geometry::make(0, ElementType::kInt8, 1, random() % 2 ? 1472 : 8972,
                                      i < 1000 ? 1 : streams, 0);
    const auto near = static_cast<std::uint32_t>(random() >> (32 + random() % 32));
    for (const std::uint32_t b : {near, near / g.row_blocks() * g.row_blocks(),
                                  near / g.row_blocks() * g.row_blocks() - 1, 0xFFFF'FFFEu})
      REQUIRE(g.row_of(BlockIndex{b}) == b / g.row_blocks());
  }
}

/// The largest partial quotient of a fraction of 2^32 as a continued fraction, as far as its
/// convergents' denominators are below `end`.
std::uint64_t largest_quotient(std::uint64_t fraction, std::uint64_t end) {
  std::uint64_t largest = 0, before = 0, denominator = 1;
  for (std::uint64_t x = std::uint64_t{1} << 32, y = fraction; y != 0 && denominator < end;) {
    const std::uint64_t quotient = x / y;
    largest = std::max(largest, quotient);
    before = std::exchange(denominator, quotient * denominator + before);
    x = std::exchange(y, x % y);
  }
  return largest;
}

TEST_CASE("rotations are spread evenly, and so are those of every few rows") {
  // Of the golden ratio 137 is reached.
  for (const std::uint32_t multiple :
       {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u, 12u, 16u, 20u, 24u, 32u, 48u, 64u, 96u, 128u})
    CHECK(largest_quotient(Geometry::kRowFraction * multiple, 4000) <= 12);
}

TEST_CASE("a matrix with one group of columns that is not zero is spread over all columns") {
  // Its gradient is non-zero in 256 aligned columns of all its rows: one block of each.
  const std::uint32_t rows = 12'288;
  for (const std::uint32_t width : {2048u, 4096u, 8192u, 3072u, 5120u, 11008u})
    for (const std::size_t payload : {1472u, 8972u})
      for (const std::uint16_t streams : std::vector<std::uint16_t>{8, 12, 64}) {
        const Geometry g = Geometry::make(std::uint64_t{rows} * width, ElementType::kFloat32, 256,
                                          payload, streams, 0);
        std::vector<std::uint32_t> of_column(g.row_blocks()), of_stream(streams);
        for (std::uint32_t row = 0; row < rows; ++row) {
          const std::uint64_t element = std::uint64_t{row} * width + 3 * 256;
          const std::uint32_t column =
              g.column_of({static_cast<std::uint32_t>(element / g.block_elements)});
          ++of_column[column];
          ++of_stream[column / g.columns];
        }
        const auto fullest = [&](const std::vector<std::uint32_t>& of) {
          return *std::ranges::max_element(of) * static_cast<double>(of.size()) / rows;
        };
        CAPTURE(width, payload, streams);
        CHECK(fullest(of_stream) < 1.05);
        CHECK(fullest(of_column) < 1.3);  // 24 blocks of each, where there are most columns
      }
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
