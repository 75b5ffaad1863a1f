// The packet kinds of version 1 as one table, for all code that depends on the kind: reading,
// checks, protection, printing. docs/protocol.md has the same table, and a test compares them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/protocol/wire.hpp"

namespace sluice::wire {

/// The beginning of the fixed part.
enum class Beginning : std::uint8_t {
  kHeader,         ///< its sender, or receiver, may have no session
  kMemberHeader,   ///< from a member of a session, proven by its token
  kDeliveryHeader  ///< on a stream of a session
};

/// The key with which the trailer is made: the job's if the packet needs no session, otherwise the
/// session's.
enum class TrailerKey : std::uint8_t { kOfJob, kOfSession };

// clang-format off
//  row(fixed part,    name,           begins with,     trailer)
#define SLUICE_WIRE_KINDS(row)                                      \
  row(Hello,        "HELLO",         kHeader,         kOfJob)       \
  row(Join,         "JOIN",          kHeader,         kOfJob)       \
  row(KeepAlive,    "KEEPALIVE",     kMemberHeader,   kOfSession)   \
  row(Leave,        "LEAVE",         kMemberHeader,   kOfSession)   \
  row(Data,         "DATA",          kMemberHeader,   kOfSession)   \
  row(Ack,          "ACK",           kMemberHeader,   kOfSession)   \
  row(Probe,        "PROBE",         kMemberHeader,   kOfSession)   \
  row(Sync,         "SYNC",          kMemberHeader,   kOfSession)   \
  row(KeyValueData, "KV_DATA",       kMemberHeader,   kOfSession)   \
  row(Challenge,    "CHALLENGE",     kHeader,         kOfJob)       \
  row(Pending,      "PENDING",       kHeader,         kOfJob)       \
  row(Welcome,      "WELCOME",       kHeader,         kOfJob)       \
  row(Refused,      "REFUSED",       kHeader,         kOfJob)       \
  row(Abort,        "ABORT",         kHeader,         kOfJob)       \
  row(Left,         "LEFT",          kHeader,         kOfJob)       \
  row(KeepAliveAck, "KEEPALIVE_ACK", kHeader,         kOfSession)   \
  row(Result,       "RESULT",        kDeliveryHeader, kOfSession)   \
  row(Status,       "STATUS",        kDeliveryHeader, kOfSession)   \
  row(Poll,         "POLL",          kDeliveryHeader, kOfSession)   \
  row(Beacon,       "BEACON",        kHeader,         kOfSession)   \
  row(Versions,     "VERSION",       kHeader,         kOfJob)       \
  row(KeyValueResult, "KV_RESULT",   kDeliveryHeader, kOfSession)
// clang-format on

/// The kind to which a fixed part belongs.
template <class T>
struct KindOf;
#define SLUICE_KIND_OF(T, name, beginning, key) \
  template <>                                   \
  struct KindOf<T> {                            \
    static constexpr Kind kValue = Kind::k##T;  \
  };
SLUICE_WIRE_KINDS(SLUICE_KIND_OF)
#undef SLUICE_KIND_OF

struct KindRow {
  Kind kind;
  std::string_view name;    ///< as in docs/protocol.md
  std::size_t fixed_bytes;  ///< only DATA and RESULT, including keyed ones, are longer
  Beginning beginning;
  TrailerKey key;
};

#define SLUICE_KIND_ROW(T, name, beginning, key) \
  KindRow{Kind::k##T, name, sizeof(T), Beginning::beginning, TrailerKey::key},
inline constexpr std::array kKinds{SLUICE_WIRE_KINDS(SLUICE_KIND_ROW)};
#undef SLUICE_KIND_ROW

/// Null if the kind is reserved or does not exist in this version.
constexpr const KindRow* row_of(Kind kind) {
  for (const KindRow& row : kKinds)
    if (row.kind == kind) return &row;
  return nullptr;
}

/// "?" if row_of() is null.
constexpr std::string_view name(Kind kind) {
  const KindRow* const row = row_of(kind);
  return row == nullptr ? "?" : row->name;
}

/// Whether the trailer is made with the job's key. It uses a bit per code, as it is called for
/// every packet.
constexpr bool uses_handshake_key(Kind kind) {
  constexpr auto kOfJob = [] {
    std::array<bool, 256> of_job{};
    for (const KindRow& row : kKinds)
      of_job[static_cast<std::uint8_t>(row.kind)] = row.key == TrailerKey::kOfJob;
    return of_job;
  }();
  return kOfJob[static_cast<std::uint8_t>(kind)];
}

/// Whether the kind carries values, or says where they lie: then encrypted sessions encrypt it.
constexpr bool carries_values(Kind kind) {
  return kind == Kind::kData || kind == Kind::kKeyValueData || kind == Kind::kResult ||
         kind == Kind::kKeyValueResult;
}

/// How many bytes of such a kind are not encrypted: they tell the receiver which key to use.
constexpr std::size_t clear_bytes(Kind kind) {
  return is_upstream(kind) ? sizeof(MemberHeader) : sizeof(DeliveryHeader);
}

/// The size of the trailer of an authenticated packet.
constexpr std::size_t trailer_bytes(Kind kind) {
  return uses_handshake_key(kind) ? kTrailerBytes : sizeof(SessionTrailer);
}

namespace check {
constexpr bool codes_rise() {
  for (std::size_t i = 1; i < kKinds.size(); ++i)
    if (kKinds[i - 1].kind >= kKinds[i].kind) return false;
  return true;
}
/// Members send upstream, streams downstream, and each fixed part contains its beginning.
constexpr bool beginnings_fit() {
  for (const KindRow& row : kKinds) {
    if (row.beginning == Beginning::kMemberHeader &&
        !(is_upstream(row.kind) && row.fixed_bytes >= sizeof(MemberHeader)))
      return false;
    if (row.beginning == Beginning::kDeliveryHeader &&
        !(!is_upstream(row.kind) && row.fixed_bytes >= sizeof(DeliveryHeader)))
      return false;
    if (row.beginning != Beginning::kHeader && row.key == TrailerKey::kOfJob) return false;
  }
  return true;
}
static_assert(codes_rise() && beginnings_fit());
}  // namespace check

}  // namespace sluice::wire
