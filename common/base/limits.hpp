// Every limit and every default in one place, each with its reason. Relations between them are
// asserted here, or where the other side is defined. docs/sizing.md says what they cost.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace sluice::limits {

// ------------------------------------------------------------------------------- datagrams
/// IP packets: from the size that every IPv4 path carries to the size that vhost-user accepts.
inline constexpr std::uint16_t kMinMtu = 576;
inline constexpr std::uint16_t kMaxMtu = 9698;

/// VLANs: 0 and 4095 of a tag's twelve bits name none (IEEE 802.1Q).
inline constexpr std::uint16_t kMaxVlan = 4094;

/// UDP payloads of these packets: with the longest possible IPv4 header, and with the one that we
/// write.
inline constexpr std::uint16_t kMinPayload = kMinMtu - 60 - 8;
inline constexpr std::uint16_t kMaxPayload = kMaxMtu - 20 - 8;

// ------------------------------------------------------------------------------------- jobs
/// A process that waits for ranks for this time logs once for which ones. It is long enough for
/// ranks that are started one after the other, or that are late once, and short enough for a person
/// who waits at a terminal.
inline constexpr std::chrono::seconds kSilentWait{3};

/// A rank is a bit of 32 bytes in PENDING and STATUS, and a byte in the ids of channels' jobs.
inline constexpr std::uint16_t kMaxRanks = 256;

/// S, over all shards: the window of a rank is 9.9 MB in the largest packets. That is 8 ms of 10
/// Gbit/s, more than a path within a cluster can hold.
inline constexpr std::uint16_t kMaxStreams = 1024;

/// Daemons times lanes. Shard s mod M serves stream s, so each shard needs at least one stream.
inline constexpr std::uint16_t kMaxShards = 256;
static_assert(kMaxShards <= kMaxStreams);

/// Lanes of a daemon: DPDK's vhost-user ports have as many queues. So many cores process more
/// packets than 400 Gbit/s bring (docs/performance.md).
inline constexpr std::uint16_t kMaxLanes = 8;
static_assert(kMaxLanes <= kMaxShards);

/// H: a PROBE names the results that have arrived as bits of a word of 64. There are at least the
/// result that is being delivered and the one before it.
inline constexpr std::uint16_t kMinHistory = 2;
inline constexpr std::uint16_t kMaxHistory = 64;

/// W: a rank's next blocks take 4 bytes per column and stream at an aggregator. With more columns
/// even the largest packet would have blocks of less than 140 bytes.
inline constexpr std::uint8_t kMaxColumns = 64;

/// A larger block fits into no packet, whatever the type of its elements.
inline constexpr std::uint16_t kMaxBlockElements = 16384;
static_assert(kMaxBlockElements > kMaxPayload);

/// How many bytes of rows a chunk of keys has, at least one row: as many as a block at the
/// defaults, so that a union with all keys costs as much as a dense tensor.
inline constexpr std::size_t kChunkBytes = 1024;

/// Neighbouring keys are on one stream as far as their rows take so many chunks (a power of two),
/// if each stream then has so many such stripes.
inline constexpr std::uint8_t kStripeChunkBits = 2;
inline constexpr std::uint64_t kStripesPerStream = 16;

/// Sums of pairs that a round rejects. Rejected sums take no room, so no result would be full.
inline constexpr std::size_t kMostRejected = 4096;

/// A job's name, bytes: log lines and errors quote it.
inline constexpr std::size_t kMaxJobNameBytes = 64;

/// The bytes of a job's secret: less can be guessed, and more adds nothing to a key of 32 bytes.
inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxSecretBytes = 256;

/// A file of secrets is read as a whole into memory that is wiped. It can have 200 of the longest
/// secrets.
inline constexpr std::size_t kMaxSecretFileBytes = std::size_t{64} << 10;

// ------------------------------------------------------------------------------------ ports
/// Ports of a process: RTE_MAX_ETHPORTS as Debian builds DPDK.
inline constexpr std::uint32_t kMaxPorts = 32;

/// Ids of ports, for tables by id: eight times as many as DPDK has by default.
inline constexpr std::size_t kMaxPortIds = 256;
static_assert(kMaxPorts <= kMaxPortIds);

/// The bytes of a vhost directory's path: the path of a socket has at most 107 (sockaddr_un), and
/// the name of a worker's socket needs the rest.
inline constexpr std::size_t kMaxVhostDirectory = 75;

/// The path of a Unix socket, bytes (sockaddr_un).
inline constexpr std::size_t kMaxSocketPath = 107;

/// Descriptors of each ring of a local worker's port: DPDK's vhost allocates 40 bytes for each, for
/// as many rings as the port has queues. Our workers ask for 64 to 512.
inline constexpr std::uint32_t kMaxVhostRing = 1024;

/// Descriptors of this process, some of which are connections to local workers: a connection with a
/// higher number is refused. A service usually has this `ulimit -n`. Each takes a byte here.
inline constexpr std::size_t kMaxVhostDescriptor = std::size_t{1} << 16;

/// Frames that are taken from a port, or offered to it, at once. DPDK's drivers work best with this
/// number.
inline constexpr std::size_t kBurst = 32;

/// Frames that wait for one port. A datagram may be answered with a RESULT to every rank, and a
/// burst of datagrams with N bursts. A port is not polled while there is no room for one more such
/// answer (DatagramIo), so that none is dropped. 16 answers in the largest packets are 32 ms of 10
/// Gbit/s.
inline constexpr std::size_t kMaxBacklog = 16 * kMaxRanks;
inline constexpr std::size_t kMinBacklog = 2 * kBurst;
static_assert(kMaxBacklog >= kMaxRanks + kBurst, "room for one answer, beside what is offered");

/// Frames that came to other lanes and wait for one; a power of two. It is as many as a receive
/// ring has: if a device spreads frames in its own way, most come like this, and a lane takes a
/// burst in each turn.
inline constexpr unsigned kHandOverFrames = 1024;

/// Machines whose Ethernet address a port knows: the ranks of a job, each on a machine of its own.
inline constexpr std::size_t kMaxNeighbours = kMaxRanks;

// ----------------------------------------------------------------------- what an aggregator keeps
/// Jobs that form or live, the maximum of the setting `max-jobs`. Most of them are channels.
inline constexpr std::uint16_t kMaxJobs = 4096;

/// Jobs for which packet memory is computed: so many can be as large as the settings permit. If
/// there are more, they must be smaller, as channels are. A job of any size reserves what it may
/// keep when it forms.
inline constexpr std::uint64_t kFullJobs = 16;

/// Ended jobs whose tombstones are kept, in addition to the jobs that live.
inline constexpr std::size_t kMaxEndedJobs = 1024;

/// Tombstones of one job: enough for several lives of the largest job.
inline constexpr std::size_t kMaxTombstones = 4 * kMaxRanks;

/// Sources whose packets are counted separately, so that the flood of one does not keep out
/// another.
inline constexpr std::size_t kReplyBuckets = 1024;

/// Ranks that are asked for their positions at once. Each answers with an ACK per stream, so this
/// bounds the burst that comes back.
inline constexpr int kPolledAtOnce = 32;

/// Events that wait for the control thread; and those of them that peers can cause at will, such as
/// refusals, which must not hide the others.
inline constexpr std::size_t kMaxEvents = 1024;
inline constexpr std::size_t kMaxFrequentEvents = 64;
static_assert(kMaxFrequentEvents <= kMaxEvents / 2);

/// Streams of a job: with fewer, a rank waits for each round.
inline constexpr std::size_t kFewestStreams = 8;

/// Packet buffers that a stream may keep at its aggregator: results, a contribution of each rank,
/// the result that is being built, and one packet that arrives.
constexpr std::size_t stream_buffers(std::size_t ranks, std::size_t history) {
  return history + ranks + 2;
}

/// Packet buffers for rings and bursts, which no job may keep.
inline constexpr std::uint64_t kVhostPortBuffers = 64;  // a burst in each direction
static_assert(kVhostPortBuffers >= 2 * kBurst);
inline constexpr std::uint16_t kNetworkPortDescriptors = 1024;  // of each ring
inline constexpr std::uint64_t kNetworkPortBuffers = 2 * kNetworkPortDescriptors;

/// Held contributions of local workers, one buffer each; for a network port, those of the largest
/// possible job.
inline constexpr std::uint64_t kHeldOfNetworkPort = kMaxRanks;

/// Headers of shared payloads. A port that accepts nothing may hold a backlog of them; there must
/// still be enough for the others.
inline constexpr std::size_t kHeaderBuffersPerPort = kMaxBacklog / 2;
inline constexpr std::size_t kMinHeaderBuffers = 16'383;
static_assert(kMinHeaderBuffers >= 2 * kMaxBacklog, "one port's, and as many for the others");

// ---------------------------------------------------------------------------- what a worker keeps
/// Streams of a channel's job: enough to keep two ranks of one machine busy all the time.
inline constexpr std::uint16_t kMaxChannelStreams = 8;
inline constexpr std::uint8_t kChannelHistory = 4;

/// If all pairs of a job's ranks exchange messages, their channels share what an aggregator has.
inline constexpr std::uint32_t kStreamsOfAllChannels = 1400;

/// Descriptors of each ring of a worker's port. In shared memory they are few, as every buffer of a
/// ring is used in turn, and all should stay in the cache.
inline constexpr std::uint16_t kVhostDescriptors = 64;
inline constexpr std::uint16_t kNetworkDescriptors = 256;

/// Packet buffers of a worker's port: both rings, and what waits between them.
inline constexpr std::size_t kWorkerPortBuffers = 3 * kNetworkDescriptors;

/// Communicators at the aggregator's defaults for which a worker's memory is computed.
inline constexpr std::size_t kFullCommunicators = 8;

/// Buffers for ARP and other small frames: one less than a power of two, which fits DPDK's pools
/// best.
inline constexpr std::size_t kWorkerHeaderBuffers = 255;

/// Blocks of 1 MiB that a job keeps for the results of its next sparse sum.
inline constexpr std::size_t kSpareResultBlocks = 32;

// ----------------------------------------------------------------------- memory and time-outs
/// Packet memory, as settings may say: with less, DPDK does not start; more is a mistake.
inline constexpr std::uint32_t kMinMemoryMib = 16;
inline constexpr std::uint32_t kMaxMemoryMib = 1'048'576;

/// The part of it for DPDK itself. A daemon's has room for the headers of results, too: 28 MiB for
/// 32 ports.
inline constexpr std::uint32_t kWorkerDpdkMib = 32;
inline constexpr std::uint32_t kDaemonDpdkMib = 64;
inline constexpr std::uint32_t kFurtherLaneDpdkMib = 32;  // each lane has its own headers

/// Times of silence and waiting, as settings may say. On a busy machine a healthy process may not
/// run for tens of milliseconds; and after ten minutes somebody should look.
inline constexpr std::int64_t kMinTimeoutMs = 100;
inline constexpr std::int64_t kMaxTimeoutMs = 600'000;
// A day, as other ranks wait for us.
inline constexpr std::chrono::milliseconds kMaxOpTimeout{86'400'000};

}  // namespace sluice::limits

/// The values of settings that are not given. sluice.hpp, which is installed, repeats the public
/// ones; tests/unit/environment.cpp compares them.
namespace sluice::defaults {

inline constexpr std::uint16_t kStreams = 64;
inline constexpr std::uint8_t kHistory = 8;
inline constexpr std::uint16_t kBlockElements = 256;
inline constexpr std::uint16_t kVhostMtu = 9000;
inline constexpr std::uint16_t kNetworkMtu = 1500;
inline constexpr std::uint32_t kVhostPorts = limits::kMaxPorts - 1;  // one is left for a network
inline constexpr std::uint16_t kUdpPort = 4747;
/// More lanes are not used, however many cores there are. With this number, each lane has two
/// streams of the smallest job, and sums one while ranks take the result of the other. More were
/// not measured.
inline constexpr std::uint16_t kMostLanes = limits::kFewestStreams / 2;
inline constexpr std::uint32_t kReplyRateLimit = 1000;

inline constexpr std::chrono::milliseconds kLivenessTimeout{5'000};
inline constexpr std::chrono::milliseconds kFormationTimeout{30'000};
inline constexpr std::chrono::milliseconds kStragglerWarning{1'000};
inline constexpr std::chrono::milliseconds kJoinTimeout = kFormationTimeout;
inline constexpr std::chrono::milliseconds kAggregatorTimeout = kLivenessTimeout;
inline constexpr std::chrono::microseconds kRetransmitTimeoutMin{4'000};
inline constexpr std::chrono::microseconds kRoundTripMax{5'000};

static_assert(kHistory >= limits::kMinHistory && kHistory <= limits::kMaxHistory);
static_assert(kMostLanes <= limits::kMaxLanes);
static_assert(kStreams >= limits::kFewestStreams && kStreams <= limits::kMaxStreams);

/// Buffers that jobs may keep at an aggregator that only serves workers of this machine
/// (packet_memory_mib() in aggregator_config.hpp).
inline constexpr std::uint64_t kJobBuffers =
    limits::kFullJobs * kStreams * (kHistory + 2) + kStreams * kVhostPorts;
static_assert(kJobBuffers / 2 >=
                  limits::kFewestStreams * limits::stream_buffers(limits::kMaxRanks, kHistory),
              "a daemon at its defaults can form a job of all ranks, and has room for others");
static_assert(kJobBuffers >=
                  limits::kStreamsOfAllChannels *
                          limits::stream_buffers(2, limits::kChannelHistory) +
                      limits::kFewestStreams * limits::stream_buffers(kVhostPorts, kHistory),
              "and one of its local ranks, beside messages between all of them");

}  // namespace sluice::defaults
