// fp32 in fewer bits, on every instruction set, against the simulator's scalar reference.
#include "common/numeric/encoding.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "tests/sim/random.hpp"
#include "tests/sim/tensors.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/kernel_parts.hpp"

namespace encoding_tests {

using namespace sluice;
using numeric::Rounding;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
constexpr std::uint64_t kSeed = 0x5eed;
constexpr OpNumber kOp = 11;

const WireType kInt8{Encoding::kInt8};
const WireType kInt4{Encoding::kInt4};

std::span<const std::byte> bytes_of(const std::vector<float>& elements) {
  return std::as_bytes(std::span(elements));
}

struct Encoded {
  std::vector<std::byte> block;
  std::int16_t scale = 0;
  friend bool operator==(const Encoded&, const Encoded&) = default;
};

Encoded encoded(WireType type, const std::vector<float>& elements, Rounding rounding = {}) {
  Encoded out{std::vector<std::byte>(type.bytes(elements.size()), std::byte{0xee})};
  out.scale =
      numeric::encode(type, out.block.data(), bytes_of(elements).data(), elements.size(), rounding);
  return out;
}

std::vector<float> decoded(WireType type, const Encoded& in, std::size_t elements) {
  std::vector<float> out(elements);
  numeric::decode(type, std::as_writable_bytes(std::span(out)).data(), in.block.data(),
                  {elements, 0, elements}, in.scale);
  return out;
}

std::vector<float> through(WireType type, const std::vector<float>& elements,
                           Rounding rounding = {}) {
  return decoded(type, encoded(type, elements, rounding), elements.size());
}

/// Numbers of about one magnitude, or of many; NaN and infinity at times.
std::vector<float> random_block(sim::Random& random, std::size_t count) {
  const bool wide = random.chance(0.3);
  const int exponent = static_cast<int>(random.below(276)) - 148;
  std::vector<float> elements(count);
  for (float& element : elements) {
    const int own = wide ? static_cast<int>(random.below(276)) - 148 : exponent;
    element = static_cast<float>(std::ldexp(random.uniform(-1, 1), own));
    if (random.chance(0.1)) element = random.pick({0.0F, -0.0F});
    if (random.chance(0.0005)) element = random.pick({std::nanf(""), kInfinity, -kInfinity});
  }
  return elements;
}

double largest(const std::vector<float>& elements) {
  double most = 0;
  for (const float element : elements) {
    if (!std::isfinite(element)) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::fabs(double{element}));
  }
  return most;
}

}  // namespace

TEST_CASE("every instruction set encodes and decodes as the reference does") {
  sim::Random random(1);
  constexpr std::uint32_t kBlock = 7;
  std::vector<std::size_t> counts{255, 256, 257, 1000, 2387};
  for (std::size_t count = 0; count < 70; ++count) counts.push_back(count);
  for (const std::size_t count : counts)
    for (const Encoding encoding :
         {Encoding::kFloat16, Encoding::kBFloat16, Encoding::kInt8, Encoding::kInt4})
      for (const std::uint64_t seed : {std::uint64_t{0}, kSeed}) {
        const std::vector<float> elements = random_block(random, count);
        const sim::OpSpec op{.encoding = encoding, .rounding_seed = seed, .number = kOp};
        const std::uint32_t by = random.chance(0.5) ? 3 : numeric::Rounder::kAggregator;
        const auto wanted = sim::travelled(op, {.block = kBlock, .by = by}, bytes_of(elements));
        const Rounding rounding = numeric::Rounder{seed, kOp, by}.of(kBlock);
        CAPTURE(count, name(encoding), seed);
        for (const std::int64_t target : parts::distinct_targets()) {
          const parts::TargetScope scope(target);
          CAPTURE(numeric::simd_target());
          const auto got = through(WireType(encoding), elements, rounding);
          CHECK(sim::same(bytes_of(got), wanted, ElementType::kFloat32));
        }
      }
}

TEST_CASE("encoding writes its block alone, wherever that lies") {
  parts::FencedMemory in(4 * 300 + 1), out(4 * 300 + 1);
  sim::Random random(2);
  for (const Encoding encoding : {Encoding::kBFloat16, Encoding::kInt8, Encoding::kInt4})
    for (const std::size_t count : {1, 2, 3, 15, 17, 33, 64, 127, 299})
      for (int placement = 0; placement < parts::FencedMemory::kPlacements; ++placement) {
        const WireType type(encoding);
        const std::vector<float> elements = random_block(random, count);
        std::byte* const from = in.place(placement, 4 * count);
        std::memcpy(from, elements.data(), 4 * count);
        for (const std::int64_t target : parts::distinct_targets()) {
          const parts::TargetScope scope(target);
          std::byte* const block = out.place(placement, type.bytes(count));
          out.fill(std::byte{0x11});
          const std::int16_t scale = numeric::encode(type, block, from, count, {});
          CHECK(out.holds_around(block, type.bytes(count), std::byte{0x11}));
          Encoded copy{{block, block + type.bytes(count)}, scale};
          CHECK(copy == encoded(type, elements));
          std::byte* const back = out.place(placement, 4 * count);
          out.fill(std::byte{0x11});
          numeric::decode(type, back, copy.block.data(), {count, 0, count}, scale);
          CHECK(out.holds_around(back, 4 * count, std::byte{0x11}));
        }
      }
}

TEST_CASE("a part of a block is decoded as in the whole") {
  sim::Random random(3);
  for (const Encoding encoding : {Encoding::kFloat16, Encoding::kInt8, Encoding::kInt4})
    for (const std::size_t count : {1, 2, 7, 40, 41}) {
      const WireType type(encoding);
      const Encoded block = encoded(type, random_block(random, count));
      const auto whole = decoded(type, block, count);
      for (std::size_t first = 0; first <= count; ++first)
        for (std::size_t n = 0; n <= count - first; ++n) {
          std::vector<float> part(n);
          numeric::decode(type, std::as_writable_bytes(std::span(part)).data(), block.block.data(),
                          {count, first, n}, block.scale);
          CHECK(sim::same(bytes_of(part), bytes_of(whole).subspan(4 * first, 4 * n),
                          ElementType::kFloat32));
        }
    }
}

TEST_CASE("where the numbers of a scaled block lie") {
  const Encoded bytes = encoded(kInt8, {127, -127, 1, 0.5F, 1.5F, -0.0F});
  CHECK(bytes.scale == 0);
  CHECK(bytes.block == std::vector<std::byte>{std::byte{127}, std::byte{0x81}, std::byte{1},
                                              std::byte{0}, std::byte{2}, std::byte{0}});
  const Encoded nibbles = encoded(kInt4, {14, -14, 2, 4, -6});  // units of 2: 7 -7 1 | 2 -3
  CHECK(nibbles.scale == 1);
  CHECK(nibbles.block == std::vector<std::byte>{std::byte{0x27}, std::byte{0xd9}, std::byte{0x01}});
}

TEST_CASE("what is rounded is as near as is promised, and comes through unchanged again") {
  sim::Random random(4);
  for (const WireType type : {kInt8, kInt4})
    for (const std::uint64_t seed : {std::uint64_t{0}, kSeed})
      for (int i = 0; i < 3000; ++i) {
        const std::vector<float> elements = random_block(random, 64);
        const double most = largest(elements);
        if (!std::isfinite(most)) continue;
        const auto rounding = numeric::Rounder{seed, static_cast<OpNumber>(i), 0}.of(0);
        const Encoded once = encoded(type, elements, rounding);
        const auto got = decoded(type, once, elements.size());
        const double bound = most / type.most() * (seed == 0 ? 1 : 2);
        double off = 0;
        for (std::size_t e = 0; e < got.size(); ++e)
          off = std::max(off, std::fabs(double{got[e]} - double{elements[e]}));
        CHECK(off <= bound);
        // Whoever rounds it, in whatever way.
        const auto other = numeric::Rounder{kSeed, static_cast<OpNumber>(i), 5}.of(1);
        CHECK(through(type, got) == got);
        CHECK(through(type, got, other) == got);
        if (seed == 0) CHECK(encoded(type, got, other) == once);
      }
}

TEST_CASE("the largest and the smallest numbers have a scale") {
  for (const WireType type : {kInt8, kInt4}) {
    const auto q = static_cast<float>(type.most());
    const float cap = std::ldexp(q, type.largest_scale());
    CHECK(std::isfinite(cap));
    CHECK(through(type, {kLargest, -kLargest, 1}) == std::vector<float>{cap, -cap, 0});
    CHECK(encoded(type, {kLargest}).scale == type.largest_scale());
    CHECK(through(type, {kSmallest, 3 * kSmallest}) ==
          std::vector<float>{kSmallest, 3 * kSmallest});
    CHECK(encoded(type, {kSmallest}).scale == WireType::kLeastScale);
    // The least scale that reaches, on either side of where it changes.
    const float next = std::nextafter(q, kInfinity);
    CHECK(encoded(type, {q}).scale == 0);
    CHECK(encoded(type, {next}).scale == 1);
    CHECK(encoded(type, {(q + 1) / 2}).scale == 0);
    CHECK(encoded(type, {q / 2}).scale == -1);
  }
}

TEST_CASE("a block that is not finite is NaN in whole, and one of zeros stays so") {
  for (const WireType type : {kInt8, kInt4}) {
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity})
      for (std::size_t at = 0; at < 40; ++at) {
        std::vector<float> elements(40, 1);
        elements[at] = bad;
        const Encoded block = encoded(type, elements);
        CHECK(block.scale == WireType::kNotFinite);
        CHECK(block.block == std::vector<std::byte>(type.bytes(40)));
        for (const float element : decoded(type, block, 40)) CHECK(std::isnan(element));
      }
    const Encoded zeros = encoded(type, {0, -0.0F, 0});
    CHECK(zeros == Encoded{std::vector<std::byte>(type.bytes(3)), 0});
    for (const float element : decoded(type, zeros, 3)) CHECK_FALSE(std::signbit(element));
  }
  // As their types have them.
  const auto halves = through(ElementType::kFloat16, {65519, 65520, -1e30F, 1e-8F, -0.0F});
  CHECK(halves == std::vector<float>{65504, kInfinity, -kInfinity, 0, 0});
  CHECK(std::isnan(through(ElementType::kBFloat16, {std::nanf("")})[0]));
  CHECK(through(ElementType::kBFloat16, {kLargest, kInfinity}) ==
        std::vector<float>{kInfinity, kInfinity});
}

TEST_CASE("stochastic rounding has the right mean, by any block, op, rank and seed") {
  constexpr int kBlocks = 2000;
  constexpr std::size_t kElements = 64;
  for (const WireType type : {kInt8, kInt4}) {
    std::vector<float> elements(kElements);
    for (std::size_t e = 0; e < kElements; ++e)
      elements[e] = (e % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(e) / 16;
    elements[0] = static_cast<float>(type.most());
    enum class Changing { kSeed, kOp, kBlock, kRank };
    for (const Changing what :
         {Changing::kSeed, Changing::kOp, Changing::kBlock, Changing::kRank}) {
      std::vector<double> sums(kElements);
      for (int i = 0; i < kBlocks; ++i) {
        const auto n = static_cast<std::uint32_t>(i);
        const numeric::Rounder rounder{.seed = what == Changing::kSeed ? 1 + n : kSeed,
                                       .op = what == Changing::kOp ? n : 0,
                                       .by = what == Changing::kRank ? n : 0};
        const auto rounding = rounder.of(what == Changing::kBlock ? n : 0);
        const auto got = through(type, elements, rounding);
        for (std::size_t e = 0; e < kElements; ++e) sums[e] += double{got[e]};
      }
      // A unit is 1: the mean of so many is off by 0.5 / sqrt(n) at a standard deviation.
      for (std::size_t e = 0; e < kElements; ++e)
        CHECK(std::fabs(sums[e] / kBlocks - double{elements[e]}) < 5 * 0.5 / std::sqrt(kBlocks));
    }
  }
}

}  // namespace encoding_tests
