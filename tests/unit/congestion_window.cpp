// When a rank lets fewer streams run, worked out by hand.
#include "rounds/congestion_window.hpp"

#include "aggregator/engine/minimum_window.hpp"
#include "tests/unit/catch.hpp"

namespace congestion_window_tests {

using namespace sluice;
using namespace sluice::rounds;
using namespace std::chrono_literals;

namespace {

void lose(CongestionWindow& window, int packets, Time at, Time now) {
  for (int i = 0; i < packets; ++i) window.lost(at, now);
}

void arrive(CongestionWindow& window, int packets) {
  for (int i = 0; i < packets; ++i) window.arrived();
}

/// Of a session of 4 ranks, whose streams all run.
CongestionWindow open(unsigned streams) {
  CongestionWindow window;
  window.begin(streams, 4, 5ms);
  arrive(window, static_cast<int>(streams - window.width()));
  window.let_run({}, true);
  return window;
}

}  // namespace

TEST_CASE("a window is open until 10 of at most 128 DATA are lost, and then half as wide") {
  CongestionWindow window = open(64);
  arrive(window, 100);
  lose(window, 9, Time{1ms}, Time{2ms});
  CHECK(window.is_open());
  CHECK(window.lost(Time{1ms}, Time{2ms}));
  CHECK(window.width() == 32);
  CHECK(!window.is_open());
}

TEST_CASE("losses of one burst narrow it once") {
  CongestionWindow window = open(64);
  lose(window, 40, Time{1ms}, Time{2ms});
  CHECK(window.width() == 32);
  lose(window, 10, Time{3ms}, Time{4ms});
  CHECK(window.width() == 16);
}

TEST_CASE("losses on and off narrow it by one each 128 DATA, if they are 6 at least") {
  CongestionWindow window = open(64);
  const int lost = GENERATE(5, 6);
  for (int i = 0; i < 10; ++i) {
    arrive(window, 122);
    lose(window, lost, Time{1ms}, Time{2ms});
    arrive(window, 6);
  }
  CHECK(window.width() == (lost == 5 ? 64 : 54));
  CHECK(window.is_open() == (lost == 5));
}

TEST_CASE("128 that arrive without a loss widen it by one, up to all streams") {
  CongestionWindow window = open(16);
  lose(window, 10, Time{1ms}, Time{2ms});
  CHECK(window.width() == 8);
  arrive(window, 127);
  CHECK(window.width() == 8);
  arrive(window, 1);
  CHECK(window.width() == 9);
  arrive(window, 1000);
  CHECK(window.width() == 16);
  CHECK(!window.is_open());  // some streams may still wait
  window.let_run({7, 2, 3}, false);
  CHECK(window.lets_run({6, 9, 15}));
  CHECK(window.lets_run({7, 2, 3}));
  CHECK(!window.lets_run({7, 2, 4}));
  CHECK(!window.lets_run({7, 3, 0}));
  window.let_run({7, 2, 15}, true);
  CHECK(window.is_open());
}

TEST_CASE("it begins with 8 streams, and each that arrives is one stream more") {
  CongestionWindow window;
  window.begin(64, 4, 5ms);
  CHECK(window.width() == 8);
  arrive(window, 3);
  CHECK(window.width() == 11);
  SECTION("until all run") {
    arrive(window, 1000);
    CHECK(window.width() == 64);
  }
  SECTION("until many are lost") {
    lose(window, 10, Time{1ms}, Time{2ms});
    CHECK(window.width() == 5);
    arrive(window, 127);
    CHECK(window.width() == 5);
  }
  SECTION("unless there are no more") {
    window.begin(8, 4, 5ms);
    CHECK(window.is_open());
  }
}

TEST_CASE("it is never narrower than 4 streams, or all") {
  const unsigned streams = GENERATE(3u, 64u);
  CongestionWindow window = open(streams);
  for (int i = 1; i < 30; ++i) lose(window, 10, Time{i * 2ms}, Time{i * 2ms + 1ms});
  CHECK(window.width() == std::min(streams, 4u));
}

TEST_CASE("many ranks begin with 512 streams together, and go down to as many, or one each") {
  CongestionWindow window;
  const auto [ranks, few] = GENERATE(table<unsigned, unsigned>({{100, 5}, {256, 2}, {1024, 1}}));
  window.begin(64, ranks, 5ms);
  CHECK(window.width() == few);
  arrive(window, 100);
  CHECK(window.width() == 64);
  for (int i = 1; i < 30; ++i) lose(window, 10, Time{i * 2ms}, Time{i * 2ms + 1ms});
  CHECK(window.width() == std::min(few, 4u));
}

namespace {

/// Of a session with 64 streams that has begun well: all run.
CongestionWindow running(unsigned ranks = 4) {
  CongestionWindow window;
  window.begin(64, ranks, 5ms);
  arrive(window, 100);
  return window;
}

/// So many round trips, one after another, which took so long each.
Time answer(CongestionWindow& window, int round_trips, Duration each, Time now) {
  for (int i = 0; i < round_trips; ++i) window.round_trip(each, now += each);
  return now;
}

}  // namespace

TEST_CASE("8 round trips of more than 5 ms tell that packets wait too long") {
  CongestionWindow window = running();
  Time now = answer(window, 1, 100us, Time{1s});
  now = answer(window, 7, 9ms, now);
  CHECK(window.width() == 64);  // a short one was among them
  now = answer(window, 7, 10ms, now);
  CHECK(window.width() == 64);
  CHECK(window.round_trip(10ms, now + 10ms));
  CHECK(window.width() == 48);  // 5 of 10 ms too long: by a fourth
  CHECK(!window.is_open());
  now += 10ms;
  SECTION("and what was sent before tells nothing of the width now") {
    for (int i = 0; i < 100; ++i) window.round_trip(10ms, now + 9ms);
    CHECK(window.width() == 48);
  }
  SECTION("and 8 that do not, that one more stream may run") {
    now = answer(window, 8, 5ms, now);
    CHECK(window.width() == 49);
    answer(window, 8 * 30, 5ms, now);
    CHECK(window.width() == 64);
  }
  SECTION("until it is 8 streams wide") {
    answer(window, 8 * 30, 40ms, now);
    CHECK(window.width() == 8);
  }
  SECTION("but not those that were under way when nobody looked") {
    now = answer(window, 7, 10ms, now);
    window.watch_from(now);
    CHECK(!window.round_trip(10ms, now + 1ms));
    answer(window, 7, 10ms, now);
    CHECK(window.width() == 48);
  }
}

TEST_CASE("a path may be twice as long as it was at its shortest") {
  CongestionWindow window = running();
  Time now = answer(window, 1, 20ms, Time{1s});
  now = answer(window, 31, 40ms, now);
  CHECK(window.width() == 64);
  answer(window, 8, 41ms, now);
  CHECK(window.width() == 56);  // by an eighth at least
}

TEST_CASE("all ranks go by the narrowest window") {
  CongestionWindow window;
  window.begin(8, 4, 5ms);
  CHECK(window.is_open());
  window.on_narrowest(0, Time{1s});  // nobody tells
  CHECK(window.is_open());
  window.on_narrowest(3, Time{1s});
  CHECK(window.width() == 3);
  CHECK(!window.is_open());
  CHECK(window.own() == 8);  // what this rank tells
  window.on_narrowest(20, Time{1s});
  CHECK(window.width() == 8);
  CHECK(!window.is_open());  // some streams may still wait
  window.let_run({7, 2, 7}, true);
  CHECK(window.is_open());
}

TEST_CASE("round trips that began before others narrowed the window do not count") {
  CongestionWindow window = running();
  Time now = answer(window, 7, 10ms, Time{1s});
  window.on_narrowest(32, now);
  CHECK(!window.round_trip(10ms, now + 9ms));
  answer(window, 7, 10ms, now);
  CHECK(window.own() == 64);
}

TEST_CASE("where this rank completes no round, 128 that end let one stream more run") {
  CongestionWindow window = running();
  Time now = answer(window, 1, 1ms, Time{1s});
  now = answer(window, 8 * 30 - 1, 40ms, now);
  REQUIRE(window.width() == 8);
  arrive(window, 127);
  CHECK(window.width() == 8);
  arrive(window, 1);
  CHECK(window.width() == 9);
  answer(window, 1, 40ms, now);  // but not while the few that it knows take long
  arrive(window, 256);
  CHECK(window.width() == 9);
}

TEST_CASE("delay leaves many ranks as many streams as they began with") {
  CongestionWindow window = running(256);
  Time now = answer(window, 1, 1ms, Time{1s});
  answer(window, 8 * 60, 40ms, now);
  CHECK(window.width() == 2);
}

TEST_CASE("another path has another shortest round trip, and other ranks' windows are not known") {
  CongestionWindow window = running();
  Time now = answer(window, 1, 1ms, Time{1s});
  window.on_narrowest(7, now);
  window.path_changed(now);
  CHECK(window.width() == 64);
  answer(window, 8 * 5, 20ms, now);
  CHECK(window.width() == 64);
}

TEST_CASE("the minimum window is the smallest that a rank has sent lately") {
  aggregator::MinimumWindow window;
  window.begin(2);
  CHECK(window.value() == 0);
  window.observe(9);
  window.observe(12);
  window.observe(0);  // sends none
  CHECK(window.value() == 9);
  window.observe(4);
  CHECK(window.value() == 4);
  for (int sent = 3; sent < 2 * 8 - 1; ++sent) window.observe(20);
  CHECK(window.value() == 4);
  window.observe(20);
  CHECK(window.value() == 20);
  window.begin(2);
  CHECK(window.value() == 0);
}

}  // namespace congestion_window_tests
