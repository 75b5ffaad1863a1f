// Authentication of the packets of one session, and encryption if the session says so: AES-256-GCM
// with a key per direction, a counter in every packet, and tag and counter behind the body.
// - The beginning of a packet (MemberHeader, DeliveryHeader) is not encrypted, as it says which key
//   is used. Packets that have neither values nor their places are not encrypted at all.
// - The upper half of the counter is the number of the key: after 2^32 packets, at most 2^44 AES
//   blocks, the next key is derived. So keys are renewed without an exchange of packets.
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

/// The key of a direction for this upper half of the counter.
Key renewed_key(const Key& first, std::uint32_t number);

/// For the side that sends. There must be only one for a key: two would use the same counters.
class Sealer {
 public:
  /// `counter` is that of the first packet.
  Sealer(const Key& first, bool encrypts, std::uint64_t counter = 0);
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;

  bool encrypts() const { return encrypts_; }

  /// Completes a packet whose body is at the front of `packet`, with room for a SessionTrailer
  /// behind it: sets length, flags, counter and tag. Every call uses a new counter.
  void seal(std::span<std::byte> packet) { seal(packet, packet); }
  /// The same, but writes to `out`, which has the same length; of `packet` only the header changes.
  void seal(std::span<std::byte> packet, std::span<std::byte> out);

  /// Returns the first `body.size()` bytes of a packet that was sealed here, as they were before.
  void reveal(std::span<const std::byte> sealed, std::span<std::byte> body) const;

 private:
  Key first_;
  GcmKey key_;
  std::uint64_t counter_;
  bool encrypts_;
};

/// For the side that receives. It must live as long as the sealer, as a new one begins with the
/// first key.
class Opener {
 public:
  Opener(const Key& first, bool encrypted) : first_(first), encrypted_(encrypted) {}

  /// Whether the packet was sealed with this key, as the session requires. `bytes` are those of the
  /// packet, to be decrypted in place if it is encrypted; otherwise null.
  bool open(const Packet& packet, std::byte* bytes);

 private:
  struct Known {
    std::uint32_t number;
    GcmKey key;
  };
  const GcmKey* key_of(std::uint32_t number);

  Key first_;
  std::array<std::optional<Known>, 3> known_;  // the newest key, and those next to it
  std::uint32_t newest_ = 0;                   // the newest with which a packet came
  bool encrypted_;
};

DropReason unseal(Opener& opener, Packet& packet, Buffer& buffer);

/// Authenticates and decrypts a packet of a session. Returns kNone, and `packet` is completely
/// validated; or the reason. `opener` is null if the session's packets carry no trailers.
inline DropReason unseal(Opener* opener, Packet& packet, Buffer& buffer) {
  if (opener != nullptr) return unseal(*opener, packet, buffer);
  return packet.is_authenticated() ? DropReason::kNotAuthentic : DropReason::kNone;
}

}  // namespace sluice
