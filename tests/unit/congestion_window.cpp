// When a rank lets fewer streams run, worked out by hand.
#include "common/protocol/congestion_window.hpp"

#include <catch2/catch.hpp>

using namespace sluice;
using namespace std::chrono_literals;

namespace {

void lose(CongestionWindow& window, int packets, Time at, Time now) {
  for (int i = 0; i < packets; ++i) window.lost(at, now);
}

void arrive(CongestionWindow& window, int packets) {
  for (int i = 0; i < packets; ++i) window.arrived();
}

}  // namespace

TEST_CASE("a window is open until 10 of at most 128 DATA are lost, and then half as wide") {
  CongestionWindow window;
  window.begin(64, true);
  arrive(window, 100);
  lose(window, 9, Time{1ms}, Time{2ms});
  CHECK(window.is_open());
  CHECK(window.lost(Time{1ms}, Time{2ms}));
  CHECK(window.width() == 32);
  CHECK(!window.is_open());
}

TEST_CASE("losses of one burst narrow it once") {
  CongestionWindow window;
  window.begin(64, true);
  lose(window, 40, Time{1ms}, Time{2ms});
  CHECK(window.width() == 32);
  lose(window, 10, Time{3ms}, Time{4ms});
  CHECK(window.width() == 16);
}

TEST_CASE("losses on and off narrow it by one each 128 DATA, if they are 6 at least") {
  CongestionWindow window;
  window.begin(64, true);
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
  CongestionWindow window;
  window.begin(16, true);
  lose(window, 10, Time{1ms}, Time{2ms});
  CHECK(window.width() == 8);
  arrive(window, 127);
  CHECK(window.width() == 8);
  arrive(window, 1);
  CHECK(window.width() == 9);
  arrive(window, 1000);
  CHECK(window.width() == 16);
  CHECK(!window.is_open());  // some streams may still wait
  window.let_run({7, 3}, false);
  CHECK(window.lets_run({6, 15}));
  CHECK(window.lets_run({7, 3}));
  CHECK(!window.lets_run({7, 4}));
  window.let_run({7, 15}, true);
  CHECK(window.is_open());
}

TEST_CASE("where there are queues it begins with 8, and each that arrives is one stream more") {
  CongestionWindow window;
  window.begin(64, false);
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
    window.begin(8, false);
    CHECK(window.is_open());
  }
}

TEST_CASE("it is never narrower than 4 streams, or all") {
  CongestionWindow window;
  const unsigned streams = GENERATE(3u, 64u);
  window.begin(streams, true);
  for (int i = 1; i < 30; ++i) lose(window, 10, Time{i * 2ms}, Time{i * 2ms + 1ms});
  CHECK(window.width() == std::min(streams, 4u));
}
