// What protects a packet on its way: a CRC32C against damage; or a trailer behind the body, which
// also protects against forgery. The trailer of a handshake is a BLAKE2b tag, which needs no state;
// the CRC32C covers it, so that damage is found without the key. For a session's packets see
// packet_cipher.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/protocol/packet.hpp"
#include "common/protocol/packet_cipher.hpp"

namespace sluice {

struct Protection {
  bool integrity = false;
  const Key* key = nullptr;  ///< for a handshake; null: no tag
  Sealer* sealer = nullptr;  ///< for a session's packet; null: no trailer

  std::size_t trailer_bytes() const {
    if (sealer != nullptr) return sizeof(wire::SessionTrailer);
    return key == nullptr ? 0 : wire::kTrailerBytes;
  }
  bool encrypts() const { return sealer != nullptr && sealer->encrypts(); }
};

/// The correct Header.integrity of this packet: the CRC32C of the packet with that field zero; but
/// 1 in place of 0, which means "not computed".
std::uint32_t integrity_of(std::span<const std::byte> packet);

void protect_always(std::span<std::byte> packet, const Protection& with);

/// Completes a packet whose body is at the front of `packet`, with trailer_bytes() behind it: sets
/// length, flags, and trailer or CRC. A packet that has changed may be protected again.
inline void protect(std::span<std::byte> packet, const Protection& with) {
  if (with.integrity || with.key != nullptr || with.sealer != nullptr) protect_always(packet, with);
}

/// Returns the first `body.size()` bytes of a packet that was protected `by` this, as they were
/// before.
void unprotect(std::span<const std::byte> packet, std::span<std::byte> body, const Protection& by);

/// Whether a packet that is damaged on its way would be refused.
inline bool shows_damage(const Packet& packet) {
  return packet.has_integrity() ||
         (packet.is_authenticated() && !wire::uses_handshake_key(packet.kind()));
}

/// Whether the handshake carries a tag made with `key`. Compares in constant time.
bool is_authentic(const Packet& handshake, const Key& key);

}  // namespace sluice
