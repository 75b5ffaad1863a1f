// Every bound and every default in one place, each with its reason. What holds between them is
// asserted here, or where the other side is defined. docs/sizing.md tells what they cost.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace sluice::limits {

// ------------------------------------------------------------------------------- datagrams
/// IP packets: from what every IPv4 path carries to what vhost-user takes.
inline constexpr std::uint16_t kMinMtu = 576;
inline constexpr std::uint16_t kMaxMtu = 9698;

/// VLANs: 0 and 4095 of a tag's twelve bits name none (IEEE 802.1Q).
inline constexpr std::uint16_t kMaxVlan = 4094;

/// UDP payloads of these: with the longest IPv4 header there is, and with the one that we write.
inline constexpr std::uint16_t kMinPayload = kMinMtu - 60 - 8;
inline constexpr std::uint16_t kMaxPayload = kMaxMtu - 20 - 8;

// ------------------------------------------------------------------------------------- jobs
/// Who waits for ranks so long says whom for, once: long enough that ranks which start one after
/// the other, or are late once, are no news, and short enough for who sits before a silent
/// terminal.
inline constexpr std::chrono::seconds kSilentWait{3};

/// A rank is a bit of 32 bytes in PENDING and STATUS, and a byte in the ids of jobs that carry
/// messages.
inline constexpr std::uint16_t kMaxRanks = 256;

/// S, over all shards: a window of 9.9 MB a rank in the largest packets, 8 ms of 10 Gbit/s, which
/// is more than a path within a cluster holds.
inline constexpr std::uint16_t kMaxStreams = 1024;

/// Daemons times lanes: shard s mod M serves stream s, so each shard needs a stream at least.
inline constexpr std::uint16_t kMaxShards = 256;
static_assert(kMaxShards <= kMaxStreams);

/// Of a daemon: as many as DPDK's vhost-user ports have queues. So many cores take more packets
/// than 400 Gbit/s bring (docs/performance.md).
inline constexpr std::uint16_t kMaxLanes = 8;
static_assert(kMaxLanes <= kMaxShards);

/// H: a PROBE names the results that are there already as bits of 64. At least the result that is
/// being delivered and the one before it.
inline constexpr std::uint16_t kMinHistory = 2;
inline constexpr std::uint16_t kMaxHistory = 64;

/// W: a rank's next blocks take 4 bytes a column and stream at an aggregator, and in more columns
/// even the largest packet would have blocks of less than 140 bytes.
inline constexpr std::uint8_t kMaxColumns = 64;

/// More would fit no packet, whatever the type of an element.
inline constexpr std::uint16_t kMaxBlockElements = 16384;
static_assert(kMaxBlockElements > kMaxPayload);

/// Rows of a chunk of keys, as long as one fits: a block's bytes at the defaults, so that a union
/// that fills up costs what a dense tensor does.
inline constexpr std::size_t kChunkBytes = 1024;

/// Chunks that a round of pairs sums, times the ranks: for each one looks at every rank's run.
/// Where sums are rejected, a result is never full; this is 3 ms at the most.
inline constexpr std::size_t kRoundCursors = std::size_t{1} << 20;
static_assert(kRoundCursors >= kMaxRanks);

/// A job's name, bytes: log lines and errors quote it.
inline constexpr std::size_t kMaxJobNameBytes = 64;

/// A job's secret, bytes: less can be guessed, and more adds nothing to a key of 32.
inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxSecretBytes = 256;

/// A file of secrets: it is read as a whole, into memory that is wiped. 200 of the longest.
inline constexpr std::size_t kMaxSecretFileBytes = std::size_t{64} << 10;

// ------------------------------------------------------------------------------------ ports
/// Of a process: RTE_MAX_ETHPORTS as Debian builds DPDK.
inline constexpr std::uint32_t kMaxPorts = 32;

/// Ports' ids, for tables by them: eight times what DPDK has unless it is built otherwise.
inline constexpr std::size_t kMaxPortIds = 256;
static_assert(kMaxPorts <= kMaxPortIds);

/// A vhost directory's path, bytes: a socket's path has 107 at most (sockaddr_un), and the name of
/// a worker's socket needs the rest.
inline constexpr std::size_t kMaxVhostDirectory = 75;

/// The path of a Unix socket, bytes (sockaddr_un).
inline constexpr std::size_t kMaxSocketPath = 107;

/// Of each ring of a local worker's port: DPDK's vhost allocates 40 bytes for each, for as many
/// rings as the port has queues. Ours ask for 64 to 512.
inline constexpr std::uint32_t kMaxVhostRing = 1024;

/// Descriptors of this process, of which some are connections to local workers: a connection that
/// gets a higher one is refused. As many as `ulimit -n` is for services, mostly, and a byte each.
inline constexpr std::size_t kMaxVhostDescriptor = std::size_t{1} << 16;

/// Frames that are taken from a port, or offered to it, at once: DPDK's drivers are at their best
/// with so many.
inline constexpr std::size_t kBurst = 32;

/// Frames that wait for one port. A datagram may be answered with a RESULT to every rank, and a
/// burst of datagrams with N times a burst: a port is not received from while there is no room for
/// one more such answer (DatagramIo), so that none is dropped. 16 of them in the largest packets
/// are 32 ms of 10 Gbit/s.
inline constexpr std::size_t kMaxBacklog = 16 * kMaxRanks;
inline constexpr std::size_t kMinBacklog = 2 * kBurst;
static_assert(kMaxBacklog >= kMaxRanks + kBurst, "room for one answer, beside what is offered");

/// Frames that came to other lanes and wait for one: a power of two. A receive ring's worth: where
/// a device spreads frames as it likes, most come so, and a lane takes a burst in each turn.
inline constexpr unsigned kHandOverFrames = 1024;

/// Machines whose Ethernet address a port knows: all ranks of a job, one on each.
inline constexpr std::size_t kMaxNeighbours = kMaxRanks;

// ----------------------------------------------------------------------- what an aggregator keeps
/// Jobs that form or live, as the setting `max-jobs` may say. Most carry messages.
inline constexpr std::uint16_t kMaxJobs = 4096;

/// Jobs for which packet memory is computed: so many may be as large as the settings allow. More of
/// them are small ones, as those of messages between two ranks; what a job may keep is claimed when
/// it forms, whatever its size.
inline constexpr std::uint64_t kFullJobs = 16;

/// Ended jobs whose tombstones are kept, beyond the jobs that live.
inline constexpr std::size_t kMaxEndedJobs = 1024;

/// Tombstones of one job: some lives of the largest.
inline constexpr std::size_t kMaxTombstones = 4 * kMaxRanks;

/// Sources of packets that are counted apart, so that one is not kept out by another's flood.
inline constexpr std::size_t kReplyBuckets = 1024;

/// Ranks that are asked for their positions at once, each of which answers with an ACK per stream:
/// bounds the burst that comes back.
inline constexpr int kPolledAtOnce = 32;

/// Events that wait for the control thread, and those among them that peers cause at will, such as
/// refusals: they must not hide the others.
inline constexpr std::size_t kMaxEvents = 1024;
inline constexpr std::size_t kMaxFrequentEvents = 64;
static_assert(kMaxFrequentEvents <= kMaxEvents / 2);

/// Streams of a job: fewer leave a rank waiting for each round.
inline constexpr std::size_t kFewestStreams = 8;

/// Packet buffers that a stream may keep at its aggregator: results, a contribution of each rank,
/// the result being built and one packet that arrives.
constexpr std::size_t stream_buffers(std::size_t ranks, std::size_t history) {
  return history + ranks + 2;
}

/// Packet buffers for rings and bursts, which no job may keep.
inline constexpr std::uint64_t kVhostPortBuffers = 64;  // a burst each way
static_assert(kVhostPortBuffers >= 2 * kBurst);
inline constexpr std::uint16_t kNetworkPortDescriptors = 1024;  // of each ring
inline constexpr std::uint64_t kNetworkPortBuffers = 2 * kNetworkPortDescriptors;

/// Local workers' contributions are held in one buffer each; of a network port, those of the most
/// ranks that a job can have.
inline constexpr std::uint64_t kHeldOfNetworkPort = kMaxRanks;

/// Headers of shared payloads. A port that takes nothing may hold a backlog of them, so there must
/// be enough for the others even then.
inline constexpr std::size_t kHeaderBuffersPerPort = kMaxBacklog / 2;
inline constexpr std::size_t kMinHeaderBuffers = 16'383;
static_assert(kMinHeaderBuffers >= 2 * kMaxBacklog, "one port's, and as many for the others");

// ---------------------------------------------------------------------------- what a worker keeps
/// Streams of a job that carries messages: enough for two ranks of one machine to be busy all the
/// time.
inline constexpr std::uint16_t kMaxChannelStreams = 8;
inline constexpr std::uint8_t kChannelHistory = 4;

/// Where all pairs of a job's ranks exchange messages, they share what an aggregator has.
inline constexpr std::uint32_t kStreamsOfAllChannels = 1400;

/// Descriptors of each ring of a worker's port. In shared memory few: every buffer of a ring is
/// used in turn, and all should stay in the cache.
inline constexpr std::uint16_t kVhostDescriptors = 64;
inline constexpr std::uint16_t kNetworkDescriptors = 256;

/// Packet buffers of a worker's port: both rings, and what waits between them.
inline constexpr std::size_t kWorkerPortBuffers = 3 * kNetworkDescriptors;

/// Communicators at the aggregator's defaults, for which a worker's memory is computed.
inline constexpr std::size_t kFullCommunicators = 8;

/// Buffers for ARP and other small frames: as DPDK's pools have it, one less than a power of two.
inline constexpr std::size_t kWorkerHeaderBuffers = 255;

/// Blocks of 1 MiB that a job keeps for the results of its next sparse sum.
inline constexpr std::size_t kSpareResultBlocks = 32;

// ----------------------------------------------------------------------- memory and time-outs
/// Packet memory, as settings may say: with less DPDK does not start, and more is a mistake.
inline constexpr std::uint32_t kMinMemoryMib = 16;
inline constexpr std::uint32_t kMaxMemoryMib = 1'048'576;

/// Of it for DPDK itself; a daemon's has room for the headers of results, too: 28 MiB of 32 ports.
inline constexpr std::uint32_t kWorkerDpdkMib = 32;
inline constexpr std::uint32_t kDaemonDpdkMib = 64;
inline constexpr std::uint32_t kFurtherLaneDpdkMib = 32;  // each lane has headers of its own

/// Silence and waiting, as settings may say: on a busy machine a healthy process may not run for
/// tens of milliseconds, and after ten minutes somebody should look.
inline constexpr std::int64_t kMinTimeoutMs = 100;
inline constexpr std::int64_t kMaxTimeoutMs = 600'000;
inline constexpr std::chrono::milliseconds kMaxOpTimeout{86'400'000};  // a day: others wait for us

}  // namespace sluice::limits

/// What a setting is that nobody gives. sluice.hpp, which is installed, repeats those that are
/// public; tests/unit/environment.cpp compares them.
namespace sluice::defaults {

inline constexpr std::uint16_t kStreams = 64;
inline constexpr std::uint8_t kHistory = 8;
inline constexpr std::uint16_t kBlockElements = 256;
inline constexpr std::uint16_t kVhostMtu = 9000;
inline constexpr std::uint16_t kNetworkMtu = 1500;
inline constexpr std::uint32_t kVhostPorts = limits::kMaxPorts - 1;  // one is left for a network
inline constexpr std::uint16_t kUdpPort = 4747;
/// However many cores there are: so each lane has two streams of a job that gets the fewest, and
/// sums one while ranks take the other's result. More has not been measured.
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

/// Buffers that jobs may keep at an aggregator that serves this machine's workers alone
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
