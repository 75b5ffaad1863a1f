// RFC 6298 with values worked out by hand.
#include "rounds/rto.hpp"

#include <climits>

#include "tests/unit/catch.hpp"

namespace rto_tests {

using namespace sluice;
using namespace sluice::rounds;
using namespace std::chrono_literals;

namespace {

RetransmissionTimeout::Limits bounds(Duration min, Duration max, Duration initial) {
  return {.min = min, .max = max, .initial = initial};
}

}  // namespace

TEST_CASE("before the first sample the initial value holds, within the limits") {
  CHECK(RetransmissionTimeout(bounds(20ms, 2s, 200ms)).value() == 200ms);
  CHECK(RetransmissionTimeout(bounds(20ms, 2s, 1ms)).value() == 20ms);
  CHECK(RetransmissionTimeout(bounds(20ms, 2s, 5s)).value() == 2s);
}

TEST_CASE("the first sample gives SRTT = R, RTTVAR = R/2, so RTO = 3R") {
  RetransmissionTimeout rto(bounds(20ms, 2s, 200ms));
  rto.sample(100ms);
  CHECK(rto.smoothed() == 100ms);
  CHECK(rto.value() == 300ms);
}

TEST_CASE("later samples weigh 1/8 and 1/4, RTTVAR with the SRTT before") {
  RetransmissionTimeout rto(bounds(20ms, 2s, 200ms));
  rto.sample(100ms);
  rto.sample(200ms);  // RTTVAR 50 + (100 - 50)/4 = 62.5; SRTT 100 + 100/8 = 112.5
  CHECK(rto.smoothed() == 112500us);
  CHECK(rto.value() == 362500us);
  rto.sample(100ms);  // RTTVAR 62.5 + (12.5 - 62.5)/4 = 50; SRTT 112.5 - 12.5/8 = 110.9375
  CHECK(rto.smoothed() == 110937500ns);
  CHECK(rto.value() == 310937500ns);
}

TEST_CASE("the value stays within the limits") {
  RetransmissionTimeout rto(bounds(20ms, 2s, 200ms));
  for (int i = 0; i < 100; ++i) rto.sample(1ms);
  CHECK(rto.value() == 20ms);
  CHECK(rto.smoothed() == 1ms);
  for (int i = 0; i < 100; ++i) rto.sample(1500ms);
  CHECK(rto.value() >= 1490ms);
  CHECK(rto.value() <= 2s);
  rto.sample(24h);
  CHECK(rto.value() == 2s);
}

TEST_CASE("a floor above the cap is the time-out") {
  RetransmissionTimeout rto(bounds(10s, 2s, 200ms));
  CHECK(rto.value() == 10s);
  rto.sample(1ms);
  CHECK(rto.value() == 10s);
  CHECK(rto.backed_off(0) == 10s);
  CHECK(rto.backed_off(3) == 10s);
}

TEST_CASE("a negative sample is ignored, a zero one is not") {
  RetransmissionTimeout rto(bounds(20ms, 2s, 200ms));
  rto.sample(-1ns);
  CHECK(rto.value() == 200ms);
  rto.sample(0ns);
  CHECK(rto.value() == 20ms);
  rto.sample(100ms);  // not the first any more: RTTVAR 100/4, SRTT 100/8
  CHECK(rto.smoothed() == 12500us);
  CHECK(rto.value() == 112500us);
}

TEST_CASE("the longest duration as a sample does not overflow") {
  RetransmissionTimeout rto(bounds(20ms, 2s, 200ms));
  rto.sample(Duration::max());
  CHECK(rto.value() == 2s);
  rto.sample(Duration::max());
  CHECK(rto.value() == 2s);
  for (int i = 0; i < 200; ++i) rto.sample(10ms);
  CHECK(rto.value() <= 100ms);
}

TEST_CASE("back-off doubles to the cap and stays there") {
  RetransmissionTimeout rto(bounds(20ms, 2s, 200ms));
  rto.sample(100ms);
  CHECK(rto.backed_off(0) == 300ms);
  CHECK(rto.backed_off(1) == 600ms);
  CHECK(rto.backed_off(2) == 1200ms);
  for (const unsigned n : {3u, 4u, 15u, 16u, 17u, 31u, 32u, 63u, 64u, 1000u, UINT_MAX}) {
    INFO(n);
    CHECK(rto.backed_off(n) == 2s);
  }
  CHECK(rto.value() == 300ms);  // back-off is not kept
}

TEST_CASE("back-off reaches the cap from however small a value") {
  const RetransmissionTimeout rto(bounds(1us, 2s, 1us));
  Duration expected = 1us;
  for (unsigned n = 0; n <= 20; ++n, expected *= 2) CHECK(rto.backed_off(n) == expected);
  for (const unsigned n : {21u, 22u, 62u, 63u, 64u, UINT_MAX}) CHECK(rto.backed_off(n) == 2s);

  const RetransmissionTimeout least(bounds(1ns, Duration::max(), 1ns));
  CHECK(least.backed_off(40) == Duration(std::int64_t{1} << 40));
  CHECK(least.backed_off(UINT_MAX) > 24h * 365);
}

}  // namespace rto_tests
