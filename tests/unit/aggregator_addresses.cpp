// Where HELLOs go, and what follows the answers, when ARP says now this and now that.
#include "worker/engine/aggregator_addresses.hpp"

#include "tests/unit/catch.hpp"

namespace aggregator_addresses_tests {

using namespace sluice;
using namespace sluice::worker;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kIncarnation = 5;

Endpoint at(std::uint8_t machine, bool off_machine = true) {
  return {.port_id = 1,
          .mac = {2, 0, 0, 0, 0, machine},
          .ipv4 = 0x0a4d0001,
          .udp_port = 4747,
          .local_udp_port = 4748,
          .off_machine = off_machine};
}

/// A shard with one address, which `told` says where to find.
struct Shard {
  explicit Shard(const Endpoint& first)
      : told(first), config(make_config()), addresses(config, 0, 0, first) {}

  EngineConfig make_config() {
    EngineConfig made;
    made.locate = [this](std::uint16_t, unsigned attempt) {
      attempts.push_back(attempt);
      return std::optional(told);
    };
    return made;
  }

  void join_at(const Endpoint& machine) {
    addresses.begin(false, now);
    told = machine;
    REQUIRE(addresses.next(now) == machine);
    REQUIRE(addresses.on_challenge(machine, kIncarnation, now));
    REQUIRE(addresses.on_welcome(machine, kIncarnation));
    REQUIRE(addresses.current() == machine);
  }

  Endpoint told;
  std::vector<unsigned> attempts;
  Time now{1s};
  EngineConfig config;
  AggregatorAddresses addresses;
};

}  // namespace

TEST_CASE("a rank finds its aggregator again though another machine claims the address") {
  Shard shard(at(1));
  shard.join_at(at(1));
  shard.addresses.begin(true, shard.now);
  shard.told = at(66);
  CHECK(shard.addresses.next(shard.now) == at(1));
  CHECK(shard.addresses.next(shard.now) == at(66));
  CHECK(shard.addresses.on_challenge(at(1), kIncarnation, shard.now));
  CHECK(shard.addresses.current() == at(1));  // where the JOIN goes
  CHECK(shard.addresses.next(shard.now) == at(1));
  CHECK(shard.addresses.next(shard.now) == at(66));
  CHECK(shard.addresses.on_welcome(at(1), kIncarnation));
  CHECK(shard.addresses.current() == at(1));
}

TEST_CASE("a rank that waits for others stays where it was answered, whoever claims the address") {
  Shard shard(at(1));
  shard.addresses.begin(false, shard.now);
  CHECK(shard.addresses.next(shard.now) == at(1));
  CHECK(shard.addresses.on_challenge(at(1), kIncarnation, shard.now));
  shard.told = at(66);
  int there = 0;
  for (int i = 0; i < 10; ++i)
    if (shard.addresses.next(shard.now) == at(1)) ++there;
  CHECK(there == 5);
  CHECK(shard.addresses.on_welcome(at(1), kIncarnation));
  CHECK(shard.addresses.current() == at(1));
}

TEST_CASE("who else claims the address is asked only while nobody answers") {
  Shard shard(at(1));
  shard.addresses.begin(false, shard.now);
  for (int i = 0; i < 3; ++i) shard.addresses.next(shard.now);
  CHECK(shard.addresses.on_challenge(at(1), kIncarnation, shard.now));
  for (int i = 0; i < 2; ++i) shard.addresses.next(shard.now);
  shard.now += 10s;
  for (int i = 0; i < 2; ++i) shard.addresses.next(shard.now);
  CHECK(shard.attempts == std::vector{0U, 1U, 2U, 1U, 1U, 3U, 4U});
}

TEST_CASE("another machine takes over an address") {
  Shard shard(at(1));
  shard.join_at(at(1));
  shard.addresses.begin(true, shard.now);
  CHECK(shard.addresses.next(shard.now) == at(1));
  shard.told = at(2);
  CHECK(shard.addresses.next(shard.now) == at(2));
  CHECK(shard.addresses.next(shard.now) == at(1));
  CHECK(shard.addresses.on_challenge(at(2), kIncarnation + 1, shard.now));
  CHECK(shard.addresses.current() == at(2));
  for (int i = 0; i < 4; ++i) CHECK(shard.addresses.next(shard.now) == at(2));
  CHECK(shard.addresses.on_welcome(at(2), kIncarnation + 1));
  CHECK(shard.addresses.current() == at(2));
}

TEST_CASE("nothing follows an answer to where nobody was asked") {
  Shard shard(at(1));
  shard.join_at(at(1));
  shard.addresses.begin(true, shard.now);
  CHECK(shard.addresses.next(shard.now) == at(1));
  CHECK(shard.addresses.on_challenge(at(66), kIncarnation, shard.now));
  CHECK(shard.addresses.on_welcome(at(66), kIncarnation));
  CHECK(shard.addresses.current() == at(1));
}

TEST_CASE("a local link leads to one peer only, who is asked where it is now") {
  Shard shard(at(1, false));
  shard.join_at(at(1, false));
  shard.addresses.begin(true, shard.now);
  shard.told = at(2, false);
  for (int i = 0; i < 4; ++i) CHECK(shard.addresses.next(shard.now) == at(2, false));
}

}  // namespace aggregator_addresses_tests
