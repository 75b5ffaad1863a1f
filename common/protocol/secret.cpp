#include "common/protocol/secret.hpp"

#include <algorithm>
#include <string>

#include <sodium.h>

#include <sluice/error.hpp>

#include "common/protocol/aes_gcm.hpp"

namespace sluice {
namespace {

using wire::U16;
using wire::U32;
using wire::U64;
using Context = std::array<char, 16>;  // the purpose of a hash: no two purposes have the same

template <class Message>
std::span<const std::uint8_t> bytes_of(const Message& message) {
  static_assert(alignof(Message) == 1);
  return {reinterpret_cast<const std::uint8_t*>(&message), sizeof message};
}

struct SessionMessage {
  U32 job;
  U64 generation;
  U64 epoch;
  U64 delivery_token;
  U16 shard;
  U16 shards;
  U16 ranks;
  U16 streams;
  U16 block_elements;
  U16 payload_bytes;
  std::uint8_t history = 0;
  std::uint8_t encrypted = 0;
};

SessionMessage message_of(const Session& session) {
  SessionMessage message;
  message.job = session.job;
  message.generation = session.generation;
  message.epoch = session.epoch;
  message.delivery_token = session.delivery_token;
  message.shard = session.shard;
  message.shards = session.shards;
  message.ranks = session.ranks;
  message.streams = session.streams;
  message.block_elements = session.block_elements;
  message.payload_bytes = session.payload_bytes;
  message.history = session.history;
  message.encrypted = session.encrypted ? 1 : 0;
  return message;
}

// libsodium chooses its fast implementations here; its results do not depend on that.
void initialise() {
  static const int result = sodium_init();
  if (result < 0) throw Error(ErrorCode::kUnavailable, "libsodium cannot be initialised");
  check_cpu_has_aes();
}

}  // namespace

Secret::Secret(std::string_view text) {
  initialise();
  if (text.size() < kMinBytes || text.size() > kMaxBytes)
    throw Error(ErrorCode::kInvalidArgument, "a secret has " + std::to_string(kMinBytes) + ".." +
                                                 std::to_string(kMaxBytes) + " bytes, not " +
                                                 std::to_string(text.size()));
  constexpr Context kContext{"sluice secret 1"};
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, master_.size());
  crypto_generichash_update(&state, bytes_of(kContext).data(), sizeof kContext);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(text.data()),
                            text.size());
  crypto_generichash_final(&state, master_.data(), master_.size());
  sodium_memzero(&state, sizeof state);
}

Secret::Secret(Secret&& other) noexcept : master_(other.master_) {
  sodium_memzero(other.master_.data(), other.master_.size());
}

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    master_ = other.master_;
    sodium_memzero(other.master_.data(), other.master_.size());
  }
  return *this;
}

Secret::~Secret() {
  sodium_memzero(master_.data(), master_.size());
}

bool operator==(const Secret& a, const Secret& b) {
  return sodium_memcmp(a.master_.data(), b.master_.data(), a.master_.size()) == 0;
}

Key derive(const Secret& secret, std::span<const std::uint8_t> message) {
  Key key;
  crypto_generichash(key.data(), key.size(), message.data(), message.size(), secret.master_.data(),
                     secret.master_.size());
  return key;
}

Key handshake_key(const Secret& secret, std::uint32_t job) {
  struct {
    Context context{"sluice joining1"};
    U32 job;
  } message;
  message.job = job;
  return derive(secret, bytes_of(message));
}

Key downstream_key(const Secret& secret, const Session& session) {
  struct {
    Context context{"sluice to rank1"};
    SessionMessage session;
  } message;
  message.session = message_of(session);
  return derive(secret, bytes_of(message));
}

Key upstream_key(const Secret& secret, const Session& session, const Binding& binding) {
  struct {
    Context context{"sluice to aggr1"};
    SessionMessage session;
    U64 nonce;
    U64 token;
    U16 rank;
  } message;
  message.session = message_of(session);
  message.nonce = binding.nonce;
  message.token = binding.token;
  message.rank = binding.rank.value;
  return derive(secret, bytes_of(message));
}

Cookie host_proof(const Secret& secret, std::uint32_t job, Rank rank, std::uint64_t nonce) {
  struct {
    Context context{"sluice on host1"};
    U32 job;
    U16 rank;
    U64 nonce;
  } message;
  message.job = job;
  message.rank = rank.value;
  message.nonce = nonce;
  const Key key = derive(secret, bytes_of(message));
  Cookie proof;
  std::copy_n(key.begin(), proof.size(), proof.begin());
  return proof;
}

Key random_key() {
  initialise();
  Key key;
  randombytes_buf(key.data(), key.size());
  return key;
}

Cookie challenge_cookie(const Key& process_key, std::uint32_t job, std::uint64_t nonce,
                        std::uint64_t serial, std::uint16_t rank, const Endpoint& from) {
  struct {
    Context context{"sluice cookie 1"};
    U32 job;
    U64 nonce;
    U64 serial;
    U16 rank;
    U16 port_id;
    U32 ipv4;
    U16 udp_port;
    std::array<std::uint8_t, 6> mac;
  } message;
  message.job = job;
  message.nonce = nonce;
  message.serial = serial;
  message.rank = rank;
  message.port_id = from.port_id;
  message.ipv4 = from.ipv4;
  message.udp_port = from.udp_port;
  message.mac = from.mac;
  Cookie cookie;
  crypto_generichash(cookie.data(), cookie.size(), bytes_of(message).data(), sizeof message,
                     process_key.data(), process_key.size());
  return cookie;
}

bool equal(const Cookie& a, const Cookie& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace sluice
