// What a session's packets are sealed with: against vectors of protection_vectors.py, and what
// becomes of counters and keys.
#include "common/protocol/packet_cipher.hpp"

#include <numeric>

#include "common/protocol/build.hpp"
#include "tests/unit/catch.hpp"
#include "tests/unit/golden_packets.hpp"

namespace packet_cipher_tests {

using namespace sluice;
using namespace sluice::test;

namespace {

Key ascending_key() {
  Key key;
  std::iota(key.begin(), key.end(), std::uint8_t{0});
  return key;
}

Bytes ascending(std::size_t from, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(from + i);
  return bytes;
}

Bytes sealed(Sealer& sealer, const Bytes& body) {
  Bytes packet = resized(body, body.size() + sizeof(wire::SessionTrailer));
  sealer.seal(packet);
  return packet;
}

bool opens(Opener& opener, Bytes bytes) {
  Packet packet;
  REQUIRE(Packet::parse(bytes, packet) == DropReason::kNone);
  return opener.open(packet, bytes.data());
}

std::uint64_t counter_of(const Bytes& packet) {
  return reinterpret_cast<const wire::SessionTrailer*>(packet.data() + packet.size() -
                                                       sizeof(wire::SessionTrailer))
      ->counter;
}

}  // namespace

TEST_CASE("AES-256-GCM is the same everywhere") {
  const GcmKey key(ascending_key());
  const Bytes clear = ascending(0, 40), text = ascending(100, 70);
  Bytes out(text.size());
  const auto tag = key.encrypt(7, clear, text, out.data());
  CHECK(out == hex("9c c1 9b 82 25 9e 6d e8 78 67 1b dd c2 7c ba ad 75 e8 90 a2 37 40 c9 7f"
                   "  89 77 8a f6 38 7a a3 3d d6 b6 98 3f 5b 32 f2 0a a6 40 ad e0 41 f9 a0 2f"
                   "  b7 52 b3 e5 45 5a 65 52 cf 84 f4 7c 9c ea d0 0e 96 2f 26 50 7e 4b"));
  CHECK(Bytes(tag.begin(), tag.end()) == hex("e0 47 dd 0a 19 4e 5a 89 23 bd 51 d6 20 b8 ed b6"));
  CHECK(key.decrypt(7, clear, out, out.data()) == tag);
  CHECK(out == text);
}

TEST_CASE("every packet has a counter of its own, also if it is the same again") {
  Sealer sealer(ascending_key(), true);
  const Bytes& data = golden().at("data");
  const Bytes first = sealed(sealer, data), second = sealed(sealer, data);
  CHECK(counter_of(first) == 0);
  CHECK(counter_of(second) == 1);
  CHECK(first != second);
  Opener opener(ascending_key(), true);
  CHECK(opens(opener, second));  // late, lost and repeated packets are the protocol's to judge
  CHECK(opens(opener, first));
  CHECK(opens(opener, first));
}

TEST_CASE("what is sealed to another place stays as it was") {
  const Bytes& data = golden().at("data");
  Sealer one(ascending_key(), true, 3), other(ascending_key(), true, 3);
  Bytes plain = resized(data, data.size() + sizeof(wire::SessionTrailer));
  Bytes out(plain.size());
  one.seal(plain, out);
  CHECK(out == sealed(other, data));
  CHECK(Bytes(plain.begin() + 16, plain.begin() + data.size()) ==
        Bytes(data.begin() + 16, data.end()));
}

TEST_CASE("values and their places are not to be seen, and whose they are is") {
  Sealer sealer(ascending_key(), true);
  const Bytes& data = golden().at("data");
  const Bytes packet = sealed(sealer, data);
  CHECK(Bytes(packet.begin() + 16, packet.begin() + 32) ==
        Bytes(data.begin() + 16, data.begin() + 32));
  for (std::size_t i = 32; i + 8 <= data.size(); ++i) {
    const Bytes part(data.begin() + i, data.begin() + i + 8);
    const auto end = packet.end() - sizeof(wire::SessionTrailer);
    CHECK(std::search(packet.begin() + 32, end, part.begin(), part.end()) == end);
  }
}

TEST_CASE("a session that encrypts takes nothing that is only authenticated, nor the reverse") {
  for (const bool encrypts : {false, true}) {
    Sealer sealer(ascending_key(), encrypts);
    Opener same(ascending_key(), encrypts), other(ascending_key(), !encrypts);
    CAPTURE(encrypts);
    const Bytes data = sealed(sealer, golden().at("data"));
    CHECK(opens(same, data));
    CHECK_FALSE(opens(other, data));
    CHECK(opens(other, sealed(sealer, golden().at("ack"))));  // it carries no values
  }
}

TEST_CASE("a key is renewed after 2^32 packets, and late packets are taken") {
  constexpr std::uint64_t kPerKey = std::uint64_t{1} << 32;
  const bool encrypts = GENERATE(false, true);
  const Bytes& data = golden().at("data");
  Sealer sealer(ascending_key(), encrypts, kPerKey - 2);
  std::vector<Bytes> packets;
  for (int i = 0; i < 4; ++i) packets.push_back(sealed(sealer, data));
  CHECK(counter_of(packets[3]) == kPerKey + 1);
  CHECK(renewed_key(ascending_key(), 0) != renewed_key(ascending_key(), 1));
  Sealer later(ascending_key(), encrypts, 5 * kPerKey);
  const Bytes ack = sealed(later, golden().at("ack"));
  CHECK(Bytes(ack.end() - 24, ack.end()) ==
        hex("00*4 05 00*3  05 e3 73 67 e6 ae a5 d7 a6 1d f6 0b a2 df b8 b8"));

  Opener opener(ascending_key(), encrypts);
  for (const int i : {0, 2, 1, 3, 0}) CHECK(opens(opener, packets[i]));

  // What was sealed before the renewal can still be read by who has sealed it.
  const Bytes bytes = packets[0];
  Bytes body(sizeof(wire::Data));
  sealer.reveal(bytes, body);
  CHECK(Bytes(body.begin() + 16, body.end()) ==
        Bytes(data.begin() + 16, data.begin() + sizeof(wire::Data)));
}

TEST_CASE("only keys beside the newest are tried") {
  constexpr std::uint64_t kPerKey = std::uint64_t{1} << 32;
  const Bytes& ack = golden().at("ack");
  Opener opener(ascending_key(), false);
  const auto takes = [&](std::uint64_t key) {
    Sealer sealer(ascending_key(), false, key * kPerKey);
    return opens(opener, sealed(sealer, ack));
  };
  CHECK_FALSE(takes(2));
  CHECK_FALSE(takes(kPerKey - 1));  // the last there is
  for (const std::uint64_t key : {0u, 1u, 0u, 2u, 1u, 3u, 2u}) CHECK(takes(key));
  CHECK_FALSE(takes(1));
  CHECK_FALSE(takes(0));
  CHECK_FALSE(takes(5));
  CHECK(takes(4));
}

}  // namespace packet_cipher_tests
