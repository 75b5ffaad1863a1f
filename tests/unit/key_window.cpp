// The union of keys in a window, and each key's place in it.
#include "aggregator/engine/key_window.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/sim/random.hpp"
#include "tests/unit/catch.hpp"

namespace key_window_tests {

using namespace sluice;
using aggregator::KeyWindow;

TEST_CASE("the union of all keys comes in order, and each key's place is known") {
  sim::Random random(1);
  KeyWindow window;  // one for all: it is empty after clear()
  std::vector<std::uint64_t> keys(5000);
  for (int i = 0; i < 300; ++i) {
    const auto end = static_cast<std::uint32_t>(
        random.pick<std::uint64_t>({1, random.between(1, 300), KeyWindow::kKeys}));
    std::set<std::uint32_t> all;
    for (int rank = 0; rank < 3; ++rank) {
      std::set<std::uint32_t> of_rank;
      for (std::uint64_t n = random.below(60); n > 0; --n)
        of_rank.insert(static_cast<std::uint32_t>(random.below(end)));
      window.insert(std::vector<std::uint32_t>(of_rank.begin(), of_rank.end()));
      all.insert(of_rank.begin(), of_rank.end());
    }
    const std::size_t room = random.pick<std::size_t>({keys.size(), random.below(100)});
    const auto base = random.next() / 2;
    const auto first = static_cast<std::uint32_t>(random.below(100));
    const auto found = window.collect(base, end, first, std::span(keys).first(room));
    REQUIRE(found.count == std::min(room, all.size()));
    std::uint32_t place = 0;
    for (const std::uint32_t key : all) {
      if (place == found.count) {
        REQUIRE(found.end == key);
        break;
      }
      REQUIRE(keys[place] == base + key);
      REQUIRE(window.place_of(key) == first + place);
      ++place;
    }
    if (found.count == all.size()) REQUIRE(found.end == end);
    window.clear(end);
  }
}

}  // namespace key_window_tests
