// The settings of sluice-aggregator: parsed and validated once, const from then on.
//
// A setting comes from a flag (--udp-port 4748), else from the environment
// (SLUICE_AGGREGATOR_UDP_PORT), else from the file named by --config (udp-port = 4748), else it has
// the default written here. Lists are repeated in the file and as flags, and separated by blanks
// anywhere; the place that wins gives the whole list. aggregator_settings.cpp has their ranges.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/limits.hpp"
#include "common/base/multicast_address.hpp"
#include "common/config/address.hpp"
#include "common/config/choices.hpp"
#include "common/config/cores.hpp"
#include "common/config/environment.hpp"
#include "common/config/secrets.hpp"

namespace sluice::config {

struct AggregatorConfig {
  // Local workers.
  std::string vhost_dir;  ///< empty: none; the daemon creates a missing last component
  std::uint32_t vhost_max_ports = defaults::kVhostPorts;
  std::uint16_t mtu = defaults::kVhostMtu;  ///< of vhost ports, bytes of IP packet

  // Network ports: addresses[i] is that of ports[i].
  std::vector<std::string> ports;
  std::vector<InterfaceAddress> addresses;
  std::uint16_t port_mtu = defaults::kNetworkMtu;
  std::uint16_t port_vlan = 0;  ///< 0: none, frames have no tag
  std::uint16_t udp_port = kDefaultUdpPort;
  UdpChecksum udp_checksum = UdpChecksum::kAuto;
  GroupRange multicast_groups;  ///< count 0: none

  // Jobs.
  std::uint16_t streams = defaults::kStreams;
  std::uint8_t history = defaults::kHistory;
  std::uint16_t max_jobs = 1024;
  std::uint32_t job_memory_mib = 64;
  std::uint32_t memory_mib = 0;  ///< 0: see packet_memory_mib()
  std::uint16_t shard = 0;
  std::uint16_t shards = 1;
  std::uint16_t lanes_wanted = 0;  ///< the setting `lanes`; 0: see count_lanes()

  // Trust. The secrets themselves are in a SecretStore.
  std::string secret_file;  ///< empty: none
  bool authenticate_packets = false;
  bool encrypt_packets = false;
  Integrity integrity = Integrity::kAuto;
  std::uint32_t reply_rate_limit = defaults::kReplyRateLimit;

  // Time-outs.
  std::chrono::milliseconds liveness_timeout = defaults::kLivenessTimeout;
  std::chrono::milliseconds formation_timeout = defaults::kFormationTimeout;
  std::chrono::milliseconds drain_timeout{0};
  std::chrono::milliseconds straggler_warning = defaults::kStragglerWarning;  ///< 0: off

  // Processor and EAL.
  IdleStrategy idle = IdleStrategy::kBackOff;
  std::vector<std::int32_t> cpu;  ///< by lane; empty: not pinned
  bool hugepages = false;
  bool pci = false;
  std::string file_prefix;  ///< empty: the daemon makes one from its process id
  std::vector<std::string> eal_args;

  // Log and statistics.
  LogLevel log_level = LogLevel::kInfo;
  std::string log_file;  ///< empty: standard error
  LogFormat log_format = LogFormat::kText;
  std::uint32_t log_rate_limit = 10;
  std::chrono::seconds stats_interval{0};  ///< 0: only at exit
  std::string metrics_listen;              ///< empty: metrics are not served
  bool telemetry = true;
  std::string control_socket;  ///< path; empty: no commands are taken
  ControlAccess control_access = ControlAccess::kOwner;

  std::string faults;  ///< for tests: what to do to packets; empty: nothing

  // What follows from the settings and the machine when they are parsed.
  Cores cores;
  std::uint16_t lanes = 1;
  std::string why_lanes;
};

/// Whether packets carry a CRC32C, and packets without one are dropped.
bool computes_integrity(const AggregatorConfig& config);

/// The part of the packet memory that DPDK itself and the headers of all lanes take.
std::uint32_t dpdk_memory_mib(const AggregatorConfig& config);

/// `memory_mib`, or if that is 0 what the settings can need at once: dpdk_memory_mib(), and
/// buffers of packet_buffer_bytes(the larger MTU), of each lane, for
///   max-jobs * streams-of-a-lane * (history + 2)   kept results, running sum, one under way
///   streams-of-a-lane * (vhost-max-ports + 256 * ports)    contributions ahead of their turn
///   64 * vhost-max-ports + 2048 * ports                   bursts and rings
///   1024 * (lanes - 1), if there are ports                handed over to other lanes
/// where vhost-max-ports counts only with vhost-dir set, and streams-of-a-lane is
/// ceil(streams / (shards * lanes)).
std::uint32_t packet_memory_mib(const AggregatorConfig& config);

/// That of one job, which `memory_mib` must not be less than.
std::uint32_t least_memory_mib(AggregatorConfig config);

/// The last two lines of that: a lane's buffers that jobs may not keep.
std::uint64_t ring_buffers(const AggregatorConfig& config);

/// Throws kUnavailable if the machine's memory is smaller than that: DPDK does not survive it.
void check_machine_has(std::uint64_t packet_memory_mib);

struct ParseOutcome {
  enum class Action { kRun, kHelp, kVersion, kPrint, kCheck };
  Action action = Action::kRun;
  AggregatorConfig config;  ///< for kRun and kCheck; for kPrint its values may not fit together
  SecretStore secrets;      ///< for kRun and kCheck
  std::string text;         ///< what to print, for all but kRun
  std::vector<std::string> warnings;  ///< for kRun: lines for the log
};

/// Throws kInvalidArgument with one line that names the setting, its value, where that came from
/// and what is allowed. `argv` is main's. --help and --version win over every other error but a
/// malformed command line.
ParseOutcome parse_aggregator(
    int argc, const char* const* argv, const Environment& environment = process_environment,
    const std::vector<std::string>& variable_names = process_variable_names(),
    const Cores& cores = usable_cores());

}  // namespace sluice::config
