// The packets of Sluice, version 1: the place of every field. docs/protocol.md has the same as
// tables, with the rules. Only packet.hpp (reading) and build.hpp (writing) use these structs; the
// engines see validated views.
//
// Every packet is one UDP payload that begins with a Header. Upstream packets of a member continue
// with a MemberHeader (the sender, proven by its token). Downstream packets of a stream continue
// with a DeliveryHeader, which is the same for every worker of the job.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/limits.hpp"
#include "common/protocol/little_endian.hpp"

namespace sluice::wire {

using U16 = Le<std::uint16_t>;
using U32 = Le<std::uint32_t>;
using U64 = Le<std::uint64_t>;

inline constexpr std::uint16_t kMagic = 0x4C53;  // "SL"
inline constexpr std::uint8_t kVersion = 1;
using limits::kMaxBlockElements;
using limits::kMaxColumns;
using limits::kMaxHistory;
using limits::kMaxPayload;
using limits::kMaxStreams;
using limits::kMinPayload;
inline constexpr std::size_t kTrailerBytes = 16;  // of a handshake's tag

// Comes behind the body of a session's packets if they are authenticated.
struct SessionTrailer {
  U64 counter;  // different for different bytes; its upper half is the number of the key
  std::array<std::uint8_t, 16> tag{};
};
static_assert(sizeof(SessionTrailer) == 24 && alignof(SessionTrailer) == 1);

enum class Kind : std::uint8_t {
  // worker -> aggregator
  kHello = 0x01,
  kJoin = 0x02,
  kKeepAlive = 0x03,
  kLeave = 0x04,
  kData = 0x05,
  kAck = 0x06,
  kProbe = 0x07,
  kSync = 0x08,
  kKeyValueData = 0x20,
  // aggregator -> worker
  kChallenge = 0x81,
  kPending = 0x82,
  kWelcome = 0x83,
  kRefused = 0x84,
  kAbort = 0x85,
  kLeft = 0x86,
  kKeepAliveAck = 0x87,
  kResult = 0x88,
  kStatus = 0x89,
  kPoll = 0x8a,
  kBeacon = 0x8b,
  kVersions = 0x8c,
  kKeyValueResult = 0xa0,
};

constexpr bool is_upstream(Kind kind) {
  return static_cast<std::uint8_t>(kind) < 0x80;
}

enum class Collective : std::uint8_t {
  kAllReduce = 1,
  kBarrier = 2,
  kBroadcast = 3,
  kAllGather = 4,
  kReduce = 5,
  kReduceScatter = 6,
  kGather = 7,
  kScatter = 8,
  kAllToAll = 9,
  kSparseAllReduce = 10,  // of pairs of key and row, in KV_DATA and KV_RESULT
};
constexpr bool is_valid(Collective c) {
  return c >= Collective::kAllReduce && c <= Collective::kSparseAllReduce;
}
/// Whether elements are moved and not reduced: every sum has the value of one rank.
constexpr bool moves(Collective c) {
  return c == Collective::kBroadcast || c == Collective::kAllGather || c == Collective::kGather ||
         c == Collective::kScatter || c == Collective::kAllToAll;
}
constexpr std::string_view name(Collective c) {
  constexpr std::array<std::string_view, 11> kNames{
      "?",          "all_reduce", "barrier",          "broadcast",
      "all_gather", "reduce",     "reduce_scatter",   "gather",
      "scatter",    "all_to_all", "sparse_all_reduce"};
  return kNames[is_valid(c) ? static_cast<std::size_t>(c) : 0];
}

// ------------------------------------------------------------------------------------ headers
struct Header {
  U16 magic;
  std::uint8_t version = 0;
  std::uint8_t kind = 0;
  U16 length;  // of the whole UDP payload, any trailer included
  U16 flags;   // kAuthenticated, kEncrypted
  U32 job;
  U32 integrity;  // CRC32C of the packet with this field zero; 0: not computed
};
static_assert(sizeof(Header) == 16 && alignof(Header) == 1);
inline constexpr std::uint16_t kAuthenticated = 1;  // the packet ends with a trailer
// All between the packet's beginning and the trailer is encrypted.
inline constexpr std::uint16_t kEncrypted = 2;

struct MemberHeader {
  Header header;
  U64 token;
  U16 rank;
  U16 stream;  // zero if the packet is about none
  U32 reserved;
};
static_assert(sizeof(MemberHeader) == 32 && alignof(MemberHeader) == 1);

struct DeliveryHeader {
  Header header;
  U64 epoch;
  U64 delivery_token;
  U16 stream;
  U16 window;  // RESULT, STATUS: the smallest window that a rank has sent, in streams; 0: none has
  U16 reserved[2];
};
static_assert(sizeof(DeliveryHeader) == 40 && alignof(DeliveryHeader) == 1);

// ------------------------------------------------------------------------- parts of stream packets
/// How the blocks of a packet, or its pairs, are divided. It is in every packet that carries some,
/// so that each packet can be checked completely by itself.
struct Shape {
  U64 element_count;           // of the tensor; keyed: all keys are less
  U16 block_elements;          // 1..kMaxBlockElements; keyed: of each key's row
  std::uint8_t wire_type = 0;  // WireType of the payload
  std::uint8_t columns = 0;    // W, 1..kMaxColumns; keyed: a chunk has 2^columns keys, 0..8
};
static_assert(sizeof(Shape) == 12 && alignof(Shape) == 1);

/// What the collective is, which is compared between ranks; and which sums the sender wants: those
/// of elements begin + k*stride .. begin + k*stride + count - 1 for all k >= 0.
struct Descriptor {
  std::uint8_t collective = 0;
  std::uint8_t op_type = 0;    // ElementType that the caller sees
  std::uint8_t reduction = 0;  // Reduction
  std::uint8_t flags = 0;      // kWantsPart
  U16 root;                    // zero where the collective has none
  U16 layout;  // checksum of what each rank holds, if ranks hold parts; otherwise zero
  U64 tag;     // set by the caller
  U64 begin;   // zero, as the two below, without kWantsPart; keyed: the threshold, an fp64
  U64 count;
  U64 stride;         // 0: only k = 0
  U64 rounding_seed;  // for scaled blocks; 0: they are rounded to nearest
};
static_assert(sizeof(Descriptor) == 48 && alignof(Descriptor) == 1);
inline constexpr std::uint8_t kWantsPart = 1;  // otherwise all sums are wanted

struct Column {
  U32 index;  // the round's current block, or kNoBlock: the column is done
  U32 next;   // DATA: the sender's next non-zero block; RESULT: the block wanted next; or kNoBlock
  Le<std::int16_t> scale;  // of a scaled block that some packet carries; otherwise zero
  std::uint8_t flags = 0;  // one of those below
  std::uint8_t reserved = 0;
};
static_assert(sizeof(Column) == 12 && alignof(Column) == 1);
inline constexpr std::uint8_t kColumnPresent = 1;   // the block's elements are in the payload
inline constexpr std::uint8_t kColumnWithheld = 2;  // RESULT: the receiver needs no sum here

// ------------------------------------------------------------------------------ membership, up
/// HELLO and JOIN are as long as the longest answer to them with its trailer, so that an aggregator
/// cannot be used for amplification.
inline constexpr std::size_t kHandshakeBytes = 128;
inline constexpr std::size_t kBuildBytes = 24;    // "629700c-dirty"
inline constexpr std::size_t kJobNameBytes = 64;  // the maximum length of a name

struct Hello {
  Header header;
  U64 nonce;
  U16 rank;
  U16 world_size;
  std::array<std::uint8_t, 100> padding{};
};
static_assert(sizeof(Hello) == kHandshakeBytes);

struct Join {
  Header header;
  U64 nonce;
  U64 incarnation;  // echoed from CHALLENGE
  U64 serial;       // echoed from CHALLENGE
  U64 generation;   // 0: none. To shard 0: the worker's own; to others: the one from shard 0
  U16 rank;
  U16 world_size;
  U16 streams;  // 0: as many as the aggregator's default
  U16 block_elements;
  U16 payload_bytes;  // largest UDP payload that this worker accepts
  U16 shard;
  U16 shards;
  std::uint8_t history = 0;                  // 0: the aggregator's default
  std::uint8_t flags = 0;                    // kJoin...
  std::array<std::uint8_t, 16> challenge{};  // echoed from CHALLENGE
  U64 epoch;                                 // of this worker's last welcome; 0: none
  U64 host;  // id of this worker's host, the same for all ranks on it; 0: unknown
  std::array<std::uint8_t, kBuildBytes> build{};   // of the worker's library, for people
  std::array<std::uint8_t, kJobNameBytes> name{};  // of the job, for people
};
static_assert(sizeof(Join) == 184);
inline constexpr std::uint8_t kJoinNoProgress =
    1;  // no round has ended on any stream of this shard
inline constexpr std::uint8_t kJoinAuthenticate = 2;  // packets of the session need a trailer
inline constexpr std::uint8_t kJoinEncrypt = 4;       // values and their places must be encrypted

struct KeepAlive {
  MemberHeader member;
  U64 number;            // increases with every one sent
  U64 newest_beacon;     // number of the newest BEACON of this epoch that was received; 0: none
  U32 beacons_received;  // bit i: BEACON newest_beacon - i was received, too
  std::array<std::uint8_t, 28> padding{};  // as long as the longest answer
};
static_assert(sizeof(KeepAlive) == 80);

struct Leave {
  MemberHeader member;
  std::uint8_t abort = 0;  // 1: ops are pending, end the job for all
  std::array<std::uint8_t, 7> reserved{};
  U64 op;  // from here on the reason, as in Abort; without `abort` only after an exception
  U64 value_a;
  U64 value_b;
  U16 reason;  // 0: the rank's own decision
  U16 field;
  U16 rank_a;
  U16 rank_b;
};
static_assert(sizeof(Leave) == 72);

// ------------------------------------------------------------------------------ membership, down
struct Challenge {
  Header header;
  U64 nonce;  // the worker's, echoed
  U64 incarnation;
  U64 serial;
  // Shows that the JOIN comes from the address to which this went.
  std::array<std::uint8_t, 16> challenge{};
  U16 lanes;  // of the daemon, each with its own UDP port
  std::array<std::uint8_t, 6> reserved{};
  std::array<U16, limits::kMaxLanes> source_ports{};  // from which to send to each lane; 0: any
};
static_assert(sizeof(Challenge) == 80 && sizeof(Challenge) + kTrailerBytes <= kHandshakeBytes);

struct Pending {
  Header header;
  U64 nonce;
  U64 serial;
  std::array<std::uint8_t, 32> absent{};  // bit per rank that has not joined
};
static_assert(8 * sizeof(Pending::absent) == limits::kMaxRanks);
static_assert(sizeof(Pending) == 64 && sizeof(Pending) + kTrailerBytes <= kHandshakeBytes);

struct Welcome {
  Header header;
  U64 nonce;
  U64 incarnation;
  U64 token;
  U64 generation;
  U64 epoch;
  U64 delivery_token;
  U16 streams;
  U16 block_elements;
  U16 payload_bytes;  // the smallest offered
  std::uint8_t history = 0;
  std::uint8_t flags = 0;  // kWelcome...
  U16 lanes;               // of each daemon: each address has so many shards
  U16 keep_alive_ms;       // how often a KEEPALIVE is expected
  U32 group;               // multicast address to which results may be sent; 0: none
  std::array<std::uint8_t, kBuildBytes> build{};  // of the aggregator, for people
};
static_assert(sizeof(Welcome) == 104 && sizeof(Welcome) + kTrailerBytes <= kHandshakeBytes);
inline constexpr std::uint8_t kWelcomeResume = 1;
inline constexpr std::uint8_t kWelcomeAuthenticate = 2;  // packets of the session carry trailers
inline constexpr std::uint8_t kWelcomeEncrypt = 4;       // values and their places are encrypted
inline constexpr std::uint8_t kWelcomeHosts = 8;         // some ranks are on the same host

struct Refused {
  Header header;
  U64 token;        // of the KEEPALIVE that it answers
  U64 incarnation;  // of the aggregator, which does not know the token
  U64 number;       // of that KEEPALIVE
  U16 shard;        // the aggregator's
  U16 udp_port;     // at which this lane listens
  U32 ipv4;         // of the port through which the KEEPALIVE came
};
static_assert(sizeof(Refused) == 48 && sizeof(Refused) + kTrailerBytes <= sizeof(KeepAlive));

/// Why a job ended. The reason determines the meaning of `field`, ranks and values.
enum class AbortReason : std::uint16_t {
  kRankSilent = 1,         // rank_a; value_a: milliseconds
  kRankDisconnected = 2,   // rank_a: its local port was removed; value_a: ms since its last packet
  kRankRestarted = 3,      // rank_a joined again
  kRankLeft = 4,           // rank_a left while others still work; value_a: Departure
  kRankAborted = 5,        // rank_a ended the job; value_a: Departure
  kOpMismatch = 6,         // field, rank_a, value_a, rank_b, value_b, op
  kJoinMismatch = 7,       // field, rank_a, value_a, rank_b, value_b
  kAbsent = 8,             // rank_a: the first that did not come; value_a: how many
  kCannotResume = 9,       // the aggregator restarted and the job had made progress
  kGenerationOver = 10,    // the generation of the worker has ended
  kDuplicateRank = 11,     // another living process is rank_a
  kRefusedSetting = 12,    // field, value_a: asked, value_b: limit
  kShuttingDown = 13,      // the aggregator ends
  kTooManyJobs = 14,       // value_b: limit
  kNotAuthenticated = 15,  // rank_a's join does not prove the job's secret
  kAggregatorLost = 16,    // value_a: the shard; rank_a: the rank that noticed
  kNoMemory = 17,          // rank_a has too few packet buffers for the job
  // Op, at rank_a; value_a: ms; rank_b: the first of value_b ranks that it waited for.
  kOpTimedOut = 18,
  kMessageTimedOut = 19,  // op: its number among messages from rank_a to rank_b; value_a: ms
  kKicked = 20,           // an operator of the aggregator ended the job
};
inline constexpr std::uint16_t kLastAbortReason = 20;

/// What ranks may disagree about, or what an aggregator may refuse.
enum class Field : std::uint16_t {
  kNone = 0,
  kWorldSize = 1,
  kRank = 2,
  kStreams = 3,
  kBlockElements = 4,
  kHistory = 5,
  kShard = 6,
  kShards = 7,
  kOpNumber = 8,
  kCollective = 9,
  kOpType = 10,
  kReduction = 11,
  kRoot = 12,
  kTag = 13,
  kElementCount = 14,
  kWireType = 15,
  kMemory = 16,
  kPayloadBytes = 17,
  kLayout = 18,
  kSharedMemory = 19,
  kKeyBound = 20,
  kRowElements = 21,
  kThreshold = 22,
  kRoundingSeed = 23,
};
inline constexpr std::uint16_t kLastField = 23;

struct Abort {
  Header header;
  U64 generation;  // 0: none
  U64 nonce;       // of the join it answers; 0: none
  U64 op;
  U64 value_a;
  U64 value_b;
  U16 reason;
  U16 field;
  U16 rank_a;
  U16 rank_b;
};
static_assert(sizeof(Abort) == 64 && sizeof(Abort) + kTrailerBytes <= sizeof(KeepAlive));

struct Left {
  Header header;
  U64 token;
};
static_assert(sizeof(Left) == 24 && sizeof(Left) + kTrailerBytes <= sizeof(Leave));

struct KeepAliveAck {
  Header header;
  U64 epoch;
  U64 number;
  U64 delivery_token;
};
static_assert(sizeof(KeepAliveAck) == 40 && sizeof(KeepAliveAck) <= sizeof(KeepAlive));

/// Sent only to the group. A rank that reports its number in a KEEPALIVE receives the group's
/// packets.
struct Beacon {
  Header header;
  U64 epoch;
  U64 number;  // increases with every one sent in the epoch, from 1
  U64 delivery_token;
};
static_assert(sizeof(Beacon) == 40);
// A rank that lacks more of the last ones gets no results by the group.
inline constexpr std::uint64_t kBeaconsMissed = 3;
inline constexpr std::uint64_t kBeaconsTold = 8 * sizeof(KeepAlive::beacons_received);

/// Answers, without a proof, a HELLO of a version that the aggregator does not know. These fields
/// are the same in every version, so every worker can read them, whatever `Header.version` is. No
/// version changes the fields of a HELLO before the rank.
struct Versions {
  Header header;  // of the highest version
  U64 nonce;      // of the HELLO
  std::uint8_t lowest = 0;
  std::uint8_t highest = 0;  // all versions between these are supported, too
  std::array<std::uint8_t, 6> reserved{};
};
static_assert(sizeof(Versions) == 32 && sizeof(Versions) <= sizeof(Hello));
static_assert(offsetof(Versions, nonce) == offsetof(Hello, nonce));

// ------------------------------------------------------------------------------ streams, up
struct Data {  // then Descriptor if opening; Column[columns]; the blocks present, in column order
  MemberHeader member;
  U64 round;  // also: every result below it was applied
  U64 op;
  Shape shape;
  std::uint8_t flags = 0;  // kDataOpening, kDataAsk
  std::uint8_t reserved = 0;
  U16 window;  // how many of the shard's streams the sender permits; 0: it does not say
};
static_assert(sizeof(Data) == 64);
inline constexpr std::uint8_t kDataOpening = 1;  // of a round to which all ranks contribute
// Resent after a time-out: answer with STATUS or results.
inline constexpr std::uint8_t kDataAsk = 2;

struct KeyValueData {  // then Descriptor if opening; the run
  Data data;
  U64 horizon;    // the round's first local key: all before it are done
  U64 following;  // the sender's next local key behind the run, or kNoKey
  U32 run_bytes;
  U32 reserved;
};
static_assert(sizeof(KeyValueData) == 88);

/// Begins a run that is not empty: see common/protocol/key_run.hpp.
struct RunHeader {
  static constexpr std::size_t kMostKeys = 0xFFFF, kMostEscapes = 0xFFFF;

  U64 first;  // local key
  U16 keys;
  U16 escapes;             // of the symbols
  std::uint8_t width = 0;  // of a symbol, in bits
  std::array<std::uint8_t, 3> reserved{};
};
static_assert(sizeof(RunHeader) == 16);

struct Ack {
  MemberHeader member;
  U64 position;  // the round whose result is awaited
};
static_assert(sizeof(Ack) == 40);

struct Probe {
  MemberHeader member;
  U64 position;
  U64 have;  // bit i: result position + 1 + i has arrived
};
static_assert(sizeof(Probe) == 48 && 8 * sizeof(Probe::have) >= kMaxHistory);

struct Sync {
  MemberHeader member;
  U64 applied;  // every result below this round, in any epoch
};
static_assert(sizeof(Sync) == 40);

// ------------------------------------------------------------------------------ streams, down
struct Result {  // then Column[columns]; the blocks present, in column order
  DeliveryHeader delivery;
  U64 round;
  U64 op;
  Shape shape;
  U16 completing_rank;  // whose packet was the last: it may measure the round trip
  // This round less the lowest position: earlier results are not needed any more.
  U16 lag;
};
static_assert(sizeof(Result) == 72);

/// The classes of sums that a keyed round does not deliver: at least a half, a quarter and an
/// eighth of the threshold, and less.
inline constexpr std::size_t kRejectedClasses = 4;

struct KeyValueResult {  // then the run
  Result result;
  U64 horizon;  // the round's first local key
  U64 next;     // the next round's first, or kNoKey: the op is done on this stream
  std::array<U32, kRejectedClasses> rejected{};  // keys by magnitude
  U32 run_bytes;
  U32 reserved;
};
static_assert(sizeof(KeyValueResult) == 112);

struct Status {
  DeliveryHeader delivery;
  U64 round;              // running
  std::uint8_t live = 0;  // 0: resynchronising
  std::array<std::uint8_t, 7> reserved{};
  std::array<std::uint8_t, 32> waiting{};  // bit per rank whose packet is missing
};
static_assert(sizeof(Status) == 88 && 8 * sizeof(Status::waiting) == limits::kMaxRanks);

struct Poll {  // delivery.stream: the stream of bit 0
  DeliveryHeader delivery;
  std::array<std::uint8_t, 32> streams{};  // bit i: the i-th of the shard's streams from there
};
static_assert(sizeof(Poll) == 72);
inline constexpr std::size_t kPolledStreams = 8 * sizeof(Poll::streams);

/// The most bytes of a packet with blocks, without columns and blocks.
inline constexpr std::size_t kBlockPacketOverhead =
    sizeof(Data) + sizeof(Descriptor) + sizeof(SessionTrailer);
static_assert(kBlockPacketOverhead >= sizeof(Result) + sizeof(SessionTrailer));
static_assert(kMinPayload >= kBlockPacketOverhead + sizeof(Column) + sizeof(std::uint64_t),
              "the smallest packet holds a block of one element");

}  // namespace sluice::wire
