// The global threshold of GlobalTopK: the rule by itself, and in the loop that it closes, with
// ranks and aggregator as plain loops.
#include "worker/compress/global_threshold.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <sluice/compress.hpp>

#include "tests/unit/catch.hpp"
#include "tests/unit/rounds.hpp"

namespace global_threshold_tests {

using sluice::next_threshold;

namespace {

using Floats = std::vector<float>;
using Rejected = std::array<std::uint64_t, 4>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// From `least` to `most`, as many between any two octaves.
Floats even_in_octaves(std::size_t count, float least, float most) {
  Floats values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(least *
                     std::pow(most / least, static_cast<float>(i) / static_cast<float>(count - 1)));
  return values;
}

struct Ranks {
  std::size_t ranks;
  std::size_t elements;
  std::uint64_t k;
  std::vector<Floats> residuals{ranks, Floats(elements)};
  std::vector<sluice::ElementTopK> selections{ranks, sluice::ElementTopK({.k = k})};
  float threshold = 0;

  /// How many sums are delivered.
  std::size_t step(const std::vector<Floats>& gradients) {
    Floats sums(elements);
    std::vector<char> present(elements);
    std::vector<sluice::SparseElements> sent(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      selections[rank].compress(gradients[rank], residuals[rank], sent[rank]);
      for (std::size_t i = 0; i < sent[rank].keys.size(); ++i) {
        sums[sent[rank].keys[i]] += sent[rank].values[i];
        present[sent[rank].keys[i]] = 1;
      }
    }
    Floats results;
    Rejected rejected{};
    for (std::size_t key = 0; key < elements; ++key) {
      if (present[key] == 0) continue;
      const float size = std::fabs(sums[key]);
      if (size >= threshold) {
        results.push_back(sums[key]);
        continue;
      }
      ++rejected[size >= threshold / 2   ? 0
                 : size >= threshold / 4 ? 1
                 : size >= threshold / 8 ? 2
                                         : 3];
    }
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (std::size_t i = 0; i < sent[rank].keys.size(); ++i)
        if (std::fabs(sums[sent[rank].keys[i]]) < threshold)
          residuals[rank][sent[rank].keys[i]] = sent[rank].values[i];
    threshold = next_threshold(threshold, k, results, rejected);
    return results.size();
  }
};

}  // namespace

TEST_CASE("threshold of k or more results is the k-th largest") {
  CHECK(next_threshold(1, 3, Floats{2, -7, 3, 5, -1}, {}) == 3);
  CHECK(next_threshold(1, 3, Floats{2, -7, 3}, {9, 0, 0, 0}) == 2);
  CHECK(next_threshold(0, 2, Floats{4, 4, 4}, {}) == 4);
  CHECK(next_threshold(0, 2, Floats{kNaN, 4, kInfinity, 1, -0.5F}, {}) == 1);
}

TEST_CASE("threshold is 0 where there are no more than k sums, and stays where there is none") {
  CHECK(next_threshold(8, 3, Floats{9}, {1, 0, 1, 0}) == 0);
  CHECK(next_threshold(8, 3, Floats{9, 9, 9}, {}) == 0);
  CHECK(next_threshold(8, 3, Floats{}, {}) == 8);
  CHECK(next_threshold(8, 3, Floats{kNaN, kInfinity, kNaN}, {}) == 8);
  CHECK(next_threshold(8, 0, Floats{9}, {}) == 8);
}

TEST_CASE("threshold falls into the class that holds the k-th sum") {
  CHECK(next_threshold(64, 10, Floats{}, {0, 0, 10, 10}) == 8);
  CHECK(next_threshold(64, 10, Floats{}, {0, 10, 0, 10}) == 16);
  CHECK(next_threshold(64, 10, Floats{}, {9, 0, 0, 10}) == 4);
  for (const float next : {next_threshold(64, 10, Floats{70, 80}, {3, 20, 0, 0}),
                           next_threshold(64, 10, Floats{}, {9, 9'000, 0, 0})})
    CHECK((next > 16 && next < 32));
  // The smallest normal number, and what is below it.
  constexpr float least = std::numeric_limits<float>::min();
  CHECK(next_threshold(least, 10, Floats{}, {0, 0, 0, 20}) == 0);
  CHECK(next_threshold(std::numeric_limits<float>::denorm_min(), 10, Floats{}, {20, 0, 0, 0}) == 0);
}

TEST_CASE("threshold goes down as the results' distribution goes on, and half of the way at most") {
  const auto after = [](std::uint64_t k, const Floats& results) {
    return next_threshold(100, k, results, {400, 0, 0, 0});
  };
  // 100 results in one octave: 50 fewer than wanted would be half an octave below; five times as
  // many in one octave below say less.
  CHECK(after(150, even_in_octaves(100, 100, 200)) == Approx(88).margin(5));
  // Close together: so are those below, though all that is known is that they are within a
  // factor 2.
  const float close = after(150, even_in_octaves(100, 100, 104));
  CHECK((close < 99.5 && close > 97));
  // All equal: nothing is told, yet it goes on.
  const float equal = after(150, Floats(100, 100));
  CHECK((equal < 99.5 && equal > 98));
  // Few: by the count alone.
  CHECK(after(10, Floats(5, 100)) > 80);
  CHECK(after(10, Floats(5, 100)) < 99);
  CHECK(after(399, Floats(0)) == Approx(68).margin(1));
}

TEST_CASE("about k sums are delivered of gradients whose distribution is steady") {
  constexpr std::size_t elements = 1 << 14;
  constexpr std::uint64_t k = elements / 20;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Floats pattern(elements), wide(elements), popular(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    pattern[i] = normal(random) / 2;
    wide[i] = std::exp(2 * normal(random));
    popular[i] = 1 / std::sqrt(static_cast<float>(1 + random() % elements));
  }
  for (const std::size_t count : {1U, 2U, 4U, 8U})
    for (const Floats& scale : {Floats(elements, 1), wide, popular}) {
      if (sluice::test::kIsSanitized && count > 2) continue;  // no other fault of memory shows
      Ranks ranks{.ranks = count, .elements = elements, .k = k};
      double delivered = 0;
      for (int step = 0; step < 100; ++step) {
        std::vector<Floats> gradients(count, Floats(elements));
        for (Floats& gradient : gradients)
          for (std::size_t i = 0; i < elements; ++i)
            gradient[i] = scale[i] * (pattern[i] + normal(random));
        const std::size_t now = ranks.step(gradients);
        if (step < 40) continue;
        INFO(count << " ranks, step " << step);
        CHECK(now >= k / 2);
        CHECK(now <= 2 * k);
        delivered += static_cast<double>(now) / 60;
      }
      CHECK(delivered / static_cast<double>(k) == Approx(1).margin(0.3));
    }
}

}  // namespace global_threshold_tests
