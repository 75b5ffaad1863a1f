#include "common/protocol/packet_cipher.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include <sodium.h>

#include "common/protocol/packet_kinds.hpp"

namespace sluice {
namespace {

using wire::SessionTrailer;

std::uint32_t key_number(std::uint64_t counter) {
  return static_cast<std::uint32_t>(counter >> 32);
}

/// How many bytes at the beginning of a packet's body are never encrypted.
std::size_t clear_bytes(std::span<const std::byte> packet, std::size_t body) {
  const auto& header = *reinterpret_cast<const wire::Header*>(packet.data());
  if ((header.flags & wire::kEncrypted) == 0) return body;
  return wire::clear_bytes(wire::Kind{header.kind});
}

}  // namespace

Key renewed_key(const Key& first, std::uint32_t number) {
  if (number == 0) return first;
  struct {
    std::array<char, 16> context{"sluice renewal1"};
    wire::U32 number;
  } message;
  message.number = number;
  Key key;
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(&message),
                     sizeof message, first.data(), first.size());
  return key;
}

// ---------------------------------------------------------------------------------------- sealing
Sealer::Sealer(const Key& first, bool encrypts, std::uint64_t counter)
    : first_(first),
      key_(renewed_key(first, key_number(counter))),
      counter_(counter),
      encrypts_(encrypts) {}

void Sealer::seal(std::span<std::byte> packet, std::span<std::byte> out) {
  assert(packet.size() == out.size() && packet.size() > sizeof(SessionTrailer));
  auto& header = *reinterpret_cast<wire::Header*>(packet.data());
  const bool encrypts = encrypts_ && wire::carries_values(wire::Kind{header.kind});
  header.length = static_cast<std::uint16_t>(packet.size());
  header.flags =
      static_cast<std::uint16_t>(wire::kAuthenticated | (encrypts ? wire::kEncrypted : 0));
  header.integrity = 0;  // the tag also shows damage
  const std::size_t body = packet.size() - sizeof(SessionTrailer);
  const std::size_t clear = clear_bytes(packet, body);
  if (out.data() != packet.data()) std::copy_n(packet.begin(), clear, out.begin());

  const std::uint64_t counter = counter_++;
  const auto tag = key_.encrypt(counter, out.first(clear), packet.subspan(clear, body - clear),
                                out.data() + clear);
  if (key_number(counter_) != key_number(counter))
    key_ = GcmKey(renewed_key(first_, key_number(counter_)));
  auto* const trailer = ::new (out.data() + body) SessionTrailer;
  trailer->counter = counter;
  std::memcpy(trailer->tag.data(), tag.data(), tag.size());
}

void Sealer::reveal(std::span<const std::byte> sealed, std::span<std::byte> body) const {
  const auto& trailer =
      *reinterpret_cast<const SessionTrailer*>(sealed.last(sizeof(SessionTrailer)).data());
  const std::size_t clear = std::min(clear_bytes(sealed, body.size()), body.size());
  std::copy_n(sealed.begin(), clear, body.begin());
  if (clear == body.size()) return;
  const std::uint64_t counter = trailer.counter;
  const auto text = sealed.subspan(clear, body.size() - clear);
  if (key_number(counter) == key_number(counter_))
    key_.decrypt(counter, {}, text, body.data() + clear);
  else
    GcmKey(renewed_key(first_, key_number(counter)))
        .decrypt(counter, {}, text, body.data() + clear);
}

// ---------------------------------------------------------------------------------------- opening
/// Null for a key that is not next to the newest one, so that no sender can make us derive keys
/// again and again.
const GcmKey* Opener::key_of(std::uint32_t number) {
  if (std::uint64_t{number} + 1 < newest_ || number > std::uint64_t{newest_} + 1) return nullptr;
  auto& known = known_[number % known_.size()];
  if (!known || known->number != number)
    known.emplace(Known{number, GcmKey(renewed_key(first_, number))});
  return &known->key;
}

bool Opener::open(const Packet& packet, std::byte* bytes) {
  assert(!packet.is_encrypted() || packet.bytes().data() == bytes);
  const bool must_be_encrypted = encrypted_ && wire::carries_values(packet.kind());
  if (!packet.is_authenticated() || packet.is_encrypted() != must_be_encrypted) return false;
  const auto body = packet.body();
  const std::size_t clear = clear_bytes(packet.bytes(), body.size());
  const auto& trailer =
      *reinterpret_cast<const SessionTrailer*>(packet.bytes().data() + body.size());
  const std::uint64_t counter = trailer.counter;
  const GcmKey* const key = key_of(key_number(counter));
  if (key == nullptr) return false;
  const auto tag = key->decrypt(counter, body.first(clear), body.subspan(clear),
                                packet.is_encrypted() ? bytes + clear : nullptr);
  if (sodium_memcmp(tag.data(), trailer.tag.data(), tag.size()) != 0) return false;
  newest_ = std::max(newest_, key_number(counter));
  return true;
}

DropReason unseal(Opener& opener, Packet& packet, Buffer& buffer) {
  if (!opener.open(packet, packet.is_encrypted() ? buffer.writable().data() : nullptr))
    return DropReason::kNotAuthentic;
  return packet.is_encrypted() ? packet.check_decrypted() : DropReason::kNone;
}

}  // namespace sluice
