// Signs of life of a rank and its aggregator, worked out by hand.
#include "worker/engine/liveness.hpp"

#include "tests/unit/catch.hpp"

namespace liveness_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace std::chrono_literals;

namespace {

constexpr Duration kInterval = 100ms;
const Time kBegin{1s};

Liveness begun() {
  Liveness liveness;
  liveness.begin(true, kInterval, kBegin);
  return liveness;
}

wire::KeepAlive next(Liveness& liveness, Time now) {
  wire::KeepAlive packet{};
  liveness.fill_next(packet, now);
  return packet;
}

}  // namespace

TEST_CASE("The first KEEPALIVE is due at once, each of the others an interval later") {
  Liveness liveness = begun();
  CHECK(liveness.due() == kBegin);
  CHECK(next(liveness, kBegin).number == 1);
  CHECK(liveness.due() == kBegin + kInterval);
  liveness.ask(kBegin + 5ms, 10ms);  // the last one has just gone out
  CHECK(liveness.due() == kBegin + kInterval);
  liveness.ask(kBegin + 10ms, 10ms);
  CHECK(liveness.due() == kBegin + 10ms);
  liveness.pause();
  CHECK(liveness.due() == kNever);
}

TEST_CASE("Numbers rise within an epoch, and begin again in the next") {
  Liveness liveness = begun();
  next(liveness, kBegin);
  liveness.begin(false, kInterval, kBegin);
  CHECK(next(liveness, kBegin).number == 2);
  liveness.begin(true, kInterval, kBegin);
  CHECK(next(liveness, kBegin).number == 1);
}

TEST_CASE("An acknowledgement counts once, and what it acknowledges cannot be refused") {
  Liveness liveness = begun();
  for (int i = 0; i < 3; ++i) next(liveness, kBegin);
  CHECK(liveness.may_be_refused(1));
  CHECK_FALSE(liveness.may_be_refused(4));  // not sent yet
  CHECK(liveness.on_acknowledgement(2, kBegin + 7ms));
  CHECK(liveness.received_at() == kBegin + 7ms);
  CHECK_FALSE(liveness.on_acknowledgement(2, kBegin + 9ms));
  CHECK(liveness.received_at() == kBegin + 7ms);
  CHECK_FALSE(liveness.may_be_refused(2));
  CHECK(liveness.may_be_refused(3));
}

TEST_CASE("KEEPALIVEs tell which BEACONs were heard, and a BEACON is no sign of life") {
  Liveness liveness = begun();
  next(liveness, kBegin);
  CHECK(liveness.on_beacon(5, kBegin + 1ms));
  CHECK(liveness.due() == kBegin + 1ms);  // the first: the aggregator is to know at once
  CHECK(liveness.on_beacon(7, kBegin + 2ms));
  CHECK_FALSE(liveness.on_beacon(6, kBegin + 3ms));  // of before
  CHECK(liveness.received_at() == kBegin);
  const wire::KeepAlive packet = next(liveness, kBegin + 4ms);
  CHECK(packet.newest_beacon == 7);
  CHECK(packet.beacons_received == 0b101);
  liveness.on_beacon(7 + wire::kBeaconsTold, kBegin + 5ms);
  CHECK(next(liveness, kBegin + 6ms).beacons_received == 1);  // those before are too long ago
}

}  // namespace liveness_tests
