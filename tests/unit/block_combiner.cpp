// What a round of blocks comes to before it is finished.
#include "aggregator/engine/block_combiner.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/unit/catch.hpp"
#include "tests/unit/engine_parts.hpp"

namespace block_combiner_tests {

using namespace sluice;
using aggregator::BlockCombiner;

namespace {

/// The only stream of a job of four ranks, and its average of two bfloat16.
class Bench {
 public:
  void add(unsigned rank, std::array<std::uint16_t, 2> elements) {
    const bool begins = packets_.empty();
    const parts::Block block{.index = 0, .elements = {std::bit_cast<float>(elements)}};
    packets_.push_back(parts::block_packet<wire::Data>(
        1, wire::shape_of(kGeometry), true, {block},
        [](wire::Data& data, wire::Descriptor* descriptor) {
          data.flags = wire::kDataOpening;
          descriptor->op_type = static_cast<std::uint8_t>(ElementType::kBFloat16);
          descriptor->reduction = static_cast<std::uint8_t>(Reduction::kAverage);
        }));
    Packet packet;
    REQUIRE(Packet::parse(packets_.back(), packet) == DropReason::kNone);
    if (begins) REQUIRE(combiner.begin(packet, StreamId{0}, kSession, false));
    REQUIRE(combiner.fits(packet, {}));
    combiner.add(Rank{static_cast<std::uint16_t>(rank)}, packet);
  }

  std::vector<float> partial() const {
    const auto accumulators = combiner.partial_sum(0).accumulators;
    std::vector<float> sums(accumulators.size() / sizeof(float));
    if (!sums.empty()) std::memcpy(sums.data(), accumulators.data(), accumulators.size());
    return sums;
  }

 private:
  static constexpr Session kSession{.ranks = 4, .streams = 1, .payload_bytes = 508, .history = 2};
  static constexpr Geometry kGeometry =
      Geometry::make(2, ElementType::kBFloat16, 2, kSession.payload_bytes, kSession.streams, 0);

 public:
  BlockCombiner combiner{kSession};

 private:
  std::deque<std::vector<std::byte>> packets_;
};

constexpr std::uint16_t kOne = 0x3F80;
constexpr std::uint16_t kSmall = 0x3B80;  // 2^-8: 1 + 2^-8 is no bfloat16

}  // namespace

TEST_CASE("a partial sum is neither rounded nor divided, and tells of how many ranks it is") {
  Bench bench;
  bench.add(0, {kOne, kOne});
  CHECK(bench.combiner.partial_sum(0).ranks == 1);
  CHECK(bench.partial() == std::vector<float>{1, 1});
  bench.add(2, {kSmall, kOne});
  CHECK(bench.combiner.partial_sum(0).ranks == 2);
  CHECK(bench.partial() == std::vector<float>{1.00390625F, 2});
}

TEST_CASE("a column that nobody contributed to has no partial sum") {
  Bench bench;
  bench.add(0, {kOne, kOne});
  bench.combiner.start_round(std::array{BlockIndex{0}});
  CHECK(bench.combiner.partial_sum(0).ranks == 0);
  CHECK(bench.partial().empty());
}

}  // namespace block_combiner_tests
