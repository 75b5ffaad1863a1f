// The end of a stream that waits for results: what it says when, worked out by hand.
#include "rounds/waiting_end.hpp"

#include "tests/unit/catch.hpp"

namespace waiting_end_tests {

using namespace sluice;
using namespace sluice::rounds;
using namespace std::chrono_literals;
using Came = WaitingEnd::Came;
using Say = WaitingEnd::Say;

namespace {

constexpr std::uint8_t kHistory = 8;
constexpr Duration kTimeout = 16ms;

/// One end on a path whose time-out is known. `owes`: the round awaited needs a contribution.
struct Bench {
  RetransmissionTimeout rto{{.min = kTimeout, .max = 1s, .initial = kTimeout}};
  RecentRounds recent;
  WaitingEnd end{kHistory};
  Time now{1s};
  bool owes = true;

  WaitingScope scope() {
    return {
        .rto = rto, .recent = recent, .rank = Rank{1}, .ranks = 4, .by_group = false, .now = now};
  }
  Came comes(std::uint64_t round) { return end.on_result(Round{round}, scope()); }
  void contribute() {
    if (!end.has_contributed()) end.begin(now);
    end.contributed(now);
    end.await(owes, scope());
  }
  /// What it says next, of its own accord.
  Say next_say() {
    for (;;) {
      REQUIRE(end.due() != kNever);
      now = end.due();
      if (const Say what = end.on_timer(owes, scope()); what != Say::kNothing) return what;
    }
  }
};

}  // namespace

TEST_CASE("Results are awaited, early, early twice, stale, or of no round that can have ended") {
  Bench bench;
  CHECK(bench.comes(0) == Came::kAwaited);
  CHECK(bench.comes(2) == Came::kNewGap);
  CHECK(bench.comes(2) == Came::kTwice);
  CHECK(bench.comes(3) == Came::kEarly);
  CHECK(bench.comes(kHistory) == Came::kFuture);
  CHECK(bench.end.early() == 0b110);
  CHECK_FALSE(bench.end.next());
  CHECK(bench.comes(0) == Came::kStale);
  CHECK(bench.comes(kHistory) == Came::kNewGap);  // seen from the next round
  CHECK(bench.comes(1) == Came::kAwaited);
  CHECK(bench.end.next());
  CHECK(bench.end.next());
  CHECK_FALSE(bench.end.next());
  CHECK(bench.end.position() == Round{4});
}

TEST_CASE("A late round is asked about first, and then its contribution is sent again") {
  Bench bench;
  bench.contribute();
  const Time said = bench.now;
  CHECK(bench.next_say() == Say::kProbe);
  CHECK(bench.now == said + kTimeout);
  bench.end.probed(bench.now);
  bench.end.await(true, bench.scope());
  CHECK(bench.next_say() == Say::kContribution);
  CHECK(bench.now == said + 3 * kTimeout);  // the second time-out is twice as long
}

TEST_CASE("A result that was asked for says nothing of the round trip") {
  Bench bench;
  bench.contribute();
  CHECK(bench.end.measures_round_trip());
  bench.end.probed(bench.now);
  bench.end.on_status(false, true, false, bench.scope());
  CHECK(bench.end.has_contributed_once());
  CHECK_FALSE(bench.end.measures_round_trip());  // it may have been lost
  bench.end.next();
  bench.contribute();
  CHECK(bench.end.measures_round_trip());
}

TEST_CASE("What the other end has is not sent again, nor what is not owed") {
  Bench bench;
  bench.contribute();
  CHECK(bench.end.on_status(false, true, false, bench.scope()) == Say::kNothing);
  for (int i = 0; i < 4; ++i) {
    CHECK(bench.next_say() == Say::kProbe);
    bench.end.await(true, bench.scope());
  }
  CHECK(bench.end.on_status(true, true, false, bench.scope()) == Say::kContribution);
  CHECK(bench.end.on_status(true, false, false, bench.scope()) == Say::kAcknowledgement);
}

TEST_CASE("After many silent rounds the other end is to be told the position") {
  Bench bench;
  for (int i = 0; i < kHistory / 2; ++i) {
    CHECK_FALSE(bench.end.owes_acknowledgement());
    bench.end.next();
  }
  CHECK(bench.end.owes_acknowledgement());
  bench.end.acknowledged();
  CHECK_FALSE(bench.end.owes_acknowledgement());
}

TEST_CASE("A result that comes twice after a time-out shows that it was too short") {
  const auto wait_after = [](bool overtaken) {
    Bench bench;
    bench.contribute();
    if (overtaken) bench.recent.ended(bench.now + 100ms, bench.now + 101ms);
    CHECK(bench.next_say() == Say::kProbe);
    bench.end.await(true, bench.scope());
    CHECK(bench.next_say() == Say::kContribution);
    bench.contribute();
    CHECK(bench.comes(0) == Came::kAwaited);
    bench.end.next();
    CHECK(bench.comes(0) == Came::kStale);
    bench.now += 1s;
    bench.contribute();
    const Time said = bench.now;
    bench.next_say();
    return bench.now - said;
  };
  // Who was overtaken asked because of that, not because a time-out had ended.
  CHECK(wait_after(false) == kTimeout + kTimeout / 4);
  CHECK(wait_after(true) == kTimeout);
}

TEST_CASE("A new other end is told nothing that the old one knew") {
  Bench bench;
  bench.contribute();
  bench.comes(1);
  bench.end.forget_what_was_said();
  CHECK(bench.end.early() == 0);
  CHECK_FALSE(bench.end.has_contributed());
  bench.end.resume_at(Round{5});
  CHECK(bench.end.position() == Round{5});
  CHECK(bench.end.acknowledged_position() == Round{5});
}

}  // namespace waiting_end_tests
