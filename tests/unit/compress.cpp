// Compressors: the kernels against a plain scalar reference, bit for bit, on every instruction set
// of this machine, and what include/sluice/compress.hpp promises of all of them.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include <sluice/compress.hpp>

#include "common/numeric/compression.hpp"
#include "common/numeric/kernels.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/kernel_parts.hpp"

namespace compress_tests {

using namespace sluice;
using parts::distinct_targets;
using parts::FencedMemory;
using parts::TargetScope;

namespace {

using Random = std::mt19937_64;
using Floats = std::vector<float>;
using Words = std::vector<std::uint64_t>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool bit(const Words& words, std::uint64_t at) {
  return (words[at / 64] >> (at % 64) & 1) != 0;
}

// ---------------------------------------------------------------- the scalar reference

struct Tensor {
  Floats gradients;
  Floats residual;  // empty: none
  std::uint32_t block_elements = 1;
  float divisor = 1;

  std::size_t blocks() const { return (gradients.size() + block_elements - 1) / block_elements; }
  float sum(std::size_t i) const {
    return residual.empty() ? gradients[i] : gradients[i] + residual[i];
  }
  Floats sums() const {
    Floats all;
    for (std::size_t i = 0; i < gradients.size(); ++i) all.push_back(sum(i));
    return all;
  }
  std::size_t begin(std::size_t block) const { return block * block_elements; }
  std::size_t end(std::size_t block) const {
    return std::min(gradients.size(), begin(block) + block_elements);
  }
  double energy(std::size_t block) const {
    std::array<double, 32> lanes{};
    for (std::size_t i = begin(block); i < end(block); ++i)
      lanes[(i - begin(block)) % 32] += double{sum(i)} * double{sum(i)};
    for (std::size_t width = 16; width != 0; width /= 2)
      for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
  }
};

struct Split {
  Floats out;
  Floats residual;
  Words sent;
  std::uint64_t count = 0;
};

template <class IsSent>
Split reference_split(const Tensor& tensor, IsSent&& is_sent) {
  Split split{Floats(tensor.gradients.size()), Floats(tensor.residual.size()),
              Words((tensor.blocks() + 63) / 64)};
  for (std::size_t block = 0; block < tensor.blocks(); ++block) {
    const double energy = tensor.energy(block);
    const bool sent = !std::isfinite(energy) || (energy > 0 && is_sent(block));
    for (std::size_t i = tensor.begin(block); i < tensor.end(block); ++i) {
      if (sent) split.out[i] = tensor.divisor == 1 ? tensor.sum(i) : tensor.sum(i) / tensor.divisor;
      if (!sent && !tensor.residual.empty()) split.residual[i] = tensor.sum(i);
    }
    if (!sent) continue;
    split.sent[block / 64] |= std::uint64_t{1} << (block % 64);
    ++split.count;
  }
  return split;
}

void check_same(const Split& split, const Split& expected) {
  CHECK(split.count == expected.count);
  CHECK(split.sent == expected.sent);
  CHECK(same_bits(split.out, expected.out));
  CHECK(same_bits(split.residual, expected.residual));
}

// ---------------------------------------------------------------- values

float special_value(Random& random) {
  constexpr std::array kValues{0.0F,      -0.0F, 1.0F,       kLargest, -kLargest, kSmallest,
                               kInfinity, -kNaN, -kInfinity, kNaN,     -kSmallest};
  return kValues[random() % kValues.size()];
}

/// Blocks that are zero, of ordinary values, equal to each other, and a few that are special. Of
/// two NaNs the sum's payload is the machine's choice, so only the gradients have any.
Tensor random_tensor(Random& random, std::size_t count, std::uint32_t block_elements) {
  Tensor tensor{Floats(count), Floats(random() % 3 == 0 ? 0 : count), block_elements,
                random() % 3 == 0 ? 3.0F : 1.0F};
  std::normal_distribution<float> normal;
  for (std::size_t block = 0; block < tensor.blocks(); ++block) {
    const auto kind = random() % 8;
    for (std::size_t i = tensor.begin(block); i < tensor.end(block); ++i) {
      if (kind == 0) tensor.gradients[i] = random() % 2 == 0 ? 0.0F : -0.0F;
      if (kind == 1) tensor.gradients[i] = random() % 8 == 0 ? special_value(random) : 0.5F;
      if (kind == 2) tensor.gradients[i] = 0.25F;
      if (kind > 2) tensor.gradients[i] = normal(random);
      if (kind > 3 && !tensor.residual.empty()) tensor.residual[i] = normal(random);
    }
  }
  return tensor;
}

Tensor normal_tensor(std::uint64_t seed, std::size_t count, std::uint32_t block_elements = 256) {
  Random random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor{Floats(count), Floats(count), block_elements};
  for (float& value : tensor.gradients) value = normal(random);
  for (float& value : tensor.residual) value = normal(random);
  return tensor;
}

// ---------------------------------------------------------------- running

/// Calls one of compress.hpp's functions on a copy; in place every other time.
template <class Function>
Split compressed(const Tensor& tensor, bool in_place, Function&& function) {
  Floats gradients = tensor.gradients;
  Split split{Floats(gradients.size(), 77.0F), tensor.residual,
              Words((tensor.blocks() + 63) / 64, 0x5555)};
  split.count = function(BlockCompression{gradients, split.residual,
                                          in_place ? std::span<float>(gradients) : split.out,
                                          split.sent, tensor.block_elements, tensor.divisor});
  if (in_place) split.out = gradients;
  if (!in_place) CHECK(same_bits(gradients, tensor.gradients));
  return split;
}

Split with_top_k(const Tensor& tensor, std::uint64_t k, bool in_place = false) {
  return compressed(tensor, in_place,
                    [k](const BlockCompression& blocks) { return compress_top_k(blocks, k); });
}

Split with_threshold(const Tensor& tensor, double norm, bool in_place = false) {
  return compressed(tensor, in_place, [norm](const BlockCompression& blocks) {
    return compress_threshold(blocks, norm);
  });
}

Split with_random_k(const Tensor& tensor, std::uint64_t k, std::uint64_t seed, std::uint64_t step,
                    bool in_place = false) {
  return compressed(tensor, in_place, [&](const BlockCompression& blocks) {
    return compress_random_k(blocks, k, seed, step);
  });
}

/// The k best blocks by sorting: infinite scores first.
std::set<std::size_t> best(const std::vector<double>& scores, std::uint64_t k) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<std::size_t>(k, order.size()));
  return {order.begin(), order.end()};
}

double finite_or_infinite(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
}

std::vector<double> energies_of(const Tensor& tensor) {
  std::vector<double> scores;
  for (std::size_t block = 0; block < tensor.blocks(); ++block)
    scores.push_back(finite_or_infinite(tensor.energy(block)));
  return scores;
}

struct Taken {
  Floats residual;
  SparseElements elements;
};

/// The elements of which `is_taken` holds; of each bucket in turn.
template <class IsTaken>
Taken reference_taken(const Tensor& tensor, IsTaken&& is_taken) {
  Taken taken{Floats(tensor.residual.size()), {}};
  for (std::size_t i = 0; i < tensor.gradients.size(); ++i) {
    if (is_taken(i)) {
      taken.elements.keys.push_back(static_cast<std::uint32_t>(i));
      taken.elements.values.push_back(tensor.sum(i));
    } else if (!tensor.residual.empty()) {
      taken.residual[i] = tensor.sum(i);
    }
  }
  return taken;
}

void check_same(const Taken& taken, const Taken& expected) {
  CHECK(taken.elements.keys == expected.elements.keys);
  CHECK(same_bits(taken.elements.values, expected.elements.values));
  CHECK(same_bits(taken.residual, expected.residual));
}

std::uint32_t magnitude(float value) {
  return bits_of(value) & numeric::kMagnitudeMask;
}

std::set<std::size_t> best_elements(const Tensor& tensor, std::uint64_t k, std::size_t bucket) {
  std::set<std::size_t> all;
  const std::size_t count = tensor.gradients.size();
  for (std::size_t first = 0; first < count; first += bucket) {
    std::vector<double> scores;
    for (std::size_t i = first; i < std::min(count, first + bucket); ++i)
      scores.push_back(std::min(magnitude(tensor.sum(i)), numeric::kInfinityBits));
    for (const std::size_t i : best(scores, k)) all.insert(first + i);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (scores[i] == numeric::kInfinityBits) all.insert(first + i);
      if (scores[i] == 0) all.erase(first + i);
    }
  }
  return all;
}

Taken with(ElementTopK& top_k, const Tensor& tensor) {
  Taken taken{tensor.residual, {{1, 2, 3}, {4, 5, 6}}};
  top_k.compress(tensor.gradients, taken.residual, taken.elements);
  return taken;
}

template <class Call>
void check_refused(Call&& call, const std::string& text) {
  try {
    call();
    FAIL("nothing thrown, expected: " << text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    CHECK_THAT(error.what(), Catch::Contains(text));
  }
}

constexpr std::byte kGuard{0xA5};

/// Floats between fences, at the upper or the lower one.
class FencedFloats {
 public:
  FencedFloats(FencedMemory& memory, bool upper, const Floats& values)
      : memory_(memory), size_(values.size() * sizeof(float)) {
    memory.fill(kGuard);
    at_ = memory.place(upper ? 0 : 2, size_);
    if (size_ != 0) std::memcpy(at_, values.data(), size_);
  }
  float* data() const { return reinterpret_cast<float*>(at_); }
  Floats values() const { return Floats(data(), data() + size_ / sizeof(float)); }
  bool nothing_around_changed() const { return memory_.holds_around(at_, size_, kGuard); }

 private:
  FencedMemory& memory_;
  std::byte* at_ = nullptr;
  std::size_t size_;
};

constexpr std::array<std::uint32_t, 12> kBlockSizes{1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 256, 1000};
constexpr std::size_t kMostElements = 16000;

}  // namespace

// ---------------------------------------------------------------- kernels

TEST_CASE("blocks are kept as a plain loop keeps them, on every target") {
  Random random(1);
  FencedMemory a(kMostElements * 4), b(kMostElements * 4), c(kMostElements * 4);
  for (int round = 0; round < 400; ++round) {
    const std::uint32_t block_elements = kBlockSizes[random() % kBlockSizes.size()];
    const std::size_t count =
        random() % (std::min<std::size_t>(kMostElements, 150 * block_elements) + 1);
    const Tensor tensor = random_tensor(random, count, block_elements);
    const double energy = std::array{0.0, 1.0, 0.5 * block_elements, 1e300}[random() % 4];
    Words chosen(tensor.blocks() / 64 + 1);
    for (std::uint64_t& word : chosen) word = random() | random();
    Split expected = reference_split(tensor, [&](std::size_t block) {
      return bit(chosen, block) && tensor.energy(block) > energy;
    });
    for (const std::int64_t target : distinct_targets()) {
      const TargetScope scope(target);
      const bool in_place = random() % 2 == 0;
      const bool upper = random() % 2 == 0;
      INFO(numeric::simd_target() << " blocks of " << block_elements << ", " << count
                                  << " elements, round " << round << " in place " << in_place);
      const FencedFloats gradients(a, upper, tensor.gradients);
      const FencedFloats residual(b, upper, tensor.residual);
      const FencedFloats out(c, upper, Floats(count, 77.0F));
      const numeric::FeedbackBlocks blocks{gradients.data(),
                                           tensor.residual.empty() ? nullptr : residual.data(),
                                           in_place ? gradients.data() : out.data(),
                                           count,
                                           block_elements,
                                           tensor.divisor};
      std::vector<double> energies(tensor.blocks());
      numeric::block_energies(blocks, energies.data());
      bool equal = true;
      for (std::size_t block = 0; block < energies.size(); ++block) {
        const double other = tensor.energy(block);
        equal &= energies[block] == other || (std::isnan(energies[block]) && std::isnan(other));
      }
      REQUIRE(equal);
      Words sent = chosen;
      const std::uint64_t number = numeric::keep_blocks(blocks, energy, sent.data());
      for (std::size_t block = tensor.blocks(); block < 64 * sent.size(); ++block)
        equal &= bit(sent, block) == bit(chosen, block);
      CHECK(equal);
      if (tensor.blocks() % 64 != 0)
        sent[tensor.blocks() / 64] &= (std::uint64_t{1} << (tensor.blocks() % 64)) - 1;
      sent.resize(expected.sent.size());
      check_same({(in_place ? gradients : out).values(), residual.values(), sent, number},
                 expected);
      CHECK((in_place || same_bits(gradients.values(), tensor.gradients)));
      REQUIRE(gradients.nothing_around_changed());
      REQUIRE(residual.nothing_around_changed());
      REQUIRE(out.nothing_around_changed());
    }
  }
}

TEST_CASE("elements are taken as a plain loop takes them, on every target") {
  Random random(2);
  FencedMemory a(kMostElements * 4), b(kMostElements * 4);
  for (int round = 0; round < 400; ++round) {
    const std::size_t count = random() % (round < 200 ? 70 : kMostElements);
    const Tensor tensor = random_tensor(random, count, 50);
    const float least = std::array{kSmallest, 0.25F, 0.5F, 3.0F, kInfinity}[random() % 5];
    numeric::ElementLimit limit{bits_of(least),
                                random() % 2 == 0 ? ~std::uint64_t{0} : random() % 40};
    std::uint64_t ties = limit.ties;
    const Taken expected = reference_taken(tensor, [&](std::size_t i) {
      const bool is_tie = magnitude(tensor.sum(i)) == limit.bits && ties > 0;
      if (is_tie) --ties;
      return is_tie || magnitude(tensor.sum(i)) > limit.bits;
    });
    for (const std::int64_t target : distinct_targets()) {
      const TargetScope scope(target);
      const bool upper = random() % 2 == 0;
      INFO(numeric::simd_target() << " " << count << " elements, round " << round);
      const FencedFloats gradients(a, upper, tensor.gradients);
      const FencedFloats residual(b, upper, tensor.residual);
      float* const kept = tensor.residual.empty() ? nullptr : residual.data();
      std::vector<std::uint32_t> magnitudes(count);
      numeric::sum_magnitudes(gradients.data(), kept, count, magnitudes.data());
      bool equal = true;
      for (std::size_t i = 0; i < count; ++i) equal &= magnitudes[i] == magnitude(tensor.sum(i));
      REQUIRE(equal);
      numeric::ElementLimit rest = limit;
      Taken taken{{}, {std::vector<std::uint32_t>(count), Floats(count)}};
      const std::size_t number =
          numeric::take_elements(gradients.data(), kept, count, 1000, rest,
                                 taken.elements.keys.data(), taken.elements.values.data());
      taken.residual = residual.values();
      taken.elements.keys.resize(number);
      taken.elements.values.resize(number);
      for (std::uint32_t& key : taken.elements.keys) key -= 1000;
      check_same(taken, expected);
      CHECK(rest.ties == ties);
      REQUIRE(residual.nothing_around_changed());
      REQUIRE(gradients.nothing_around_changed());
    }
  }
}

// ---------------------------------------------------------------- blocks

TEST_CASE("each block compressor sends what sorting says, and keeps the rest") {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t block_elements = kBlockSizes[random() % kBlockSizes.size()];
    const std::size_t count = random() % (150 * std::min(block_elements, 100U) + 1);
    const Tensor tensor = random_tensor(random, count, block_elements);
    const bool in_place = round % 2 == 0;
    INFO("blocks of " << block_elements << ", " << count << " elements, round " << round);
    const std::uint64_t k = random() % (tensor.blocks() + 3);
    const auto wanted = best(energies_of(tensor), k);
    check_same(with_top_k(tensor, k, in_place),
               reference_split(tensor, [&](std::size_t block) { return wanted.contains(block); }));
    const double norm = std::array{0.0, 0.7, 1.0, 5.0}[random() % 4];
    check_same(with_threshold(tensor, norm, in_place),
               reference_split(
                   tensor, [&](std::size_t block) { return tensor.energy(block) > norm * norm; }));
  }
}

TEST_CASE("what is sent and what is kept have the bits of the sum") {
  const Tensor tensor = normal_tensor(4, 10'007, 64);
  const auto k = share_of(0.1, tensor.blocks());
  const Floats parameters = normal_tensor(5, 10'007).gradients;
  const Split by_ratio = compressed(tensor, false, [&](const BlockCompression& blocks) {
    return compress_top_k_ratio(blocks, parameters, k);
  });
  for (const Split& split : {with_top_k(tensor, k), with_threshold(tensor, 11.5), by_ratio,
                             with_random_k(tensor, k, 1, 2)}) {
    CHECK(split.count > 0);
    CHECK(split.count < tensor.blocks());
    bool is_whole = true;
    for (std::size_t i = 0; i < tensor.gradients.size(); ++i) {
      const bool sent = bit(split.sent, i / 64);
      is_whole &= bits_of(sent ? split.out[i] : split.residual[i]) == bits_of(tensor.sum(i));
      is_whole &= bits_of(sent ? split.residual[i] : split.out[i]) == 0;
    }
    CHECK(is_whole);
  }
  CHECK(with_top_k(tensor, k).count == k);
  CHECK(with_random_k(tensor, k, 1, 2).count == k);
  CHECK(by_ratio.count == k);
}

TEST_CASE("what was left out comes later") {
  Tensor tensor = normal_tensor(6, 5000, 100);
  std::vector<double> came(tensor.gradients.size());
  std::vector<double> all(tensor.gradients.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = tensor.residual[i];
  for (std::uint64_t step = 0; step < 30; ++step) {
    const Split split = step % 2 == 0 ? with_top_k(tensor, 5) : with_random_k(tensor, 5, 9, step);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] += tensor.gradients[i];
      came[i] += split.out[i];
    }
    tensor.residual = split.residual;
  }
  double worst = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    worst = std::max(worst, std::abs(all[i] - came[i] - tensor.residual[i]));
  CHECK(worst < 1e-4);
}

TEST_CASE("blocks of the largest ratio to their parameters are sent") {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = random() % 3000;
    const Tensor tensor = random_tensor(random, count, 32);
    Tensor parameters = random_tensor(random, count, 32);
    parameters.residual.clear();
    const std::uint64_t k = random() % (tensor.blocks() + 2);
    std::vector<double> scores;
    for (std::size_t block = 0; block < tensor.blocks(); ++block) {
      const double energy = tensor.energy(block);
      const double weight = parameters.energy(block);
      double score = energy == 0 ? 0 : energy / weight;
      if (weight == 0 && energy > 0) score = std::numeric_limits<double>::max();
      if (!std::isfinite(energy) || !std::isfinite(weight))
        score = std::numeric_limits<double>::infinity();
      scores.push_back(score);
    }
    const auto wanted = best(scores, k);
    const Split split = compressed(tensor, round % 2 == 0, [&](const BlockCompression& blocks) {
      return compress_top_k_ratio(blocks, parameters.gradients, k);
    });
    INFO("round " << round);
    check_same(split, reference_split(tensor, [&](std::size_t block) {
                 return wanted.contains(block) || std::isinf(scores[block]);
               }));
  }
}

TEST_CASE("random blocks follow from seed and step alone, and each is as likely") {
  const std::uint32_t size = 4;
  const Tensor mine = normal_tensor(8, 1000 * size, size);
  const Tensor theirs = normal_tensor(9, 1000 * size, size);
  const Words first = with_random_k(mine, 100, 5, 0).sent;
  CHECK(with_random_k(theirs, 100, 5, 0).sent == first);
  CHECK(with_random_k(mine, 100, 5, 1).sent != first);
  CHECK(with_random_k(mine, 100, 6, 0).sent != first);

  std::vector<int> times(1000);
  std::set<Words> seen;
  for (std::uint64_t step = 0; step < 500; ++step) {
    const Split split = with_random_k(mine, 100, 5, step);
    REQUIRE(split.count == 100);
    seen.insert(split.sent);
    for (std::size_t block = 0; block < 1000; ++block) times[block] += bit(split.sent, block);
  }
  CHECK(seen.size() == 500);
  // 50 of 500 each, with a standard deviation of 6.7.
  CHECK(*std::min_element(times.begin(), times.end()) > 20);
  CHECK(*std::max_element(times.begin(), times.end()) < 85);
}

TEST_CASE("the random blocks of a seed stay the same from release to release") {
  const Tensor tensor = normal_tensor(1, 64, 1);
  CHECK(with_random_k(tensor, 8, 0, 0).sent == Words{0x0008'80C0'0408'1800});
}

TEST_CASE("k = 0 sends nothing, and a k beyond the tensor all of it") {
  for (const std::size_t count : {1U, 255U, 256U, 257U, 70U * 256U}) {
    const Tensor tensor = normal_tensor(10, count);
    for (const std::uint64_t k : {tensor.blocks(), tensor.blocks() + 1, ~std::uint64_t{0}})
      for (const Split& split : {with_top_k(tensor, k), with_random_k(tensor, k, 1, 1)}) {
        CHECK(split.count == tensor.blocks());
        CHECK(same_bits(split.out, tensor.sums()));
        CHECK(same_bits(split.residual, Floats(count)));
      }
    for (const Split& split :
         {with_top_k(tensor, 0), with_random_k(tensor, 0, 1, 1), with_threshold(tensor, 1e30)}) {
      CHECK(split.count == 0);
      CHECK(split.sent == Words(split.sent.size()));
      CHECK(same_bits(split.out, Floats(count)));
      CHECK(same_bits(split.residual, tensor.sums()));
    }
  }
}

TEST_CASE("of equal blocks those that come first are sent") {
  const Tensor tensor{Floats(100 * 32, 0.5F), Floats(100 * 32), 32};
  for (const std::uint64_t k : {1U, 63U, 64U, 65U, 99U}) {
    const Split split = with_top_k(tensor, k);
    CHECK(split.count == k);
    for (std::size_t block = 0; block < 100; ++block) CHECK(bit(split.sent, block) == (block < k));
  }
  const double norm = 0.5 * std::sqrt(32);  // its square has no rounding: 8
  CHECK(with_threshold(tensor, std::nextafter(norm, 0)).count == 100);
  CHECK(with_threshold(tensor, std::nextafter(norm, 10)).count == 0);
}

TEST_CASE("zeros of either sign are not sent, and nothing is in an empty tensor") {
  for (const float zero : {0.0F, -0.0F}) {
    const Tensor tensor{Floats(1000, zero), Floats(1000, zero), 64};
    for (const Split& split :
         {with_top_k(tensor, 3), with_threshold(tensor, 0), with_random_k(tensor, 16, 1, 1)}) {
      CHECK(split.count == 0);
      CHECK(same_bits(split.out, Floats(1000)));
      CHECK(same_bits(split.residual, Floats(1000, zero)));
    }
  }
  const Tensor empty{{}, {}, 64};
  for (const Split& split :
       {with_top_k(empty, 3), with_threshold(empty, 0), with_random_k(empty, 3, 1, 1)})
    CHECK(split.count == 0);
}

TEST_CASE("the smallest and the largest floats are told from zero and infinity") {
  Tensor tensor{Floats(4 * 16), Floats(4 * 16), 16};
  tensor.gradients[20] = kSmallest;
  std::fill_n(tensor.gradients.begin() + 32, 16, -kLargest);
  CHECK(with_threshold(tensor, 0).sent == Words{0b0110});
  CHECK(with_top_k(tensor, 1).sent == Words{0b0100});
  CHECK(with_top_k(tensor, 4).sent == Words{0b0110});
  CHECK(with_threshold(tensor, std::numeric_limits<double>::infinity()).count == 0);
}

TEST_CASE("NaN and infinity are sent at once, and leave no residual") {
  for (const float bad : {kNaN, kInfinity, -kInfinity})
    for (const bool in_residual : {false, true}) {
      Tensor tensor = normal_tensor(11, 10 * 64, 64);
      (in_residual ? tensor.residual : tensor.gradients)[5 * 64 + 7] = bad;
      const Floats parameters(10 * 64, 1.0F);
      const Split by_ratio = compressed(tensor, false, [&](const BlockCompression& blocks) {
        return compress_top_k_ratio(blocks, parameters, 0);
      });
      for (const Split& split : {with_top_k(tensor, 0), with_threshold(tensor, 1e30), by_ratio,
                                 with_random_k(tensor, 0, 1, 1)}) {
        CHECK(split.sent == Words{1U << 5});
        CHECK_FALSE(std::isfinite(split.out[5 * 64 + 7]));
        CHECK(bits_of(split.out[5 * 64]) == bits_of(tensor.sum(5 * 64)));
        for (std::size_t i = 0; i < 64; ++i) CHECK(bits_of(split.residual[5 * 64 + i]) == 0);
        CHECK(std::all_of(split.residual.begin(), split.residual.end(),
                          [](float value) { return std::isfinite(value); }));
      }
      CHECK(with_top_k(tensor, 1).sent == Words{1U << 5});  // it is one of the k
    }
  Tensor overflow{Floats(64, kLargest), Floats(64, kLargest), 64};
  CHECK(with_top_k(overflow, 0).out == Floats(64, kInfinity));
  CHECK(with_top_k(overflow, 0).residual == Floats(64));
}

TEST_CASE("all blocks are sent if none is finite") {
  const Tensor tensor{Floats(1000, kNaN), Floats(1000, 1.0F), 64};
  CHECK(with_top_k(tensor, 2).count == 16);
  CHECK(with_random_k(tensor, 2, 1, 1).count == 16);
}

TEST_CASE("block compressors refuse what does not fit, and write nothing then") {
  Floats gradients(100, 1.0F), residual(100, 2.0F), out(100, 3.0F), more(101);
  Words sent(1, 7), none;
  const BlockCompression good{gradients, residual, out, sent, 10};
  const auto refused = [&](auto change, const std::string& text) {
    BlockCompression bad = good;
    change(bad);
    check_refused([&] { compress_top_k(bad, 1); }, "compress_top_k: " + text);
    check_refused([&] { compress_threshold(bad, 1); }, "compress_threshold: " + text);
    check_refused([&] { compress_random_k(bad, 1, 1, 1); }, "compress_random_k: " + text);
    check_refused([&] { compress_top_k_ratio(bad, gradients, 1); }, text);
  };
  refused([&](BlockCompression& b) { b.residual = more; }, "residual has 101 elements, 100");
  refused([&](BlockCompression& b) { b.out = more; }, "out has 101 elements, 100");
  refused([&](BlockCompression& b) { b.sent_blocks = none; }, "sent_blocks has 0 words, 1");
  refused([&](BlockCompression& b) { b.block_elements = 0; }, "block_elements is 0");
  refused([&](BlockCompression& b) { b.residual = gradients; }, "residual and gradients overlap");
  refused([&](BlockCompression& b) { b.residual = out; }, "residual and out overlap");
  refused(
      [&](BlockCompression& b) {
        b.gradients = std::span(more).first(100);
        b.out = std::span(more).last(100);
      },
      "out overlaps gradients");
  for (const float divisor : {0.0F, -1.0F, kNaN, kInfinity})
    refused([&](BlockCompression& b) { b.divisor = divisor; }, "divisor is");
  for (const double norm : {-1.0, std::nan("")})
    check_refused([&] { compress_threshold(good, norm); }, "norm is");
  check_refused([&] { compress_top_k_ratio(good, more, 1); }, "parameters has 101");
  check_refused([&] { compress_top_k_ratio(good, residual, 1); }, "parameters overlap");
  CHECK((out == Floats(100, 3.0F) && residual == Floats(100, 2.0F) && sent == Words{7}));

  CHECK(share_of(0, 10) == 0);
  CHECK(share_of(0.01, 10) == 1);
  CHECK(share_of(0.5, 11) == 6);
  CHECK(share_of(1, 11) == 11);
  CHECK(share_of(1, 0) == 0);
  for (const double ratio : {-0.1, 1.1, std::nan("")})
    check_refused([&] { share_of(ratio, 10); }, "ratio is");
}

// ---------------------------------------------------------------- elements

TEST_CASE("the k largest elements are taken, as sorting says") {
  Random random(12);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = random() % 5000;
    const Tensor tensor = random_tensor(random, count, 50);
    const std::uint64_t k = random() % 3 == 0 ? random() % 10 : random() % (count + 3);
    const std::size_t bucket = random() % 2 == 0 ? 0 : 1 + random() % 700;
    ElementTopK top_k({k, bucket, 1});
    const auto wanted = best_elements(tensor, k, bucket == 0 ? count + 1 : bucket);
    INFO(count << " elements, k " << k << ", bucket " << bucket << ", round " << round);
    check_same(with(top_k, tensor),
               reference_taken(tensor, [&](std::size_t i) { return wanted.contains(i); }));
  }
}

TEST_CASE("the k largest elements of a large tensor are taken, as sorting says") {
  Random random(13);
  for (const std::size_t count : {65'535U, 65'536U, 200'003U}) {
    Tensor tensor = normal_tensor(count, count);
    for (std::size_t i = 0; i < count; i += 7) tensor.gradients[i] = 2.5F;  // ties
    for (std::size_t i = 0; i < count; i += 7) tensor.residual[i] = 0;
    for (std::size_t i = 1; i < count; i += 7) tensor.gradients[i] = tensor.residual[i] = -0.0F;
    for (const std::uint64_t k : {1UL, 777UL, count / 50, count / 4, count - 1, count}) {
      ElementTopK top_k({k, 0, 1});
      const auto wanted = best_elements(tensor, k, count);
      INFO(count << " elements, k " << k);
      const Taken taken = with(top_k, tensor);
      check_same(taken, reference_taken(tensor, [&](std::size_t i) { return wanted.contains(i); }));
      CHECK(std::is_sorted(taken.elements.keys.begin(), taken.elements.keys.end()));
      if (k < count / 2) CHECK(taken.elements.keys.size() == k);
    }
  }
}

TEST_CASE("all-equal elements are taken from the first on") {
  for (const std::size_t count : {1000U, 100'000U}) {
    const Tensor tensor{Floats(count, -2.0F), Floats(count, 0.5F), 1};
    ElementTopK top_k({10, 0, 1});
    const Taken taken = with(top_k, tensor);
    CHECK(taken.elements.keys == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    CHECK(taken.elements.values == Floats(10, -1.5F));
    CHECK(taken.residual[9] == 0);
    CHECK(taken.residual[10] == -1.5F);
    CHECK(top_k.threshold() == 1.5F);
  }
}

TEST_CASE("a threshold is used again until the next exact call") {
  ElementTopK top_k({1000, 0, 3});
  for (std::uint64_t step = 0; step < 7; ++step) {
    const Tensor tensor = normal_tensor(20 + step, 100'000);
    const float before = step == 0 ? 0 : top_k.threshold();
    const Taken taken = with(top_k, tensor);
    if (step % 3 == 0) {
      CHECK(taken.elements.keys.size() == 1000);
    } else {
      CHECK(top_k.threshold() == before);
      CHECK(taken.elements.keys.size() > 850);
      CHECK(taken.elements.keys.size() < 1150);
    }
    check_same(taken, reference_taken(tensor, [&](std::size_t i) {
                 return std::abs(tensor.sum(i)) >= top_k.threshold();
               }));
    SparseElements same;
    Floats residual = tensor.residual;
    compress_elements(tensor.gradients, residual, top_k.threshold(), same);
    check_same({residual, same}, taken);
  }
}

TEST_CASE("another size, another k, or a wish makes the next call exact") {
  const Tensor tensor = normal_tensor(30, 10'000);
  Tensor larger = tensor;  // of which a threshold takes more
  for (float& value : larger.gradients) value *= 3;
  ElementTopK top_k({100, 0, 1000});
  const auto count = [&](const Tensor& of) { return with(top_k, of).elements.keys.size(); };
  CHECK(count(tensor) == 100);
  CHECK(count(larger) > 200);
  top_k.forget();
  CHECK(count(larger) == 100);
  top_k.set_k(100);
  CHECK(count(tensor) < 50);
  top_k.set_k(50);
  CHECK(count(larger) == 50);
  larger.gradients.resize(9'999);
  larger.residual.resize(9'999);
  CHECK(count(larger) == 50);
}

TEST_CASE("a threshold that lets too much through is not used for long") {
  Tensor tensor = normal_tensor(31, 10'000);
  for (const std::uint64_t buckets : {1U, 4U}) {
    ElementTopK top_k({100 / buckets, tensor.gradients.size() / buckets, 1000});
    tensor.residual.assign(tensor.gradients.size(), 0);
    std::vector<std::size_t> taken;
    for (int step = 0; step < 20; ++step) {  // equal gradients: residuals grow fast
      Taken of_step = with(top_k, tensor);
      tensor.residual = of_step.residual;
      taken.push_back(of_step.elements.keys.size());
    }
    CHECK(std::count(taken.begin(), taken.end(), 100) >= 4);
    for (std::size_t step = 1; step < taken.size(); ++step)
      CHECK((taken[step - 1] <= 201 || taken[step] == 100));
  }
}

TEST_CASE("elements that are not finite are taken at once, zeros never") {
  for (const std::size_t bucket : {0U, 100U})
    for (const std::uint64_t k : {0U, 2U}) {
      Tensor tensor{Floats(1000), Floats(1000), 1};
      tensor.gradients[3] = kNaN;
      tensor.gradients[4] = -0.0F;
      tensor.gradients[5] = kInfinity;
      tensor.residual[997] = -kInfinity;
      tensor.gradients[998] = kSmallest;
      ElementTopK top_k({k, bucket, 2});
      const bool has_small = k > 1 && bucket != 0;
      for (int exact = 1; exact >= 0; --exact) {
        const Taken taken = with(top_k, tensor);
        std::vector<std::uint32_t> keys{3, 5, 997};
        if (has_small) keys.push_back(998);
        CHECK(taken.elements.keys == keys);
        CHECK(std::isnan(taken.elements.values[0]));
        CHECK(bits_of(taken.residual[3]) == 0);
        CHECK(bits_of(taken.residual[997]) == 0);
        CHECK(taken.residual[998] == (has_small ? 0 : kSmallest));
      }
    }
  ElementTopK top_k({5, 0, 1});
  CHECK(with(top_k, {Floats(70'000, -0.0F), {}, 1}).elements.keys.empty());
  CHECK(with(top_k, {Floats(70'000, kNaN), {}, 1}).elements.keys.size() == 70'000);
  CHECK(with(top_k, {{}, {}, 1}).elements.keys.empty());
  top_k.set_k(0);
  CHECK(with(top_k, {Floats(70'000, kLargest), {}, 1}).elements.keys.empty());
  CHECK(top_k.threshold() == kInfinity);
}

TEST_CASE("element compressors refuse what does not fit") {
  Floats gradients(100), residual(99);
  SparseElements out;
  check_refused([&] { compress_elements(gradients, residual, 1, out); }, "residual has 99");
  check_refused([&] { compress_elements(gradients, gradients, 1, out); }, "overlap");
  check_refused([&] { compress_elements(gradients, {}, -1, out); }, "magnitude is");
  check_refused([&] { compress_elements(gradients, {}, kNaN, out); }, "magnitude is");
  check_refused([] { ElementTopK({1, 0, 0}); }, "exact_every is 0");
  ElementTopK top_k({1, 0, 1});
  check_refused([&] { top_k.compress(gradients, residual, out); }, "residual has 99");
  check_refused([&] { (void)top_k.threshold(); }, "no bucket 0");
}

// ---------------------------------------------------------------- the union

TEST_CASE("k follows the union of what ranks have chosen") {
  constexpr std::uint64_t kBlocks = 10'000;
  constexpr std::uint64_t kBlockBytes = 1036;
  constexpr std::uint64_t kWanted = 2'000;
  // Of each rank's choice, this share is the same on all.
  for (const double alike : {0.0, 0.5, 1.0}) {
    UnionTarget target({8, kBlocks, kBlockBytes, kWanted * kBlockBytes});
    Random random(14);
    std::uint64_t in_union = 0;
    for (int step = 0; step < 10; ++step) {
      const std::uint64_t k = target.k();
      std::set<std::uint64_t> all;
      const auto common = static_cast<std::uint64_t>(alike * static_cast<double>(k));
      for (std::uint64_t block = 0; block < common; ++block) all.insert(block);
      for (int rank = 0; rank < 8; ++rank)
        for (std::set<std::uint64_t> own; own.size() < k - common;) {
          const std::uint64_t block = common + random() % (kBlocks - common);
          if (own.insert(block).second) all.insert(block);
        }
      in_union = all.size();
      target.measured(k, in_union);
    }
    INFO("alike " << alike << ": k " << target.k() << ", union " << in_union);
    CHECK(in_union > kWanted * 97 / 100);
    CHECK(in_union < kWanted * 103 / 100);
    if (alike == 1.0) CHECK(target.k() == kWanted);
  }
}

TEST_CASE("k for a union is in range whatever is measured") {
  const auto k = [](std::uint32_t ranks, std::uint64_t units, std::uint64_t bytes) {
    return UnionTarget({ranks, units, 10, bytes}).k();
  };
  CHECK(k(8, 100, 9) == 0);
  CHECK(k(8, 100, 10) == 1);
  CHECK(k(8, 100, 1000) == 100);
  CHECK(k(8, 100, ~std::uint64_t{0}) == 100);
  CHECK(k(8, 0, 1000) == 0);
  CHECK(k(1, 100, 500) == 50);
  CHECK(k(256, 100, 500) == 1);

  UnionTarget target({8, 100, 10, 500});
  for (const auto [own, in_union] : std::vector<std::array<std::uint64_t, 2>>{
           {0, 0}, {0, 100}, {100, 100}, {1, 1}, {1, 8}, {1, 100}, {99, 100}, {99, 99}}) {
    target.measured(own, in_union);
    CHECK(target.independent_ranks() >= 1);
    CHECK(target.k() >= 1);
    CHECK(target.k() <= 50);
  }
  target.measured(20, 20);
  CHECK(target.k() == 50);
  check_refused([&] { target.measured(5, 4); }, "a rank has 5 units, the union 4 of 100");
  check_refused([&] { target.measured(5, 101); }, "the union 101 of 100");
  check_refused([] { UnionTarget({0, 1, 1, 1}); }, "ranks is 0");
  check_refused([] { UnionTarget({1, 1, 0, 1}); }, "unit_bytes is 0");
}

}  // namespace compress_tests
