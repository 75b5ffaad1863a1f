// What defends a packet on its way: a CRC32C against damage, or a trailer behind the body against
// forgery, too. Of a handshake that is a tag of BLAKE2b, which needs no state and which the CRC32C
// covers, so that damage is found without the key; of a session's packets see packet_cipher.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/protocol/packet.hpp"
#include "common/protocol/packet_cipher.hpp"

namespace sluice {

struct Protection {
  bool integrity = false;
  const Key* key = nullptr;  ///< of a handshake; null: no tag
  Sealer* sealer = nullptr;  ///< of a session's packet; null: no trailer

  std::size_t trailer_bytes() const {
    if (sealer != nullptr) return sizeof(wire::SessionTrailer);
    return key == nullptr ? 0 : wire::kTrailerBytes;
  }
  bool encrypts() const { return sealer != nullptr && sealer->encrypts(); }
};

/// What Header.integrity of this packet must be: CRC32C of all of it with that field zero, and 1 in
/// place of 0, which means "not computed".
std::uint32_t integrity_of(std::span<const std::byte> packet);

void protect_always(std::span<std::byte> packet, const Protection& with);

/// Completes a packet whose body was written to the front of `packet`, with trailer_bytes() behind
/// it: length, flags, and trailer or CRC. A packet that was changed may be protected again.
inline void protect(std::span<std::byte> packet, const Protection& with) {
  if (with.integrity || with.key != nullptr || with.sealer != nullptr) protect_always(packet, with);
}

/// Gives the first `body.size()` bytes of a packet that was protected `by` this, as those of one
/// that is not protected yet.
void unprotect(std::span<const std::byte> packet, std::span<std::byte> body, const Protection& by);

/// Whether a packet that was damaged on its way would not be taken.
inline bool shows_damage(const Packet& packet) {
  return packet.has_integrity() ||
         (packet.is_authenticated() && !wire::uses_handshake_key(packet.kind()));
}

/// Whether the handshake carries a tag that was made with `key`. Compares in constant time.
bool is_authentic(const Packet& handshake, const Key& key);

}  // namespace sluice
