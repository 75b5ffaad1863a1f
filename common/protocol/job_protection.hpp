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

  // At an aggregator: ----------------------------------------------------------------------------
  /// From now on what goes to workers is sealed as the session says.
  void begin_session(const Session& session) {
    sealer_.reset();
    if (session.authenticated && secret_)
      sealer_ = std::make_shared<Sealer>(downstream_key(*secret_, session), session.encrypted);
  }
  /// For the packets of a member; null where they carry no trailers.
  std::shared_ptr<Opener> opener_of(const Session& session, const Binding& member) const {
    if (!session.authenticated || !secret_) return nullptr;
    return std::make_shared<Opener>(upstream_key(*secret_, session, member), session.encrypted);
  }

  // At a worker: ---------------------------------------------------------------------------------
  /// The same for a member: once for a binding, since its counters begin anew. Those of the
  /// aggregator go on where it is taken in again in the same epoch.
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

  // At both: -------------------------------------------------------------------------------------
  /// What a packet of this kind is sent with.
  Protection of(wire::Kind kind) const {
    if (!wire::uses_handshake_key(kind)) return {integrity_, nullptr, sealer_.get()};
    return {integrity_, handshake_ ? &*handshake_ : nullptr};
  }

  /// Whether a handshake carries the tag that it must have here.
  bool accepts(const Packet& handshake) const {
    return !handshake_ || is_authentic(handshake, *handshake_);
  }

 private:
  bool integrity_ = false;
  std::shared_ptr<const Secret> secret_;
  std::optional<Key> handshake_;
  std::shared_ptr<Sealer> sealer_;  // shared by copies: their counters must not be the same
  std::shared_ptr<Opener> opener_;
  Key downstream_{};  // of opener_
};

}  // namespace sluice
