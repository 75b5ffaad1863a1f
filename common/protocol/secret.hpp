// A job's secret, and the keys made from it. A process that knows the secret may join the job. One
// that does not can neither join nor, if packets are authenticated, send packets as a member.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/endpoint.hpp"
#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/protocol/protection.hpp"
#include "common/protocol/session.hpp"

namespace sluice {

/// Contains a digest of the text and never the text itself; its destructor wipes it. Nothing prints
/// it.
class Secret {
 public:
  static constexpr std::size_t kMinBytes = limits::kMinSecretBytes;
  static constexpr std::size_t kMaxBytes = limits::kMaxSecretBytes;

  /// A text of kMinBytes..kMaxBytes. It should be random, for instance 32 random bytes in base64:
  /// an attacker that has recorded one packet can guess a phrase. Throws kInvalidArgument, without
  /// the text, if it is shorter or longer.
  explicit Secret(std::string_view text);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  /// Whether the texts are the same. Compares in constant time.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  friend Key derive(const Secret& secret, std::span<const std::uint8_t> message);
  Key master_;
};

/// For packets that need no session (wire::uses_handshake_key).
Key handshake_key(const Secret& secret, std::uint32_t job);

/// For a session's packets to the workers. Another epoch or other parameters give another key, so
/// neither recorded packets nor a modified WELCOME are of use.
Key downstream_key(const Secret& secret, const Session& session);

/// What makes a member's session unique: values of its JOIN and its WELCOME.
struct Binding {
  Rank rank{};
  std::uint64_t nonce = 0;
  std::uint64_t token = 0;
};

/// For one member's packets to the aggregator, until it joins again.
Key upstream_key(const Secret& secret, const Session& session, const Binding& binding);

/// For challenge_cookie: one per process, used for nothing else.
Key random_key();

using Cookie = std::array<std::uint8_t, 16>;

/// With it a rank proves that it has the secret to another rank of its host, which chose `nonce`.
Cookie host_proof(const Secret& secret, std::uint32_t job, Rank rank, std::uint64_t nonce);

/// A CHALLENGE carries this, and its JOIN returns it. An aggregator recognizes its own CHALLENGE by
/// computing it again, so it stores nothing for it.
Cookie challenge_cookie(const Key& process_key, std::uint32_t job, std::uint64_t nonce,
                        std::uint64_t serial, std::uint16_t rank, const Endpoint& from);

/// Compares in constant time.
bool equal(const Cookie& a, const Cookie& b);

}  // namespace sluice
