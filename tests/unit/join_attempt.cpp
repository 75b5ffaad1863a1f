// One attempt to join, answer by answer.
#include "worker/engine/join_attempt.hpp"

#include "tests/unit/catch.hpp"

namespace join_attempt_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

constexpr std::uint64_t kNonce = 77;
const Time kBegin{1s};

JoinAttempt begun() {
  return {{.wanted = {}, .nonce = kNonce}, 10ms, kBegin};
}

wire::Pending pending(std::uint64_t serial, std::uint64_t nonce = kNonce) {
  wire::Pending packet{};
  packet.nonce = nonce;
  packet.serial = serial;
  return packet;
}

wire::Versions versions(std::uint8_t lowest, std::uint8_t highest) {
  wire::Versions packet{};
  packet.nonce = kNonce;
  packet.lowest = lowest;
  packet.highest = highest;
  return packet;
}

}  // namespace

TEST_CASE("HELLOs are sent again after waits that double up to the longest") {
  JoinAttempt attempt = begun();
  CHECK(attempt.due() == kBegin);
  for (const Duration wait : {10ms, 20ms, 30ms, 30ms}) {
    attempt.hello_sent(kBegin, 30ms);
    CHECK(attempt.due() == kBegin + wait);
  }
  attempt.ask_at(kBegin + 1ms);  // a link came up
  CHECK(attempt.due() == kBegin + 1ms);
}

TEST_CASE("A JOIN is repeated from its own port alone") {
  JoinAttempt attempt = begun();
  CHECK(attempt.join_from(9) == nullptr);
  wire::Join join{};
  join.serial = 3;
  attempt.join_sent(join, 9);
  REQUIRE(attempt.join_from(9) != nullptr);
  CHECK(attempt.join_from(9)->serial == 3);
  CHECK(attempt.join_from(10) == nullptr);
}

TEST_CASE("A PENDING counts if it is of this attempt and newer than the last") {
  JoinAttempt attempt = begun();
  CHECK_FALSE(attempt.on_pending(pending(5, kNonce + 1)));
  CHECK_FALSE(attempt.is_answered());
  CHECK(attempt.on_pending(pending(5)));
  CHECK(attempt.is_answered());
  CHECK_FALSE(attempt.on_pending(pending(5)));
  CHECK_FALSE(attempt.on_pending(pending(4)));
  CHECK(attempt.on_pending(pending(6)));
}

TEST_CASE("What is said without proof is believed when it was said three times") {
  JoinAttempt attempt = begun();
  CHECK(attempt.unproven_text().empty());
  CHECK_FALSE(attempt.on_not_authenticated());
  CHECK_THAT(attempt.unproven_text(), Contains("does not show the job's secret"));
  CHECK_FALSE(attempt.on_not_authenticated());
  CHECK(attempt.on_not_authenticated());
}

TEST_CASE("Other versions are told, three times, and never ours or nonsense") {
  constexpr std::uint8_t kOurs = wire::kVersion;
  JoinAttempt attempt = begun();
  CHECK_FALSE(attempt.on_versions(versions(kOurs, kOurs)));
  CHECK_FALSE(attempt.on_versions(versions(kOurs + 2, kOurs + 1)));
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(attempt.is_of_another_version());
    CHECK(attempt.on_versions(versions(kOurs + 1, kOurs + 2)));
  }
  CHECK(attempt.is_of_another_version());
  CHECK_THAT(attempt.version_text(), Contains("versions " + std::to_string(kOurs + 1) + " to " +
                                              std::to_string(kOurs + 2)));
}

}  // namespace join_attempt_tests
