// Which blocks a rank wants: the descriptor's arithmetic against a loop over all elements.
#include "common/protocol/wanted.hpp"

#include <cstdint>

#include "tests/unit/catch.hpp"

namespace wanted_tests {

using namespace sluice;

namespace {

wire::Descriptor wanting(std::uint64_t begin, std::uint64_t count, std::uint64_t stride) {
  wire::Descriptor d;
  d.flags = wire::kWantsPart;
  d.begin = begin;
  d.count = count;
  d.stride = stride;
  return d;
}

bool has_one(std::uint64_t from, std::uint64_t end, std::uint64_t begin, std::uint64_t count,
             std::uint64_t stride) {
  for (std::uint64_t e = from; e < end; ++e)
    if (e >= begin && (stride == 0 ? e - begin : (e - begin) % stride) < count) return true;
  return false;
}

}  // namespace

TEST_CASE("a block is wanted if one of its elements is") {
  for (const std::uint64_t elements : {1u, 7u, 30u}) {
    for (const std::uint32_t block : {1u, 4u, 16u}) {
      Geometry g;
      g.element_count = elements;
      g.block_elements = block;
      g.blocks = static_cast<std::uint32_t>((elements + block - 1) / block);
      for (std::uint64_t begin = 0; begin <= elements; ++begin)
        for (std::uint64_t count = 0; count <= elements; ++count)
          for (const std::uint64_t stride : {0u, 1u, 3u, 5u, 9u, 40u})
            for (std::uint32_t b = 0; b < g.blocks; ++b) {
              const std::uint64_t first = std::uint64_t{b} * block;
              const std::uint64_t end = first + g.elements_of(BlockIndex{b});
              if (wants(wanting(begin, count, stride), g, BlockIndex{b}) !=
                  has_one(first, end, begin, count, stride)) {
                CAPTURE(elements, block, begin, count, stride, b);
                FAIL("not what the loop says");
              }
            }
    }
  }
  SUCCEED();
}

TEST_CASE("numbers from the wire do no harm, however large") {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  Geometry g;
  g.element_count = 100;
  g.block_elements = 10;
  g.blocks = 10;
  CHECK(wants(wire::Descriptor{}, g, BlockIndex{9}));
  CHECK_FALSE(wants(wanting(kHuge, kHuge, kHuge), g, BlockIndex{9}));
  CHECK(wants(wanting(0, kHuge, kHuge), g, BlockIndex{9}));
  CHECK(wants(wanting(95, 1, kHuge), g, BlockIndex{9}));
  CHECK_FALSE(wants(wanting(95, 1, kHuge), g, BlockIndex{8}));
}

}  // namespace wanted_tests
