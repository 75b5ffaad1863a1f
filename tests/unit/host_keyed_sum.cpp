// Sums of pairs among the ranks of a host, without an engine: what each step moves is moved here.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "tests/unit/catch.hpp"
#include "tests/unit/pairs_parts.hpp"
#include "worker/host/keyed_sum.hpp"

namespace host_keyed_sum_tests {

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

/// All ranks of a job that is on one host.
KeyedRanks all_of(std::uint16_t count, LocalRank self) {
  KeyedRanks ranks{.all = {}, .self = self, .ranges = count, .of_job = count};
  for (std::uint16_t rank = 0; rank < count; ++rank) ranks.all.push_back(Rank{rank});
  return ranks;
}

/// Memory of one rank, or of them all.
class Heap final : public PeerAccess {
 public:
  /// Peers do not reach the pairs as they are called, but what is copied for them.
  explicit Heap(bool is_reached = true, bool are_copied = false)
      : is_reached_(is_reached), are_copied_(are_copied) {}

  std::optional<Place> place_of(std::span<const std::byte> bytes) override {
    if (!is_reached_ || std::exchange(are_copied_, false)) return std::nullopt;
    places_.push_back(bytes);
    return Place{places_.size(), 0};
  }
  const std::byte* read_at(LocalRank, const Place& place, std::uint64_t bytes) override {
    if (place.region == 0 || place.region > places_.size()) return nullptr;
    const std::span<const std::byte> memory = places_[place.region - 1];
    if (place.offset > memory.size() || bytes > memory.size() - place.offset) return nullptr;
    return memory.data() + place.offset;
  }
  std::size_t places() const { return places_.size(); }

 private:
  const bool is_reached_;
  bool are_copied_;
  std::vector<std::span<const std::byte>> places_;
};

template <class Ranks>
std::vector<MoveSequence*> sequences(const Ranks& ranks) {
  std::vector<MoveSequence*> all;
  for (const auto& rank : ranks) all.push_back(rank.get());
  return all;
}

}  // namespace

TEST_CASE("Pairs are added lowest rank first, and all ranks get all sums") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto count = static_cast<std::uint16_t>(1 + random() % 5);
    const std::uint64_t key_bound = 1 + random() % 3000;
    const auto row_elements = static_cast<std::uint16_t>(1 + random() % 3);
    std::deque<Pairs> pairs;
    SumsByKey<float> expected;
    std::vector<std::unique_ptr<KeyedSum>> ranks;
    for (std::uint16_t r = 0; r < count; ++r) {
      const OpRequest request = pairs.emplace_back(draw(random, key_bound, row_elements))
                                    .request(key_bound, row_elements);
      add_pairs(*request.keyed, expected);
      ranks.push_back(std::make_unique<KeyedSum>(request, session_of(count), all_of(count, r)));
    }
    Heap heap(round % 3 != 0, round % 3 == 1);
    if (round % 4 != 0)
      for (auto& rank : ranks) rank->reach(heap);
    move_all(sequences(ranks), kOp);
    for (std::uint16_t r = 0; r < count; ++r) {
      REQUIRE(!ranks[r]->finish());
      CHECK(are(pairs[r].sums, row_elements, expected));
      std::vector<float> tensor(key_bound * row_elements);
      pairs[r].sums.scatter(std::as_writable_bytes(std::span(tensor)));
      CHECK((expected.empty() ||
             tensor[expected.begin()->first * row_elements] == expected.begin()->second[0]));
    }
  }
}

TEST_CASE("Pairs that some peers do not reach are moved, others are read where they lie") {
  std::mt19937_64 random(8);
  for (const std::size_t not_reached : {2u, 3u}) {
    std::deque<Pairs> pairs;
    SumsByKey<float> expected;
    std::vector<std::unique_ptr<KeyedSum>> ranks;
    Heap heap, none(false);
    for (std::uint16_t r = 0; r < 3; ++r) {
      const OpRequest request = pairs.emplace_back(draw(random, 2000, 1)).request(2000, 1);
      add_pairs(*request.keyed, expected);
      ranks.push_back(std::make_unique<KeyedSum>(request, session_of(3), all_of(3, r)));
      ranks.back()->reach(r == not_reached ? none : heap);
    }
    std::size_t moves = 0;
    for (; !ranks[0]->is_done(); ++moves) {
      move_next(sequences(ranks), kOp);
      for (const auto& rank : ranks) REQUIRE(!rank->end_move());
    }
    CHECK(moves == (not_reached < 3 ? 6 : 3));
    for (std::uint16_t r = 0; r < 3; ++r) {
      REQUIRE(!ranks[r]->finish());
      CHECK(are(pairs[r].sums, 1, expected));
    }
  }
}

TEST_CASE("Keys that are neighbours and keys far apart are summed alike") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40; ++round) {
    constexpr std::uint64_t kKeyBound = std::uint64_t{1} << 30;
    constexpr std::uint16_t kRanks = 3;
    const auto row_elements = static_cast<std::uint16_t>(1 + random() % 2);
    const unsigned longest_gap = 1 + round % 24;  // bits
    std::deque<Pairs> pairs;
    SumsByKey<float> expected;
    std::vector<std::unique_ptr<KeyedSum>> ranks;
    for (std::uint16_t r = 0; r < kRanks; ++r) {
      Pairs& of_rank = pairs.emplace_back();
      std::uint64_t key = 0;
      const auto next = [&] { return 1 + (random() >> (64 - 1 - random() % longest_gap)); };
      for (int i = 0; i < 3000 && (key += next()) < kKeyBound; ++i) {
        of_rank.keys.push_back(key);
        for (unsigned e = 0; e < row_elements; ++e)
          of_rank.rows.push_back(static_cast<float>(random() % 1000) / 7);
      }
      const OpRequest request = of_rank.request(kKeyBound, row_elements);
      add_pairs(*request.keyed, expected);
      ranks.push_back(std::make_unique<KeyedSum>(request, session_of(kRanks), all_of(kRanks, r)));
    }
    Heap heap;
    if (round % 2 != 0)
      for (auto& rank : ranks) rank->reach(heap);
    move_all(sequences(ranks), kOp);
    for (std::uint16_t r = 0; r < kRanks; ++r) {
      REQUIRE(!ranks[r]->finish());
      CHECK(are(pairs[r].sums, row_elements, expected));
    }
  }
}

TEST_CASE("What is merged on one of several hosts is neither encoded nor rejected") {
  std::mt19937_64 random(6);
  for (int round = 0; round < 60; ++round) {
    const auto count = static_cast<std::uint16_t>(1 + random() % 5);
    const auto ranges = static_cast<std::uint16_t>(1 + random() % count);
    const std::uint64_t key_bound = 1 + random() % 3000;
    const bool is_average = random() % 2 == 0;
    std::deque<Pairs> pairs;
    SumsByKey<float> expected;
    std::vector<std::unique_ptr<KeyedMerge>> ranks;
    for (std::uint16_t r = 0; r < count; ++r) {
      OpRequest request = pairs.emplace_back(draw(random, key_bound, 1)).request(key_bound, 1);
      request.encoding = Encoding::kInt4;
      request.rounding_seed = 3;
      request.keyed->threshold = 1e6;
      if (is_average) request.reduction = Reduction::kAverage;
      add_pairs(*request.keyed, expected);
      KeyedRanks of_host = all_of(count, r);
      of_host.ranges = ranges;
      of_host.of_job = static_cast<std::uint16_t>(count + 3);
      ranks.push_back(std::make_unique<KeyedMerge>(request, session_of(count), of_host));
    }
    Heap heap;
    if (round % 2 != 0)
      for (auto& rank : ranks) rank->reach(heap);
    for (auto& [key, sum] : expected)
      if (is_average) sum[0] /= static_cast<float>(count + 3);
    move_all(sequences(ranks), kOp);
    // One range behind the other.
    auto at = expected.begin();
    for (std::uint16_t r = 0; r < count; ++r) {
      const KeyedRange range = ranks[r]->take_range();
      CHECK((r < ranges || range.size == 0));
      const auto* const rows = reinterpret_cast<const float*>(range.pairs.rows());
      for (std::uint64_t i = 0; i < range.size; ++i, ++at) {
        REQUIRE(at != expected.end());
        REQUIRE(range.keys()[i] == at->first);
        REQUIRE(rows[i] == at->second[0]);
      }
      CHECK(range.rejected == decltype(range.rejected){});
    }
    CHECK(at == expected.end());
  }
}

TEST_CASE("Ranges differ by a chunk at most") {
  Pairs pairs;
  for (std::uint64_t key = 0; key < 256 * 10; ++key) pairs.keys.push_back(key);
  pairs.rows.resize(pairs.keys.size(), 1);
  Pairs none;
  KeyedRanks of_host = all_of(3, 0);
  std::vector<std::unique_ptr<KeyedMerge>> ranks;
  for (LocalRank r = 0; r < 3; ++r) {
    of_host.self = r;
    Pairs& of_rank = r == 1 ? pairs : none;
    ranks.push_back(
        std::make_unique<KeyedMerge>(of_rank.request(256 * 10, 1), session_of(3), of_host));
  }
  move_all(sequences(ranks), kOp);
  CHECK(ranks[0]->take_range().size == 256 * 4);
  CHECK(ranks[1]->take_range().size == 256 * 3);
  CHECK(ranks[2]->take_range().size == 256 * 3);
}

TEST_CASE("Ranks whose sums of pairs differ are told in what, by their numbers in the job") {
  std::mt19937_64 random(4);
  std::deque<Pairs> pairs;
  std::vector<std::unique_ptr<KeyedSum>> ranks;
  for (std::uint16_t r = 0; r < 2; ++r) {
    KeyedRanks of_host = all_of(2, r);
    of_host.all = {Rank{3}, Rank{8}};
    Pairs& of_rank = pairs.emplace_back(draw(random, 100, 1));
    ranks.push_back(
        std::make_unique<KeyedSum>(of_rank.request(100u + r, 1), session_of(2), of_host));
  }
  move_next(sequences(ranks), kOp);
  for (auto& rank : ranks) {
    const auto why = rank->end_move();
    REQUIRE(why);
    CHECK(why->field == wire::Field::kKeyBound);
    CHECK(why->rank_a == Rank{8});
    CHECK(why->rank_b == Rank{3});
    CHECK(why->value_a == 101);
    CHECK(why->value_b == 100);
    CHECK(why->op == kOp);
  }
}

TEST_CASE("Whatever peers have written, a sum of pairs ends") {
  std::mt19937_64 random(5);
  unsigned broken = 0, refused = 0, done = 0;
  for (int round = 0; round < 2000; ++round) {
    constexpr std::uint16_t kRanks = 3;
    const std::uint64_t key_bound = 1 + random() % 500;
    const bool is_plausible = random() % 2 == 0;
    Pairs pairs = draw(random, key_bound, 1);
    KeyedSum rank(pairs.request(key_bound, 1), session_of(kRanks), all_of(kRanks, 1));
    // Peers have keys there that mostly rise, and may say that they lie elsewhere.
    Heap heap;
    std::vector<std::uint64_t> written(64);
    const std::uint64_t lowest = random() % 2 == 0 ? key_bound / 3 : 256;  // of the second chunk
    for (std::size_t i = 0; i < written.size(); ++i)
      written[i] = !is_plausible && random() % 20 == 0 ? random() : lowest + i;
    const bool is_read = round % 2 != 0;
    if (is_read) {
      heap.place_of(std::as_bytes(std::span(written)));
      rank.reach(heap);
    }
    const auto place_word = [&](std::size_t i) -> std::uint64_t {
      if (!is_plausible && random() % 20 == 0) return random();
      return i == 0 ? 1 : i % 2 != 0 ? 1 : 8 * (random() % 8);  // reached, region, offset
    };
    // What a rank describes is mostly the same on all; then come a place and numbers of pairs. What
    // it counts is one, and then rejected ones and a place.
    constexpr std::size_t kSame = 7, kPlaceWords = 5, kCounts = 1 + wire::kRejectedClasses;
    const auto word = [&](const std::vector<std::uint64_t>& own, bool is_first, std::size_t i,
                          std::uint64_t last) -> std::uint64_t {
      const std::size_t place = is_first ? kSame : kCounts;
      const bool is_count = own.size() == kCounts + kPlaceWords;
      if (!is_first && !is_count)
        return last + 1 + random() % 3;  // a key, behind the one before it
      i %= own.size();
      if (is_first && i < kSame) return random() % 4000 != 0 ? own[i] : random();
      if (!is_plausible && random() % 20 == 0) return random();
      if (i >= place && i < place + kPlaceWords) return is_read ? place_word(i - place) : 0;
      return random() % 4;
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
        std::uint64_t last = lowest;
        const ElementRange held = request.held.value_or(ElementRange{});
        std::vector<std::uint64_t> own(held.end - held.begin);
        if (size == 8 && !own.empty()) std::memcpy(own.data(), request.input, own.size() * size);
        for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
          last = word(own, step == 0, i / 8, last);
          std::memcpy(request.output + i, &last, sizeof last);
        }
        is_right = !rank.end_move();
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

}  // namespace host_keyed_sum_tests
