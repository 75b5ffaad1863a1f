// Keyed pairs: how runs are written and read, how chunks are cut and dealt, and what a caller is
// told.
#include "common/protocol/keyed.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/sim/random.hpp"
#include "tests/unit/catch.hpp"
#include "worker/engine/keyed_operation.hpp"
#include "worker/engine/op_request.hpp"

using namespace sluice;
using Read = ChunkReader::Read;

namespace {

struct Chunk {
  std::uint64_t number = 0;
  std::vector<std::uint8_t> offsets = {};
  std::vector<std::byte> rows = {};
};

Session session_of(std::uint16_t payload_bytes, std::uint16_t streams = 8) {
  return {.ranks = 4,
          .streams = streams,
          .block_elements = 256,
          .payload_bytes = payload_bytes,
          .history = 8};
}

/// Rows of so many bytes.
ChunkFormat format_of(std::uint8_t bits, std::uint16_t row_bytes) {
  return {bits, row_bytes, ElementType::kInt8};
}

std::vector<std::byte> run_of(const std::vector<Chunk>& chunks, const ChunkFormat& format) {
  std::vector<std::byte> room(1 << 20);
  ChunkWriter writer(room, format);
  for (const Chunk& chunk : chunks) {
    std::byte* const rows = writer.append(chunk.number, chunk.offsets);
    REQUIRE(rows != nullptr);
    std::copy(chunk.rows.begin(), chunk.rows.end(), rows);
  }
  room.resize(writer.size());
  return room;
}

Read read_all(std::span<const std::byte> run, const ChunkFormat& format) {
  ChunkReader reader(run, format);
  KeyedChunk chunk;
  Read read = Read::kChunk;
  while (read == Read::kChunk) read = reader.next(chunk);
  return read;
}

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

}  // namespace

TEST_CASE("what is read of a run is what was written") {
  sim::Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto bits = static_cast<std::uint8_t>(random.below(9));
    const auto row_bytes = static_cast<std::uint16_t>(random.between(1, 20));
    const ChunkFormat format = format_of(bits, row_bytes);
    std::vector<Chunk> chunks;
    std::uint64_t number = random.pick<std::uint64_t>({0, random.below(300), random.next() / 2});
    for (std::uint64_t n = random.below(6); n > 0; --n) {
      Chunk chunk{.number = number};
      const double density = random.pick({0.01, 0.5, 1.0, random.unit()});
      for (unsigned offset = 0; offset < 1u << bits; ++offset)
        if (random.chance(density)) chunk.offsets.push_back(static_cast<std::uint8_t>(offset));
      if (chunk.offsets.empty()) continue;
      for (std::size_t b = 0; b < chunk.offsets.size() * row_bytes; ++b)
        chunk.rows.push_back(static_cast<std::byte>(random.next()));
      chunks.push_back(chunk);
      number += 1 + random.pick<std::uint64_t>({0, random.below(300), random.below(1 << 30)});
    }
    const auto run = run_of(chunks, format);
    ChunkReader reader(run, format);
    KeyedChunk chunk;
    for (const Chunk& wanted : chunks) {
      REQUIRE(reader.next(chunk) == Read::kChunk);
      REQUIRE(chunk.number == wanted.number);
      REQUIRE(chunk.count == wanted.offsets.size());
      REQUIRE(std::equal(wanted.offsets.begin(), wanted.offsets.end(), chunk.offsets.begin()));
      REQUIRE(std::memcmp(chunk.rows, wanted.rows.data(), wanted.rows.size()) == 0);
    }
    REQUIRE(reader.next(chunk) == Read::kEnd);
    // And no part of it is read as another run's end.
    if (!run.empty())
      REQUIRE(read_all(std::span(run).first(run.size() - 1), format) == Read::kMalformed);
  }
}

TEST_CASE("the shorter form of a chunk's keys is written") {
  const auto size_of = [](std::size_t count) {
    std::vector<std::uint8_t> offsets(count);
    std::iota(offsets.begin(), offsets.end(), std::uint8_t{0});
    return run_of({{0, offsets, std::vector<std::byte>(count)}}, format_of(8, 1)).size() - count;
  };
  CHECK(size_of(1) == 2 + 1);
  CHECK(size_of(31) == 2 + 31);
  CHECK(size_of(32) == 2 + 32);
  CHECK(size_of(255) == 2 + 32);
  CHECK(size_of(256) == 2);
}

TEST_CASE("scaled rows lie behind the scale of their chunk") {
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kInt4}) {
    const ChunkFormat format(2, 3, WireType(encoding));
    std::vector<std::byte> room(100);
    ChunkWriter writer(room, format);
    const std::vector<std::uint8_t> offsets{1, 2, 3};
    std::byte* const rows = writer.append(7, offsets);
    const std::size_t rows_bytes = encoding == Encoding::kInt8 ? 9 : 5;  // 9 elements
    REQUIRE(format.rows_bytes(3) == rows_bytes);
    std::fill_n(rows, rows_bytes, std::byte{0x21});
    writer.set_scale(-3);
    auto wanted = bytes({7, 2, 0xFD, 0xFF, 0x0E});
    wanted.insert(wanted.end(), rows_bytes, std::byte{0x21});
    REQUIRE(std::ranges::equal(writer.run(), wanted));
    ChunkReader reader(wanted, format);
    KeyedChunk chunk;
    REQUIRE(reader.next(chunk) == Read::kChunk);
    CHECK((chunk.number == 7 && chunk.count == 3 && chunk.scale == -3));
    CHECK(chunk.rows == wanted.data() + 5);
    CHECK(reader.next(chunk) == Read::kEnd);
    for (std::size_t length = 1; length < wanted.size(); ++length)
      CHECK(read_all(std::span(wanted).first(length), format) == Read::kMalformed);
    wanted[2] = std::byte{0x69};  // -151: less than any scale
    wanted[3] = std::byte{0xFF};
    CHECK(read_all(wanted, format) == Read::kMalformed);
    wanted[2] = std::byte{0x00};  // NaN
    wanted[3] = std::byte{0x80};
    CHECK(read_all(wanted, format) == Read::kEnd);
  }
}

TEST_CASE("a run that is not one is refused") {
  CHECK(read_all(bytes({0, 0, 2, 9}), format_of(2, 1)) == Read::kEnd);
  CHECK(read_all(bytes({0, 0, 0x12, 9}), format_of(2, 1)) ==
        Read::kMalformed);  // a key beyond the chunk
  CHECK(read_all(bytes({0, 0, 3, 9}), format_of(2, 1)) ==
        Read::kMalformed);  // two keys, one announced
  CHECK(read_all(bytes({0, 1, 2, 9, 9}), format_of(2, 1)) ==
        Read::kMalformed);  // one key, two announced
  CHECK(read_all(bytes({0, 4, 9, 9, 9, 9, 9}), format_of(2, 1)) ==
        Read::kMalformed);  // more than a chunk has
  CHECK(read_all(bytes({0x80, 0, 0, 2, 9}), format_of(2, 1)) ==
        Read::kMalformed);  // a number, too long
  CHECK(read_all(bytes({0x80}), format_of(2, 1)) == Read::kMalformed);
  CHECK(read_all(bytes({0, 1, 5, 5, 9, 9}), format_of(8, 1)) ==
        Read::kMalformed);  // keys do not rise
  CHECK(read_all(bytes({0, 1, 6, 5, 9, 9}), format_of(8, 1)) == Read::kMalformed);
  CHECK(read_all(bytes({0, 1, 5, 6, 9, 9}), format_of(8, 1)) == Read::kEnd);
  // The number 2^64 - 1 means none, and 2^64 does not exist.
  auto last = bytes({0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 2, 9});
  CHECK(read_all(last, format_of(2, 1)) == Read::kMalformed);
  last[0] = std::byte{0xFE};
  CHECK(read_all(last, format_of(2, 1)) == Read::kEnd);
  last.insert(last.end(), {std::byte{0}, std::byte{0}, std::byte{2}, std::byte{9}});
  CHECK(read_all(last, format_of(2, 1)) == Read::kMalformed);
  last[9] = std::byte{3};
  CHECK(read_all(last, format_of(2, 1)) == Read::kMalformed);
}

TEST_CASE("any bytes are read without harm, and what is read is in order") {
  sim::Random random(2);
  for (int i = 0; i < 20'000; ++i) {
    const auto bits = static_cast<std::uint8_t>(random.below(9));
    std::vector<std::byte> run(random.below(60));
    for (std::byte& byte : run)
      byte = static_cast<std::byte>(random.chance(0.5) ? random.below(4) : random.next());
    ChunkReader reader(run, format_of(bits, static_cast<std::uint16_t>(random.between(1, 9))));
    KeyedChunk chunk;
    std::uint64_t lowest = 0;
    while (reader.next(chunk) == Read::kChunk) {
      REQUIRE(chunk.number >= lowest);
      lowest = chunk.number + 1;
      for (std::size_t k = 0; k < chunk.count; ++k) {
        REQUIRE(chunk.offsets[k] < 1u << bits);
        REQUIRE((k == 0 || chunk.offsets[k] > chunk.offsets[k - 1]));
      }
    }
  }
}

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

TEST_CASE("neighbouring chunks are dealt to all streams alike") {
  const auto g = *KeyedGeometry::make(1u << 30, 1, ElementType::kFloat32, session_of(1472, 16), 5);
  std::vector<int> chunks(16);
  for (std::uint64_t chunk = 1000; chunk < 1000 + 16'000; ++chunk)
    ++chunks.at(g.stream_of(chunk).value);
  for (const int n : chunks) CHECK((n > 990 && n < 1010));
  CHECK(g.used_streams() == 16);
  // Also where only some have keys, at equal distances.
  for (const std::uint64_t distance : {2, 16, 89, 256, 4096, 1 << 20}) {
    std::ranges::fill(chunks, 0);
    for (std::uint64_t i = 0; i < 16'000; ++i) ++chunks.at(g.stream_of(i * distance).value);
    for (const int n : chunks) CHECK((n > 800 && n < 1200));
  }
  // A small op bothers few, and always the stream on which descriptors meet.
  const auto small = *KeyedGeometry::make(600, 1, ElementType::kFloat32, session_of(1472, 16), 5);
  CHECK(small.used_streams() == 3);
  for (std::uint16_t s = 0; s < 16; ++s) CHECK(small.uses(StreamId{s}) == (s >= 5 && s < 8));
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) CHECK(small.uses(small.stream_of(chunk)));
}

TEST_CASE("sums of keys that lack parts are not written beyond the caller's memory") {
  const auto g = *KeyedGeometry::make(300, 1, ElementType::kFloat32, session_of(1472, 1), 0);
  worker::KeyedSums sums(g, ElementType::kFloat32, std::make_shared<worker::ResultMemory>());
  const std::vector<std::uint8_t> firsts{0, 3, 6, 9, 12};  // the first of three parts each
  const auto run = run_of({{0, firsts, std::vector<std::byte>(5 * sizeof(float))}}, g.format());
  REQUIRE(sums.add(StreamId{0}, run, 0, kNoChunk) == 5u);
  std::vector<std::uint64_t> keys(9, 77);
  std::vector<std::byte> rows(100, std::byte{7});
  sums.merge(std::span(keys).first(1), std::span(rows).first(3 * sizeof(float)), 3);
  CHECK(keys == std::vector<std::uint64_t>{0, 77, 77, 77, 77, 77, 77, 77, 77});
  CHECK(rows[3 * sizeof(float)] == std::byte{7});
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
