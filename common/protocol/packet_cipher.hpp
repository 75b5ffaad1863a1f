// How the packets of one session are authenticated, and encrypted if it says so: by AES-256-GCM
// with a key per direction, a counter in every packet, and tag and counter behind the body.
//
//  - What a packet begins with (MemberHeader, DeliveryHeader) stays clear: it tells which key.
//    Packets that carry no values, nor say where they lie, stay clear wholly.
//  - The upper half of the counter numbers the keys: after 2^32 packets the next one is derived, at
//    most 2^44 AES blocks after the one before. So a key is renewed without a word.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/packet_buffer.hpp"
#include "common/protocol/aes_gcm.hpp"
#include "common/protocol/packet.hpp"

namespace sluice {

/// The one of a direction's keys that the upper half of a counter tells.
Key renewed_key(const Key& first, std::uint32_t number);

/// Of the side that sends. Exists once for a key: two would use the same counters.
class Sealer {
 public:
  /// `counter`: of the first packet.
  Sealer(const Key& first, bool encrypts, std::uint64_t counter = 0);
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;

  bool encrypts() const { return encrypts_; }

  /// Completes a packet whose body was written to the front of `packet`, with room for a
  /// SessionTrailer behind it: length, flags, counter and tag. Every call takes another counter.
  void seal(std::span<std::byte> packet) { seal(packet, packet); }
  /// The same in `out`, of the same length; `packet` stays as it is, but for its header.
  void seal(std::span<std::byte> packet, std::span<std::byte> out);

  /// Gives the first `body.size()` bytes of a packet that was sealed here, as they were before.
  void reveal(std::span<const std::byte> sealed, std::span<std::byte> body) const;

 private:
  Key first_;
  GcmKey key_;
  std::uint64_t counter_;
  bool encrypts_;
};

/// Of the side that receives. One for as long as the sealer lives: made anew, it would begin with
/// the first key.
class Opener {
 public:
  Opener(const Key& first, bool encrypted) : first_(first), encrypted_(encrypted) {}

  /// Whether the packet was sealed with this key, as the session demands. `bytes`: the packet's, to
  /// be decrypted in place, if it is encrypted; else null.
  bool open(const Packet& packet, std::byte* bytes);

 private:
  struct Known {
    std::uint32_t number;
    GcmKey key;
  };
  const GcmKey* key_of(std::uint32_t number);

  Key first_;
  std::array<std::optional<Known>, 3> known_;  // the newest key, and those beside it
  std::uint32_t newest_ = 0;                   // of which a packet came
  bool encrypted_;
};

DropReason unseal(Opener& opener, Packet& packet, Buffer& buffer);

/// Proves and decrypts a packet of a session: kNone, and `packet` is valid wholly, or why not.
/// `opener` is null where the session's packets carry no trailers.
inline DropReason unseal(Opener* opener, Packet& packet, Buffer& buffer) {
  if (opener != nullptr) return unseal(*opener, packet, buffer);
  return packet.is_authenticated() ? DropReason::kNotAuthentic : DropReason::kNone;
}

}  // namespace sluice
