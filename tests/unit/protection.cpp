// Integrity, trailers and keys: against vectors that protection_vectors.py computed with other
// means, and by damaging packets of every kind in every bit.
#include "common/protocol/protection.hpp"

#include <type_traits>

#include <catch2/catch.hpp>

#include <sluice/error.hpp>

#include "common/protocol/build.hpp"
#include "common/protocol/secret.hpp"
#include "tests/fuzz/packet_walk.hpp"
#include "tests/unit/golden_packets.hpp"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr const char* kText = "correct horse battery staple";

Key ascending_key() {
  Key key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i);
  return key;
}

Bytes protected_copy(const Bytes& body, const Protection& with) {
  Bytes packet = resized(body, body.size() + with.trailer_bytes());
  protect(packet, with);
  return packet;
}

/// Whether an engine that demands this much would take the packet.
bool is_taken(const Bytes& bytes, const Protection& demanded) {
  Packet packet;
  if (fuzz::PacketWalk::run(bytes) != DropReason::kNone) return false;
  REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
  if (demanded.integrity && !packet.has_integrity()) return false;
  return demanded.key == nullptr || is_authentic(packet, *demanded.key);
}

/// Calls f(name, body, protection) for every packet with each way to protect it.
template <class F>
void for_each_protected(const F& f) {
  const Key key = ascending_key();
  for (const auto& [name, body] : golden())
    for (const Protection with : {Protection{true, nullptr}, {false, &key}, {true, &key}}) {
      CAPTURE(name, with.integrity, with.key != nullptr);
      f(body, with);
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

TEST_CASE("a protected ACK has these bytes") {
  const Key key = ascending_key();
  const std::string member = "88 77 66 55 44 33 22 11 03 00 05 00 00 00 00 00 0a 00*7 ";
  const std::string tag = "2f 92 6b 6c 17 58 67 64 73 c9 92 4b 4d ac b0 29";
  const Bytes& ack = golden().at("ack");
  CHECK(protected_copy(ack, {}) == ack);
  CHECK(protected_copy(ack, {true, nullptr}) ==
        hex("53 4c 01 06 28 00 00 00 0d 0c 0b 0a 47 13 4b ea " + member));
  CHECK(protected_copy(ack, {false, &key}) ==
        hex("53 4c 01 06 38 00 01 00 0d 0c 0b 0a 00 00 00 00 " + member + tag));
  CHECK(protected_copy(ack, {true, &key}) ==
        hex("53 4c 01 06 38 00 01 00 0d 0c 0b 0a 1a ef 57 57 " + member + tag));
}

TEST_CASE("a CRC32C of 0 is told from none") {
  Bytes hello = golden().at("hello");
  hello = resized(hello, 124) + hex("bd 97 6a fe");
  CHECK(integrity_of(hello) == 1);
  CHECK(is_taken(protected_copy(hello, {true, nullptr}), {true, nullptr}));
}

TEST_CASE("what was protected reads as it was") {
  for_each_protected([](const Bytes& body, const Protection& with) {
    const Bytes bytes = protected_copy(body, with);
    CHECK(bytes.size() == body.size() + (with.key != nullptr ? 16 : 0));
    CHECK(is_taken(bytes, with));
    Packet packet;
    REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
    CHECK(packet.bytes().size() == bytes.size());
    CHECK(packet.body().size() == body.size());
    CHECK(packet.has_integrity() == with.integrity);
    CHECK(packet.is_authenticated() == (with.key != nullptr));

    Bytes bare(packet.body().begin(), packet.body().end());
    unprotect(bare);
    CHECK(bare == body);
  });
}

TEST_CASE("a packet that changed may be protected again") {
  const Key key = ascending_key();
  const Bytes first = protected_copy(golden().at("ack"), {true, &key});
  Bytes again = with(first, 32, std::uint64_t{11});
  CHECK_FALSE(is_taken(again, {true, &key}));
  protect(again, {true, &key});
  CHECK(is_taken(again, {true, &key}));
  CHECK(again != first);

  protect(again, {false, &key});
  CHECK(is_taken(again, {false, &key}));
  CHECK_FALSE(is_taken(again, {true, &key}));
}

TEST_CASE("every flipped bit of a protected packet is found") {
  for_each_protected([](const Bytes& body, const Protection& with) {
    Bytes bytes = protected_copy(body, with);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const auto flip = static_cast<std::byte>(1u << bit % 8);
      bytes[bit / 8] ^= flip;
      CAPTURE(bit);
      REQUIRE_FALSE(is_taken(bytes, with));
      bytes[bit / 8] ^= flip;
    }
    CHECK(is_taken(bytes, with));
  });
}

TEST_CASE("a protected packet that was cut or made longer is found, whatever its length says") {
  for_each_protected([](const Bytes& body, const Protection& with) {
    const Bytes bytes = protected_copy(body, with);
    for (std::size_t size = 0; size < bytes.size() + 40; ++size) {
      if (size == bytes.size()) continue;
      CAPTURE(size);
      const Bytes other = resized(bytes, size);
      REQUIRE_FALSE(is_taken(other, with));
      if (size >= sizeof(wire::Header)) REQUIRE_FALSE(is_taken(with_length(other), with));
    }
  });
}

TEST_CASE("protection that was taken off is missed where it is demanded") {
  for_each_protected([](const Bytes& body, const Protection& with) {
    CHECK(is_taken(body, {}));
    CHECK_FALSE(is_taken(body, with));
  });
}

TEST_CASE("only the key that made a trailer fits it") {
  const Key key = ascending_key();
  for (std::size_t i = 0; i < key.size(); ++i) {
    Key other = key;
    other[i] ^= 0x80;
    CAPTURE(i);
    CHECK_FALSE(is_taken(protected_copy(golden().at("data"), {false, &other}), {false, &key}));
  }
}

TEST_CASE("a trailer as long as the packet, or longer, is none") {
  const Bytes header = resized(golden().at("ack"), 16);
  for (const std::size_t size : {16u, 20u, 31u, 32u}) {
    CAPTURE(size);
    const Bytes bytes = with(with_length(resized(header, size)), 6, wire::kAuthenticated);
    CHECK(fuzz::PacketWalk::run(bytes) == DropReason::kBadLength);
  }
}

TEST_CASE("what was protected can be changed and protected again") {
  const Key key = ascending_key();
  Bytes bytes = protected_copy(golden().at("result"), {true, &key});
  Packet received;
  REQUIRE(Packet::parse(bytes, received) == DropReason::kNone);
  Bytes body(received.body().begin(), received.body().end());
  unprotect(body);
  CHECK(body == golden().at("result"));
}

TEST_CASE("the kinds that go under the handshake key are those without a session") {
  for (const auto& [name, bytes] : golden()) {
    INFO(name);
    const bool sessionless = name == "hello" || name == "join" || name == "challenge" ||
                             name == "pending" || name == "welcome" || name == "refused" ||
                             name == "abort" || name == "left";
    CHECK(wire::uses_handshake_key(static_cast<wire::Kind>(bytes[3])) == sessionless);
  }
}

// ---------------------------------------------------------------------------------------- keys
TEST_CASE("keys and cookies are the same everywhere") {
  const Secret secret(kText);
  CHECK(raw(handshake_key(secret, 7)) == hex("b1 65 a9 2e a7 81 7d e7 8f cf cc 5b 4a c3 f2 05"
                                             "  1d 1e 95 f1 a1 7d 12 3c dc 68 22 3f ab da c1 c5"));
  CHECK(raw(session_key(secret, session())) ==
        hex("e1 43 ea 3d f2 f9 49 99 a0 6c c7 ab 26 73 8c 76"
            "  a9 96 6e f8 c2 cf f3 9c 80 c1 0f bb c3 3f 53 27"));
  CHECK(raw(challenge_cookie(ascending_key(), 7, kNonce, 9, 3, endpoint())) ==
        hex("9c 74 35 65 12 37 21 b5 ff 86 05 9b 8a ff d7 f0"));
}

TEST_CASE("a key is of one secret, one job and one session") {
  const Secret secret(kText);
  const Secret other("correct horse battery stable");
  CHECK(handshake_key(secret, 7) == handshake_key(Secret(kText), 7));
  CHECK(handshake_key(secret, 7) != handshake_key(other, 7));
  CHECK(handshake_key(secret, 7) != handshake_key(secret, 8));

  const Key key = session_key(secret, session());
  CHECK(key != session_key(other, session()));
  const auto differs = [&](auto member) {
    Session changed = session();
    ++(changed.*member);
    return session_key(secret, changed) != key;
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
