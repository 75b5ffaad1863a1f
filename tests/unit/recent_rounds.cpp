// When a round is late, worked out by hand.
#include "rounds/recent_rounds.hpp"

#include "tests/unit/catch.hpp"

namespace recent_rounds_tests {

using namespace sluice;
using namespace sluice::rounds;
using namespace std::chrono_literals;

namespace {

constexpr RecentRounds::Waits kWaits{.timeout = 16ms, .reordering = 2ms};
constexpr RecentRounds::Waits kOthersAlone{
    .timeout = 16ms, .reordering = 2ms, .others_alone = true};

}  // namespace

TEST_CASE("a round is late when none has ended for a time-out") {
  RecentRounds recent;
  CHECK(recent.late_at(Time{100ms}, kOthersAlone) == Time{116ms});
  recent.ended(Time{95ms}, Time{107ms});  // an older one: the queue moves on
  CHECK(recent.late_at(Time{100ms}, kOthersAlone) == Time{123ms});
  recent.ended(Time{96ms}, Time{300ms});
  CHECK(recent.late_at(Time{100ms}, kOthersAlone) == Time{316ms});
}

TEST_CASE("a round is late when one has ended that was begun clearly after it") {
  RecentRounds recent;
  recent.ended(Time{101ms}, Time{119ms});
  CHECK(recent.late_at(Time{100ms}, kWaits) == Time{135ms});
  recent.ended(Time{102ms}, Time{119ms});
  CHECK(recent.late_at(Time{100ms}, kWaits) == Time{102ms});
  recent.ended(Time{90ms}, Time{120ms});  // an older one changes nothing
  CHECK(recent.late_at(Time{100ms}, kWaits) == Time{102ms});
}

TEST_CASE("rounds are looked at often while others end, and when they are late while none does") {
  RecentRounds recent;
  CHECK(recent.next_look(Time{116ms}, kWaits, Time{102ms}) == Time{116ms});
  recent.ended(Time{95ms}, Time{101ms});
  CHECK(recent.next_look(Time{117ms}, kWaits, Time{102ms}) == Time{104ms});
  CHECK(recent.next_look(Time{103ms}, kWaits, Time{102ms}) == Time{103ms});
  CHECK(recent.next_look(Time{117ms}, kWaits, Time{103ms}) == Time{117ms});
}

TEST_CASE("results that were asked for too soon put time-outs off, until that is forgotten") {
  RecentRounds recent;
  const auto wait = [&] { return recent.late_at(Time{}, kWaits) - Time{}; };
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
  const auto wait = [&] { return recent.late_at(Time{}, kOthersAlone) - Time{}; };
  recent.in_vain(16ms, 8);
  CHECK(wait() == 17ms);
  recent.in_vain(16ms, 4);
  CHECK(wait() == 19ms);
  CHECK(recent.late_at(Time{}, kWaits) == Time{16ms});  // what it sent may be lost
  recent.lost(16ms);
  CHECK(wait() == 16ms);
  for (int i = 0; i < 1000; ++i) recent.in_vain(16ms, 8);
  CHECK(wait() == 17 * 16ms);
  recent.lost(16ms);
  CHECK(wait() == 8 * 16ms);
}

TEST_CASE("who asks in vain lets younger rounds overtake for longer") {
  RecentRounds recent;
  recent.ended(Time{1s}, Time{});
  CHECK(recent.is_overtaken(Time{998ms}, kWaits));
  CHECK_FALSE(recent.is_overtaken(Time{999ms}, kWaits));
  recent.in_vain(16ms, 4);
  for (const auto& waits : {kWaits, kOthersAlone}) {
    CHECK(recent.late_at(Time{}, waits) == Time{2ms + 2ms});
    CHECK_FALSE(recent.is_overtaken(Time{997ms}, waits));
  }
}

}  // namespace recent_rounds_tests
