// Sums of pairs among the ranks of a host, without an engine: what each step moves is moved here.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "tests/unit/catch.hpp"
#include "worker/host/keyed_sum.hpp"

using namespace sluice;
using namespace sluice::worker;
using namespace sluice::worker::host;

namespace {

constexpr OpNumber kOp = 5;

Session session_of(std::uint16_t ranks) {
  Session session;
  session.ranks = ranks;
  session.streams = 1;
  session.payload_bytes = 1472;
  return session;
}

/// What one rank asks for.
struct Pairs {
  std::vector<std::uint64_t> keys = {};
  std::vector<float> rows = {};
  KeyedSums sums = {};

  OpRequest request(std::uint64_t key_bound, std::uint16_t row_elements) {
    OpRequest request;
    request.collective = wire::Collective::kSparseAllReduce;
    KeyedRequest& keyed = request.keyed.emplace();
    keyed.keys = keys;
    keyed.rows = reinterpret_cast<const std::byte*>(rows.data());
    keyed.key_bound = key_bound;
    keyed.row_elements = row_elements;
    keyed.result_bytes = std::size_t{1} << 30;
    keyed.sums = &sums;
    return request;
  }
};

Pairs draw(std::mt19937_64& random, std::uint64_t key_bound, std::uint16_t row_elements) {
  Pairs pairs;
  const std::uint64_t density = random() % 101;
  for (std::uint64_t key = 0; key < key_bound; ++key) {
    if (random() % 100 >= density) continue;
    pairs.keys.push_back(key);
    for (unsigned i = 0; i < row_elements; ++i)
      pairs.rows.push_back(static_cast<float>(random() % 1000) / 7);
  }
  return pairs;
}

/// All ranks' next step, done.
void move(std::vector<std::unique_ptr<KeyedSum>>& ranks) {
  std::vector<const KeyedSum::Step*> steps;
  for (auto& rank : ranks) steps.push_back(&rank->next(kOp));
  std::vector<std::byte> tensor(steps[0]->request.element_count *
                                element_bytes(steps[0]->request.type));
  for (const KeyedSum::Step* step : steps) {
    const OpRequest& request = step->request;
    REQUIRE(request.element_count == steps[0]->request.element_count);
    REQUIRE(request.layout == steps[0]->request.layout);
    const std::size_t size = element_bytes(request.type);
    const ElementRange held = request.held.value();
    if (held.begin != held.end)
      std::memcpy(tensor.data() + held.begin * size, request.input, (held.end - held.begin) * size);
  }
  for (const KeyedSum::Step* step : steps) {
    const OpRequest& request = step->request;
    const std::size_t size = element_bytes(request.type);
    const std::vector<ElementRange> whole{{0, request.element_count}};
    std::byte* out = request.output;
    for (const ElementRange& range : request.wanted.value_or(whole)) {
      const std::size_t bytes = (range.end - range.begin) * size;
      if (bytes != 0) std::memcpy(out, tensor.data() + range.begin * size, bytes);
      out += bytes;
    }
  }
}

}  // namespace

TEST_CASE("Pairs are added lowest rank first, and all ranks get all sums") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto count = static_cast<std::uint16_t>(1 + random() % 5);
    const std::uint64_t key_bound = 1 + random() % 3000;
    const auto row_elements = static_cast<std::uint16_t>(1 + random() % 3);
    std::deque<Pairs> pairs;
    std::map<std::uint64_t, std::vector<float>> expected;
    for (std::uint16_t r = 0; r < count; ++r) {
      pairs.push_back(draw(random, key_bound, row_elements));
      for (std::size_t i = 0; i < pairs[r].keys.size(); ++i) {
        std::vector<float>& sum = expected[pairs[r].keys[i]];
        sum.resize(row_elements);
        for (unsigned e = 0; e < row_elements; ++e) sum[e] += pairs[r].rows[i * row_elements + e];
      }
    }
    std::vector<std::unique_ptr<KeyedSum>> ranks;
    for (std::uint16_t r = 0; r < count; ++r)
      ranks.push_back(std::make_unique<KeyedSum>(pairs[r].request(key_bound, row_elements),
                                                 session_of(count), RankOf{r, count}));
    while (!ranks[0]->is_done()) {
      move(ranks);
      for (auto& rank : ranks) REQUIRE(!rank->end_step());
    }
    for (std::uint16_t r = 0; r < count; ++r) {
      REQUIRE(!ranks[r]->finish());
      KeyedSums& sums = pairs[r].sums;
      REQUIRE(sums.size() == expected.size());
      std::vector<std::uint64_t> keys(sums.size());
      std::vector<float> rows(sums.size() * row_elements);
      sums.merge(keys, std::as_writable_bytes(std::span(rows)));
      std::size_t at = 0;
      bool is_right = true;
      for (const auto& [key, sum] : expected) {
        is_right = is_right && keys[at] == key &&
                   std::equal(sum.begin(), sum.end(), rows.data() + at * row_elements);
        ++at;
      }
      CHECK(is_right);
      std::vector<float> tensor(key_bound * row_elements);
      sums.scatter(std::as_writable_bytes(std::span(tensor)));
      CHECK((expected.empty() ||
             tensor[expected.begin()->first * row_elements] == expected.begin()->second[0]));
    }
  }
}

TEST_CASE("Ranks whose sums of pairs differ are told in what") {
  std::mt19937_64 random(4);
  std::deque<Pairs> pairs;
  for (int r = 0; r < 2; ++r) pairs.push_back(draw(random, 100, 1));
  OpRequest first = pairs[0].request(100, 1), second = pairs[1].request(101, 1);
  std::vector<std::unique_ptr<KeyedSum>> ranks;
  ranks.push_back(std::make_unique<KeyedSum>(first, session_of(2), RankOf{0, 2}));
  ranks.push_back(std::make_unique<KeyedSum>(second, session_of(2), RankOf{1, 2}));
  move(ranks);
  for (auto& rank : ranks) {
    const auto why = rank->end_step();
    REQUIRE(why);
    CHECK(why->field == wire::Field::kKeyBound);
    CHECK(why->value_a == 101);
    CHECK(why->value_b == 100);
    CHECK(why->op == kOp);
  }
}

TEST_CASE("Whatever mates have written, a sum of pairs ends") {
  std::mt19937_64 random(5);
  unsigned broken = 0, refused = 0, done = 0;
  for (int round = 0; round < 2000; ++round) {
    constexpr std::uint16_t kRanks = 3;
    const std::uint64_t key_bound = 1 + random() % 500;
    const bool is_plausible = random() % 2 == 0;
    Pairs pairs = draw(random, key_bound, 1);
    KeyedSum rank(pairs.request(key_bound, 1), session_of(kRanks), RankOf{1, kRanks});
    const auto word = [&](std::size_t step, std::uint64_t last) -> std::uint64_t {
      const bool is_count = step == 0 || step == 3;
      if (!is_plausible && random() % 20 == 0) return random();
      if (is_count) return random() % 4;
      return last + 1 + random() % 3;  // a key, behind the one before it
    };
    try {
      bool is_right = true;
      for (std::size_t step = 0; is_right && !rank.is_done(); ++step) {
        const OpRequest& request = rank.next(kOp).request;
        const std::size_t size = element_bytes(request.type);
        std::size_t bytes = 0;
        const std::vector<ElementRange> whole{{0, request.element_count}};
        for (const ElementRange& range : request.wanted.value_or(whole))
          bytes += (range.end - range.begin) * size;
        REQUIRE(bytes < (std::size_t{1} << 30));
        std::uint64_t last = key_bound / 3;
        // What a rank describes is mostly the same on all.
        const std::size_t described = step == 0 ? bytes / 8 / kRanks : 0;
        std::vector<std::uint64_t> own(described);
        if (step == 0) std::memcpy(own.data(), request.input, described * 8);
        for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
          last = word(step, last);
          if (step == 0 && i / 8 % described < 7 && random() % 4000 != 0)
            last = own[i / 8 % described];
          std::memcpy(request.output + i, &last, sizeof last);
        }
        is_right = !rank.end_step();
      }
      if (!is_right) {
        ++broken;
        continue;
      }
      ++done;
      REQUIRE(!rank.finish());
      std::vector<std::uint64_t> keys(pairs.sums.size());
      std::vector<float> rows(pairs.sums.size()), tensor(key_bound);
      pairs.sums.merge(keys, std::as_writable_bytes(std::span(rows)));
      pairs.sums.scatter(std::as_writable_bytes(std::span(tensor)));
    } catch (const Error&) {  // so much memory is not to be had
      ++refused;
    }
  }
  CAPTURE(broken, refused, done);
  CHECK(broken > 100);
  CHECK(refused > 20);
  CHECK(done > 20);
}
