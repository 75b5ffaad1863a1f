// How the packets of one job are protected between its workers and one of its aggregators: with
// which keys, and whether with a CRC32C. Both sides have one such object per job and aggregator,
// and use it for every packet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/protocol/protection.hpp"
#include "common/protocol/secret.hpp"

namespace sluice {

class JobProtection {
 public:
  /// Without a secret and without integrity.
  JobProtection() = default;
  /// If `secret` is null, any worker may join, and packets carry no trailer.
  JobProtection(bool integrity, std::shared_ptr<const Secret> secret, std::uint32_t job)
      : integrity_(integrity), secret_(std::move(secret)) {
    if (secret_) handshake_ = handshake_key(*secret_, job);
  }

  bool has_secret() const { return secret_ != nullptr; }

  // For the aggregator: --------------------------------------------------------------------------
  /// From now on, packets to workers are protected as the session says.
  void begin_session(const Session& session) {
    sealer_.reset();
    if (session.authenticated && secret_)
      sealer_ = std::make_shared<Sealer>(downstream_key(*secret_, session), session.encrypted);
  }
  /// For the packets of a member; null if they carry no trailers.
  std::shared_ptr<Opener> opener_of(const Session& session, const Binding& member) const {
    if (!session.authenticated || !secret_) return nullptr;
    return std::make_shared<Opener>(upstream_key(*secret_, session, member), session.encrypted);
  }

  // For a worker: --------------------------------------------------------------------------------
  /// The same for a member. Call it once for a binding, as its counters start again. The counters
  /// of the aggregator continue if this worker joins again in the same epoch.
  void begin_session(const Session& session, const Binding& self) {
    sealer_.reset();
    if (!session.authenticated || !secret_) return opener_.reset();
    sealer_ = std::make_shared<Sealer>(upstream_key(*secret_, session, self), session.encrypted);
    const Key down = downstream_key(*secret_, session);
    if (opener_ && down == downstream_) return;
    downstream_ = down;
    opener_ = std::make_shared<Opener>(down, session.encrypted);
  }
  Opener* opener() const { return opener_.get(); }  ///< null: packets carry no trailers

  // For both: ------------------------------------------------------------------------------------
  /// How a packet of this kind is protected when it is sent.
  Protection of(wire::Kind kind) const {
    if (!wire::uses_handshake_key(kind)) return {integrity_, nullptr, sealer_.get()};
    return {integrity_, handshake_ ? &*handshake_ : nullptr};
  }

  /// Whether a handshake packet carries the tag that is required here.
  bool accepts(const Packet& handshake) const {
    return !handshake_ || is_authentic(handshake, *handshake_);
  }

 private:
  bool integrity_ = false;
  std::shared_ptr<const Secret> secret_;
  std::optional<Key> handshake_;
  std::shared_ptr<Sealer> sealer_;  // copies share it, as their counters must be different
  std::shared_ptr<Opener> opener_;
  Key downstream_{};  // the key of opener_
};

}  // namespace sluice
