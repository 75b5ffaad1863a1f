// A job's secret, and the keys made from it. Who knows the secret may join the job; who does not
// can neither join nor, where packets are authenticated, speak as a member.
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

/// Holds a digest of the text and never the text; wiped when it goes. Nothing prints one.
class Secret {
 public:
  static constexpr std::size_t kMinBytes = limits::kMinSecretBytes;
  static constexpr std::size_t kMaxBytes = limits::kMaxSecretBytes;

  /// A text of kMinBytes..kMaxBytes. It should be random, for instance 32 random bytes in base64: a
  /// phrase can be guessed by whoever has recorded one packet. Throws kInvalidArgument, without the
  /// text, if it is shorter or longer.
  explicit Secret(std::string_view text);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  /// The same text, found out in constant time.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  friend Key derive(const Secret& secret, std::span<const std::uint8_t> message);
  Key master_;
};

/// Of the packets that need no session (wire::uses_handshake_key).
Key handshake_key(const Secret& secret, std::uint32_t job);

/// Of a session's packets to the workers: another epoch or other parameters give another key, so
/// neither recorded packets nor a WELCOME that was tampered with are of use.
Key downstream_key(const Secret& secret, const Session& session);

/// What a member's JOIN and its WELCOME have made its own.
struct Binding {
  Rank rank{};
  std::uint64_t nonce = 0;
  std::uint64_t token = 0;
};

/// Of one member's packets to the aggregator, until it joins again.
Key upstream_key(const Secret& secret, const Session& session, const Binding& binding);

/// For challenge_cookie: one per process, and nothing else is made with it.
Key random_key();

using Cookie = std::array<std::uint8_t, 16>;

/// By which a rank proves to another one of its host, which made up `nonce`, that it has the
/// secret.
Cookie host_proof(const Secret& secret, std::uint32_t job, Rank rank, std::uint64_t nonce);

/// What a CHALLENGE carries and its JOIN brings back. An aggregator computes it again to know its
/// own CHALLENGE, so it keeps nothing for those that it challenged.
Cookie challenge_cookie(const Key& process_key, std::uint32_t job, std::uint64_t nonce,
                        std::uint64_t serial, std::uint16_t rank, const Endpoint& from);

/// In constant time.
bool equal(const Cookie& a, const Cookie& b);

}  // namespace sluice
