// When a round is late, worked out by hand.
#include "common/protocol/recent_rounds.hpp"

#include <catch2/catch.hpp>

using namespace sluice;
using namespace std::chrono_literals;

TEST_CASE("a round is late when none has ended for a time-out") {
  RecentRounds recent;
  CHECK(recent.late_at(Time{100ms}, 10ms, true) == Time{110ms});
  recent.ended(Time{95ms}, Time{107ms});  // an older one: the queue moves on
  CHECK(recent.late_at(Time{100ms}, 10ms, true) == Time{117ms});
  recent.ended(Time{96ms}, Time{300ms});
  CHECK(recent.late_at(Time{100ms}, 10ms, true) == Time{310ms});
}

TEST_CASE("a round is late when one has ended that was begun a time-out after it") {
  RecentRounds recent;
  recent.ended(Time{109ms}, Time{119ms});
  CHECK(recent.late_at(Time{100ms}, 10ms, true) == Time{129ms});
  recent.ended(Time{110ms}, Time{119ms});
  CHECK(recent.late_at(Time{100ms}, 10ms, true) == Time{110ms});
  recent.ended(Time{90ms}, Time{120ms});  // an older one changes nothing
  CHECK(recent.late_at(Time{100ms}, 10ms, true) == Time{110ms});
}

TEST_CASE("results that were asked for too soon put time-outs off, until that is forgotten") {
  RecentRounds recent;
  const auto wait = [&] { return recent.late_at(Time{}, 16ms, false) - Time{}; };
  recent.asked_too_soon(16ms);
  CHECK(wait() == 20ms);
  recent.asked_too_soon(16ms);
  CHECK(wait() == 24ms);
  for (int i = 0; i < 1000; ++i) recent.asked_too_soon(16ms);
  CHECK(wait() == 5 * 16ms);
  for (int i = 0; i < 1024; ++i) recent.ended(Time{}, Time{});
  CHECK(wait() > 16ms + 22ms);
  CHECK(wait() < 16ms + 25ms);  // 64 ms / e
}

TEST_CASE("time-outs in vain make patient, up to a bound, and losses the reverse") {
  RecentRounds recent;
  const auto wait = [&] { return recent.late_at(Time{}, 16ms, true) - Time{}; };
  recent.in_vain(16ms);
  CHECK(wait() == 18ms);
  recent.in_vain(16ms);
  CHECK(wait() == 20ms);
  CHECK(recent.late_at(Time{}, 16ms, false) == Time{16ms});  // what it sent may be lost
  recent.lost(16ms);
  CHECK(wait() == 16ms);
  for (int i = 0; i < 1000; ++i) recent.in_vain(16ms);
  CHECK(wait() == 17 * 16ms);
  recent.lost(16ms);
  CHECK(wait() == 16 * 16ms);
}
