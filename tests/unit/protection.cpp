// Integrity, trailers and keys: against vectors that protection_vectors.py computed with other
// means, and by damaging packets of every kind in every bit.
#include "common/protocol/protection.hpp"

#include <optional>
#include <type_traits>

#include <sluice/error.hpp>

#include "common/protocol/build.hpp"
#include "common/protocol/job_protection.hpp"
#include "common/protocol/secret.hpp"
#include "tests/fuzz/packet_walk.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/golden_packets.hpp"

namespace protection_tests {

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr const char* kText = "correct horse battery staple";

Key ascending_key() {
  Key key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i);
  return key;
}

/// How a packet is protected: by a CRC32C, by the trailer that its kind has, or both.
struct Way {
  bool integrity = false;
  bool keyed = false;
  bool encrypts = false;
};
constexpr Way kHandshakes[] = {{true, false}, {false, true}, {true, true}};
constexpr Way kSessions[] = {{true, false}, {false, true}, {false, true, true}};

bool is_handshake(const Bytes& packet) {
  return wire::uses_handshake_key(static_cast<wire::Kind>(packet[3]));
}

Bytes protected_copy(const Bytes& body, const Way& way, const Key& key = ascending_key()) {
  Sealer sealer(key, way.encrypts, 7);
  Protection with{.integrity = way.integrity};
  if (way.keyed && is_handshake(body))
    with.key = &key;
  else if (way.keyed)
    with.sealer = &sealer;
  Bytes packet = resized(body, body.size() + with.trailer_bytes());
  protect(packet, with);
  return packet;
}

/// Whether an engine that demands this much would take the packet, and what it would read.
std::optional<Bytes> taken(Bytes bytes, const Way& demanded) {
  const Key key = ascending_key();
  Packet packet;
  if (fuzz::PacketWalk::run(bytes) != DropReason::kNone) return std::nullopt;
  REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
  if (demanded.integrity && !packet.has_integrity()) return std::nullopt;
  const Bytes body(packet.body().begin(), packet.body().end());
  if (!demanded.keyed) return body;
  if (is_handshake(bytes)) return is_authentic(packet, key) ? std::optional(body) : std::nullopt;
  Opener opener(key, demanded.encrypts);
  if (!opener.open(packet, bytes.data())) return std::nullopt;
  if (packet.is_encrypted() && packet.check_decrypted() != DropReason::kNone) return std::nullopt;
  return Bytes(packet.body().begin(), packet.body().end());
}
bool is_taken(const Bytes& bytes, const Way& demanded) {
  return taken(bytes, demanded).has_value();
}

/// Calls f(name, body, way) for every packet with each way to protect it.
template <class F>
void for_each_protected(const F& f) {
  for (const auto& [name, body] : golden())
    for (const Way& way : is_handshake(body) ? kHandshakes : kSessions) {
      CAPTURE(name, way.integrity, way.keyed, way.encrypts);
      f(body, way);
    }
}

Session session() {
  Session s;
  s.job = 7;
  s.generation = kGeneration;
  s.epoch = kEpoch;
  s.delivery_token = kDeliveryToken;
  s.shard = 1;
  s.shards = 2;
  s.ranks = 8;
  s.streams = 16;
  s.block_elements = 256;
  s.payload_bytes = 1472;
  s.history = 4;
  s.encrypted = true;
  return s;
}

Endpoint endpoint() {
  Endpoint from;
  from.port_id = 2;
  from.ipv4 = 0x0A00'0009;
  from.udp_port = 4747;
  from.mac = {2, 1, 2, 3, 4, 5};
  return from;
}

}  // namespace

TEST_CASE("a protected packet has these bytes") {
  const Bytes& ack = golden().at("ack");
  const std::string member = "88 77 66 55 44 33 22 11 03 00 05 00 00 00 00 00 0a 00*7 ";
  CHECK(protected_copy(ack, {}) == ack);
  CHECK(protected_copy(ack, {.integrity = true}) ==
        hex("53 4c 01 06 28 00 00 00 0d 0c 0b 0a 47 13 4b ea " + member));
  CHECK(protected_copy(ack, {.keyed = true}) ==
        hex("53 4c 01 06 40 00 01 00 0d 0c 0b 0a 00 00 00 00 " + member +
            "07 00*7  fa e8 fc 33 5f b1 d4 2e 56 0f 99 07 a6 f5 ef 33"));

  const Bytes& left = golden().at("left");
  const std::string token = "88 77 66 55 44 33 22 11 ";
  const std::string tag = "37 42 02 c0 42 2e af c5 74 84 f6 e6 ab 9d 70 f4";
  CHECK(protected_copy(left, {.keyed = true}) ==
        hex("53 4c 01 86 28 00 01 00 0d 0c 0b 0a 00 00 00 00 " + token + tag));
  CHECK(protected_copy(left, {.integrity = true, .keyed = true}) ==
        hex("53 4c 01 86 28 00 01 00 0d 0c 0b 0a e4 f9 fa 40 " + token + tag));
}

TEST_CASE("a CRC32C of 0 is told from none") {
  Bytes hello = golden().at("hello");
  hello = resized(hello, 124) + hex("bd 97 6a fe");
  CHECK(integrity_of(hello) == 1);
  CHECK(is_taken(protected_copy(hello, {true}), {true}));
}

TEST_CASE("what was protected reads as it was") {
  for_each_protected([](const Bytes& body, const Way& way) {
    const Bytes bytes = protected_copy(body, way);
    const std::size_t trailer = !way.keyed ? 0 : is_handshake(body) ? 16 : 24;
    CHECK(bytes.size() == body.size() + trailer);
    Packet packet;
    REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
    CHECK(packet.bytes().size() == bytes.size());
    CHECK(packet.body().size() == body.size());
    CHECK(packet.has_integrity() == way.integrity);
    CHECK(packet.is_authenticated() == way.keyed);
    CHECK(packet.is_encrypted() == (way.encrypts && wire::carries_values(packet.kind())));

    auto bare = taken(bytes, way);
    REQUIRE(bare);
    constexpr std::size_t kHeader = sizeof(wire::Header);
    CHECK(Bytes(bare->begin() + kHeader, bare->end()) == Bytes(body.begin() + kHeader, body.end()));
  });
}

TEST_CASE("a packet that changed may be protected again") {
  const Way both{.integrity = true, .keyed = true};
  const Bytes first = protected_copy(golden().at("left"), both);
  Bytes again = with(first, 16, std::uint64_t{11});
  CHECK_FALSE(is_taken(again, both));
  const Key key = ascending_key();
  protect(again, {true, &key});
  CHECK(is_taken(again, both));
  CHECK(again != first);

  protect(again, {false, &key});
  CHECK(is_taken(again, {.keyed = true}));
  CHECK_FALSE(is_taken(again, both));
}

TEST_CASE("every flipped bit of a protected packet is found") {
  for_each_protected([](const Bytes& body, const Way& way) {
    Bytes bytes = protected_copy(body, way);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto flip = static_cast<std::byte>(1u << bit % 8);
      bytes[bit / 8] ^= flip;
      CAPTURE(bit);
      REQUIRE_FALSE(is_taken(bytes, way));
      bytes[bit / 8] ^= flip;
    }
    CHECK(is_taken(bytes, way));
  });
}

TEST_CASE("a protected packet that was cut or made longer is found, whatever its length says") {
  for_each_protected([](const Bytes& body, const Way& way) {
    const Bytes bytes = protected_copy(body, way);
    for (std::size_t size = 0; size < bytes.size() + 40; ++size) {
      if (size == bytes.size()) continue;
      CAPTURE(size);
      const Bytes other = resized(bytes, size);
      REQUIRE_FALSE(is_taken(other, way));
      if (size >= sizeof(wire::Header)) REQUIRE_FALSE(is_taken(with_length(other), way));
    }
  });
}

TEST_CASE("protection that was taken off is missed where it is demanded") {
  for_each_protected([](const Bytes& body, const Way& way) {
    CHECK(is_taken(body, {}));
    CHECK_FALSE(is_taken(body, way));
  });
}

TEST_CASE("only the key that made a trailer fits it") {
  for (const char* name : {"hello", "data", "ack"})
    for (const bool encrypts : {false, true})
      for (std::size_t i = 0; i < Key().size(); ++i) {
        Key other = ascending_key();
        other[i] ^= 0x80;
        CAPTURE(name, encrypts, i);
        const Way way{false, true, encrypts};
        CHECK_FALSE(is_taken(protected_copy(golden().at(name), way, other), way));
      }
}

TEST_CASE("a trailer as long as the packet, or longer, is none") {
  const Bytes header = resized(golden().at("ack"), 16);
  for (const std::size_t size : {16u, 20u, 31u, 32u, 39u, 40u}) {
    CAPTURE(size);
    const Bytes bytes = with(with_length(resized(header, size)), 6, wire::kAuthenticated);
    CHECK(fuzz::PacketWalk::run(bytes) == DropReason::kBadLength);
  }
}

TEST_CASE("what was protected can be changed and protected again") {
  const Bytes& result = golden().at("result");
  Sealer sealer(ascending_key(), GENERATE(false, true));
  const Protection by{.sealer = &sealer};
  Bytes bytes = resized(result, result.size() + by.trailer_bytes());
  protect(bytes, by);
  for (const std::size_t size : {result.size(), sizeof(wire::Result), sizeof(wire::Header)}) {
    Bytes body(size);
    unprotect(bytes, body, by);
    CHECK(body == with_length(resized(result, size)));
  }
}

TEST_CASE("the kinds that go under the handshake key are those without a session") {
  for (const auto& [name, bytes] : golden()) {
    INFO(name);
    const bool sessionless = name == "hello" || name == "join" || name == "challenge" ||
                             name == "pending" || name == "welcome" || name == "refused" ||
                             name == "abort" || name == "left" || name == "versions";
    CHECK(wire::uses_handshake_key(static_cast<wire::Kind>(bytes[3])) == sessionless);
  }
}

// ---------------------------------------------------------------------------------------- keys
TEST_CASE("keys and cookies are the same everywhere") {
  const Secret secret(kText);
  CHECK(raw(handshake_key(secret, 7)) == hex("b1 65 a9 2e a7 81 7d e7 8f cf cc 5b 4a c3 f2 05"
                                             "  1d 1e 95 f1 a1 7d 12 3c dc 68 22 3f ab da c1 c5"));
  CHECK(raw(downstream_key(secret, session())) ==
        hex("6d 51 64 12 92 22 b9 c2 24 69 90 48 40 24 0c a3"
            "  96 24 70 94 ff e1 51 35 a2 b7 a8 4f 98 95 27 0f"));
  CHECK(raw(upstream_key(secret, session(), {Rank{3}, kNonce, kToken})) ==
        hex("e4 af 57 89 8a 6a e1 56 17 9a 56 86 9a 97 6f b7"
            "  50 98 e8 92 14 30 de ac a6 e6 a9 f0 d4 d9 6c d3"));
  CHECK(raw(challenge_cookie(ascending_key(), 7, kNonce, 9, 3, endpoint())) ==
        hex("9c 74 35 65 12 37 21 b5 ff 86 05 9b 8a ff d7 f0"));
}

TEST_CASE("a key is of one secret, one job and one session") {
  const Secret secret(kText);
  const Secret other("correct horse battery stable");
  CHECK(handshake_key(secret, 7) == handshake_key(Secret(kText), 7));
  CHECK(handshake_key(secret, 7) != handshake_key(other, 7));
  CHECK(handshake_key(secret, 7) != handshake_key(secret, 8));

  const Binding rank_3{Rank{3}, kNonce, kToken};
  const Key down = downstream_key(secret, session());
  const Key up = upstream_key(secret, session(), rank_3);
  CHECK(down != up);
  CHECK(down != downstream_key(other, session()));
  CHECK(up != upstream_key(other, session(), rank_3));
  CHECK(up != upstream_key(secret, session(), {Rank{4}, kNonce, kToken}));
  CHECK(up != upstream_key(secret, session(), {Rank{3}, kNonce + 1, kToken}));
  CHECK(up != upstream_key(secret, session(), {Rank{3}, kNonce, kToken + 1}));
  const auto differs = [&](auto member) {
    Session changed = session();
    ++(changed.*member);
    return downstream_key(secret, changed) != down && upstream_key(secret, changed, rank_3) != up;
  };
  CHECK(differs(&Session::job));
  CHECK(differs(&Session::generation));
  CHECK(differs(&Session::epoch));
  CHECK(differs(&Session::delivery_token));
  CHECK(differs(&Session::shard));
  CHECK(differs(&Session::shards));
  CHECK(differs(&Session::ranks));
  CHECK(differs(&Session::streams));
  CHECK(differs(&Session::block_elements));
  CHECK(differs(&Session::payload_bytes));
  CHECK(differs(&Session::history));
  Session clear = session();
  clear.encrypted = false;
  CHECK(downstream_key(secret, clear) != down);
}

TEST_CASE("who is taken in again in the same epoch goes on with the aggregator's keys alone") {
  JobProtection rank(false, std::make_shared<const Secret>(kText), 7);
  Session s = session();
  s.authenticated = true;
  rank.begin_session(s, {Rank{3}, kNonce, kToken});
  Opener* const opener = rank.opener();
  Sealer* const sealer = rank.of(wire::Kind::kData).sealer;
  REQUIRE(opener != nullptr);
  REQUIRE(sealer != nullptr);
  const JobProtection keeps_both = rank;  // so that new ones have other addresses
  rank.begin_session(s, {Rank{3}, kNonce + 1, kToken + 1});
  CHECK(rank.opener() == opener);
  CHECK(rank.of(wire::Kind::kData).sealer != sealer);
  ++s.epoch;
  rank.begin_session(s, {Rank{3}, kNonce + 2, kToken + 2});
  CHECK(rank.opener() != opener);
  s.authenticated = false;
  rank.begin_session(s, {Rank{3}, kNonce + 3, kToken + 3});
  CHECK(rank.opener() == nullptr);
  CHECK(rank.of(wire::Kind::kData).sealer == nullptr);
}

TEST_CASE("a cookie is of one process, one HELLO and one address") {
  const Key key = ascending_key();
  const Cookie cookie = challenge_cookie(key, 7, kNonce, 9, 3, endpoint());
  CHECK(equal(cookie, challenge_cookie(key, 7, kNonce, 9, 3, endpoint())));
  CHECK_FALSE(equal(cookie, challenge_cookie(random_key(), 7, kNonce, 9, 3, endpoint())));
  CHECK_FALSE(equal(cookie, challenge_cookie(key, 8, kNonce, 9, 3, endpoint())));
  CHECK_FALSE(equal(cookie, challenge_cookie(key, 7, kNonce + 1, 9, 3, endpoint())));
  CHECK_FALSE(equal(cookie, challenge_cookie(key, 7, kNonce, 10, 3, endpoint())));
  CHECK_FALSE(equal(cookie, challenge_cookie(key, 7, kNonce, 9, 4, endpoint())));
  const auto differs = [&](auto member) {
    Endpoint changed = endpoint();
    ++(changed.*member);
    return !equal(cookie, challenge_cookie(key, 7, kNonce, 9, 3, changed));
  };
  CHECK(differs(&Endpoint::port_id));
  CHECK(differs(&Endpoint::ipv4));
  CHECK(differs(&Endpoint::udp_port));
  Endpoint elsewhere = endpoint();
  ++elsewhere.mac[5];
  CHECK_FALSE(equal(cookie, challenge_cookie(key, 7, kNonce, 9, 3, elsewhere)));
  CHECK(random_key() != random_key());
}

TEST_CASE("a secret has 16..256 bytes, and an error does not tell it") {
  for (const std::size_t size : {0u, 1u, 15u, 257u}) {
    const std::string text(size, 'q');
    try {
      const Secret secret(text);
      FAIL("taken: " << size);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidArgument);
      CHECK(std::string(error.what()) == "a secret has 16..256 bytes, not " + std::to_string(size));
    }
  }
  CHECK_NOTHROW(Secret(std::string(16, 'q')));
  CHECK_NOTHROW(Secret(std::string(256, 'q')));
  CHECK(Secret(std::string(256, 'q')) == Secret(std::string(256, 'q')));
  CHECK_FALSE(Secret(std::string(255, 'q')) == Secret(std::string(256, 'q')));
}

TEST_CASE("a secret moves, is never copied, and is wiped where it was") {
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<Secret>);
  STATIC_REQUIRE_FALSE(std::is_copy_assignable_v<Secret>);
  alignas(Secret) std::array<std::byte, sizeof(Secret)> place{};
  auto* const secret = new (place.data()) Secret(kText);
  CHECK(raw(place) != raw(std::array<std::byte, sizeof(Secret)>{}));
  Secret moved(std::move(*secret));
  CHECK(raw(place) == Bytes(sizeof(Secret)));
  *secret = std::move(moved);
  CHECK(handshake_key(*secret, 7) == handshake_key(Secret(kText), 7));
  secret->~Secret();
  CHECK(raw(place) == Bytes(sizeof(Secret)));
}

}  // namespace protection_tests
