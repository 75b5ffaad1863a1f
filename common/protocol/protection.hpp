// What defends a packet on its way: a CRC32C against damage, and a keyed tag behind the body
// against forgery. The tag is made first and the CRC covers it, so that damage is found without the
// key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/protocol/packet.hpp"

namespace sluice {

using Key = std::array<std::uint8_t, 32>;

struct Protection {
  bool integrity = false;
  const Key* key = nullptr;  ///< null: no trailer

  std::size_t trailer_bytes() const { return key == nullptr ? 0 : wire::kTrailerBytes; }
};

/// What Header.integrity of this packet must be: CRC32C of all of it with that field zero, and 1 in
/// place of 0, which means "not computed".
std::uint32_t integrity_of(std::span<const std::byte> packet);

void protect_always(std::span<std::byte> packet, const Protection& with);

/// Completes a packet whose body was written to the front of `packet`, with trailer_bytes() behind
/// it: length, flag, tag and CRC. A packet that was changed may be protected again.
inline void protect(std::span<std::byte> packet, const Protection& with) {
  if (with.integrity || with.key != nullptr) protect_always(packet, with);
}

/// Makes the body of a protected packet one that is not protected yet.
void unprotect(std::span<std::byte> body);

/// Whether the packet carries a trailer that was made with `key`. Compares in constant time.
bool is_authentic(const Packet& packet, const Key& key);

}  // namespace sluice
