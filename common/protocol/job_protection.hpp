// How one job's packets travel between its workers and one of its aggregators: with which keys, and
// whether with a CRC32C. Both sides keep one per job and aggregator, and ask it for every packet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/protocol/protection.hpp"
#include "common/protocol/secret.hpp"

namespace sluice {

class JobProtection {
 public:
  /// No secret, no integrity.
  JobProtection() = default;
  /// `secret` may be null: anybody may join, and packets carry no trailer.
  JobProtection(bool integrity, std::shared_ptr<const Secret> secret, std::uint32_t job)
      : integrity_(integrity), secret_(std::move(secret)) {
    if (secret_) handshake_ = handshake_key(*secret_, job);
  }

  bool has_secret() const { return secret_ != nullptr; }

  /// The session's packets are authenticated from now on if it says so.
  void begin_session(const Session& session) {
    session_.reset();
    if (session.authenticated && secret_) session_ = session_key(*secret_, session);
  }

  /// What a packet of this kind is sent with.
  Protection of(wire::Kind kind) const { return {integrity_, key_of(kind)}; }

  /// Whether a packet carries the trailer that its kind must have here.
  bool accepts(const Packet& packet) const {
    const Key* key = key_of(packet.kind());
    return key == nullptr || is_authentic(packet, *key);
  }

 private:
  const Key* key_of(wire::Kind kind) const {
    const auto& key = wire::uses_handshake_key(kind) ? handshake_ : session_;
    return key ? &*key : nullptr;
  }

  bool integrity_ = false;
  std::shared_ptr<const Secret> secret_;
  std::optional<Key> handshake_;
  std::optional<Key> session_;
};

}  // namespace sluice
