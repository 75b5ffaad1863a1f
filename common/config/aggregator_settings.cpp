#include "common/config/aggregator_settings.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "common/base/limits.hpp"

namespace sluice::config {
namespace {

using Config = AggregatorConfig;
using Value = config::Value<Config>;

constexpr std::int32_t kLastCore = 1023;
constexpr IntegerRange kMtus{limits::kMinMtu, limits::kMaxMtu};
constexpr IntegerRange kTimeouts{limits::kMinTimeoutMs, limits::kMaxTimeoutMs};
constexpr IntegerRange kTimeoutsOrNone{0, limits::kMaxTimeoutMs};

Value interface_addresses(std::vector<InterfaceAddress> Config::*member) {
  return {.allowed = "IPV4/PREFIX[@GATEWAY]",
          .range = {},
          .is_list = true,
          .assign =
              [=](Config& config, std::string_view name, std::string_view text) {
                for (const std::string& part : split(text))
                  (config.*member).push_back(parse_interface_address(name, part));
              },
          .show =
              [=](const Config& config) {
                std::vector<std::string> shown;
                for (const InterfaceAddress& address : config.*member)
                  shown.push_back(to_string(address));
                return shown;
              }};
}

Value multicast_groups(GroupRange Config::*member) {
  return {.allowed = "IPV4/PREFIX of multicast groups",
          .range = {},
          .is_list = false,
          .assign = [=](Config& config, std::string_view name,
                        std::string_view text) { config.*member = parse_groups(name, text); },
          .show =
              [=](const Config& config) {
                const std::string shown = to_string(config.*member);
                return shown.empty() ? std::vector<std::string>() : std::vector{shown};
              }};
}

Value cores(std::vector<std::int32_t> Config::*member) {
  return {.allowed = "0..1023",
          .range = {},
          .is_list = true,
          .assign =
              [=](Config& config, std::string_view name, std::string_view text) {
                for (const std::string& part : split(text)) {
                  std::int32_t core = -1;
                  const auto [end, error] =
                      std::from_chars(part.data(), part.data() + part.size(), core);
                  if (error != std::errc() || end != part.data() + part.size() || core < 0 ||
                      core > kLastCore)
                    throw must_be(name, "0..1023", part);
                  (config.*member).push_back(core);
                }
              },
          .show =
              [=](const Config& config) {
                std::vector<std::string> shown;
                for (const std::int32_t core : config.*member)
                  shown.push_back(std::to_string(core));
                return shown;
              }};
}

void check_listen_address(std::string_view name, std::string_view text) {
  if (!text.empty()) parse_listen_address(name, text);
}

void check_control_socket(std::string_view name, std::string_view text) {
  if (text.size() > limits::kMaxSocketPath)
    throw must_be(name, "a path of at most " + std::to_string(limits::kMaxSocketPath) + " bytes",
                  text);
}

void check_file_prefix(std::string_view name, std::string_view text) {
  const auto is_safe = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
  if (text.size() > 32 || !std::all_of(text.begin(), text.end(), is_safe))
    throw must_be(name, "at most 32 letters, digits, - and _", text);
}

void check_vhost_dir(std::string_view name, std::string_view text) {
  if (text.size() > limits::kMaxVhostDirectory)
    throw must_be(
        name, "a path of at most " + std::to_string(limits::kMaxVhostDirectory) + " bytes", text);
}

/// A directory that may be named below $XDG_RUNTIME_DIR, where every user has a place for sockets:
/// so that one configuration file serves all users.
Value vhost_directory() {
  constexpr std::string_view kRuntime = "$XDG_RUNTIME_DIR/";
  Value value = text(&Config::vhost_dir, "directory", check_vhost_dir);
  value.assign = [=, plain = value.assign](Config& config, std::string_view name,
                                           std::string_view given) {
    if (!given.starts_with(kRuntime)) return plain(config, name, given);
    const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
    if (runtime == nullptr || *runtime == '\0')
      throw must_be(name, "a path, for XDG_RUNTIME_DIR is not set", given);
    given.remove_prefix(kRuntime.size() - 1);
    plain(config, name, runtime + std::string(given));
  };
  return value;
}

std::vector<AggregatorSetting> make_settings() {
  const std::string local = "Local workers (vhost-user)";
  const std::string network = "Network ports";
  const std::string jobs = "Jobs";
  const std::string trust = "Trust";
  const std::string times = "Time-outs";
  const std::string machine = "Processor, memory and EAL";
  const std::string log = "Log and statistics";
  constexpr bool kReloadable = true;
  return {
      {local, "vhost-dir", "", vhost_directory(),
       "Serve the workers of this machine that put a socket into this directory. It may begin with"
       " $XDG_RUNTIME_DIR/."},
      {local, "vhost-max-ports", "ports", integer(&Config::vhost_max_ports, {1, limits::kMaxPorts}),
       "Most local workers at a time; a process has 32 ports in all."},
      {local, "mtu", "bytes", integer(&Config::mtu, kMtus),
       "Largest IP packet to and from local workers."},

      {network, "port", "", list(&Config::ports, "DPDK device string"),
       "Serve workers through this device, for instance net_af_packet0,iface=veth0 or 0000:3b:00.0."
       " Repeatable."},
      {network, "address", "", interface_addresses(&Config::addresses),
       "Address of a port, for instance 10.0.0.9/24, or 10.0.0.9/24@10.0.0.1 with the gateway to"
       " workers of other networks: one per port, in the order of the ports. Repeatable."},
      {network, "port-mtu", "bytes", integer(&Config::port_mtu, kMtus),
       "Largest IP packet on network ports."},
      {network, "port-vlan", "", integer(&Config::port_vlan, {0, limits::kMaxVlan}),
       "VLAN of all frames on network ports: they have its 802.1Q tag, and others are dropped; 0:"
       " none, and what has a tag is dropped."},
      {network, "udp-port", "", integer(&Config::udp_port, {1, 65535}),
       "UDP port on which workers join; further lanes have the next ones."},
      {network, "udp-checksum", "", choice(&Config::udp_checksum, kUdpChecksumChoices),
       "UDP checksums on network ports; auto: where the device computes them or a kernel reads"
       " them."},
      {network, "multicast-groups", "", multicast_groups(&Config::multicast_groups),
       "Send results that most workers want by multicast, once to all that receive it: job j has "
       "group "
       "j"
       " modulo the number of these groups, for instance of 239.255.74.0/24; if none, to each"
       " worker."},

      {jobs, "streams", "streams", integer(&Config::streams, {1, limits::kMaxStreams}),
       "Streams of a job over all shards, unless the job asks for a number."},
      {jobs, "history", "results",
       integer(&Config::history, {limits::kMinHistory, limits::kMaxHistory, {}, true}),
       "Results kept per stream, unless the job asks for a number."},
      {jobs, "max-jobs", "jobs", integer(&Config::max_jobs, {1, limits::kMaxJobs}),
       "Most jobs at a time.", kReloadable},
      {jobs, "job-memory-mib", "MiB", integer(&Config::job_memory_mib, {1, limits::kMaxMemoryMib}),
       "Quota of packet memory of one job."},
      {jobs, "shard", "", integer(&Config::shard, {0, limits::kMaxShards - 1}),
       "Index of this aggregator among the shards."},
      {jobs, "shards", "aggregators", integer(&Config::shards, {1, limits::kMaxShards}),
       "Aggregators that share the streams of every job."},
      {jobs, "lanes", "lanes", integer(&Config::lanes_wanted, {0, limits::kMaxLanes}),
       "Poll loops that share this aggregator's streams, each for a core of its own: lane l has"
       " queue l of every port and UDP port udp-port + l. All aggregators of a job have as many. 0:"
       " one for each core of cpu; else, of one aggregator of local workers alone, a quarter of"
       " the cores that it may use, 1 to 4; else 1."},

      {trust, "secret-file", "", text(&Config::secret_file, "file"),
       "Only who proves a job's secret may join it. Lines of this file: JOB SECRET, with the job's"
       " id or name, or * SECRET for all other jobs; a secret has 16..256 bytes without blanks, and"
       " only the owner may read the file. The variable SLUICE_AGGREGATOR_SECRET, instead, is the "
       "secret of all jobs.",
       kReloadable},
      {trust, "authenticate-packets", "", on_off(&Config::authenticate_packets),
       "Every packet proves the secret, against who reads and writes on the path; else only joining"
       " does."},
      {trust, "encrypt-packets", "", on_off(&Config::encrypt_packets),
       "Values, and which blocks or keys they are of, are encrypted, against who reads on the path;"
       " packets are authenticated, too."},
      {trust, "integrity", "", choice(&Config::integrity, kIntegrityChoices),
       "A CRC32C in every packet; auto: if there is a network port."},
      {trust, "reply-rate-limit", "answers/s", integer(&Config::reply_rate_limit, {1, 1'000'000}),
       "Most answers to packets of one source that prove nothing.", kReloadable},

      {times, "liveness-timeout-ms", "ms", integer(&Config::liveness_timeout, kTimeouts),
       "Silence after which a worker is lost."},
      {times, "formation-timeout-ms", "ms", integer(&Config::formation_timeout, kTimeouts),
       "Time for all workers of a job to join, from the first one."},
      {times, "drain-timeout-ms", "ms", integer(&Config::drain_timeout, kTimeoutsOrNone),
       "After SIGTERM or SIGINT, time for jobs to leave before their ranks are told to go on at the"
       " next aggregator; 0: they are told at once.",
       kReloadable},
      {times, "straggler-warning-ms", "ms", integer(&Config::straggler_warning, kTimeoutsOrNone),
       "Wait for a rank's contribution after which the log names the rank; 0: never.", kReloadable},

      {machine, "idle", "", choice(&Config::idle, kIdleChoices),
       "What the poll loop does when idle: keep its core, yield it, or sleep ever longer."},
      {machine, "cpu", "", cores(&Config::cpu),
       "Core to pin a poll loop to, one per lane, in their order; if none, they are not pinned."
       " Repeatable."},
      {machine, "memory-mib", "MiB",
       integer(&Config::memory_mib, {limits::kDaemonDpdkMib + 1, limits::kMaxMemoryMib, 0}),
       "Packet memory; 0: computed from max-jobs (up to 16), streams, shards, lanes, history, MTUs "
       "and ports."},
      {machine, "hugepages", "", on_off(&Config::hugepages), "Use the machine's hugepages."},
      {machine, "pci", "", on_off(&Config::pci), "Let DPDK look for PCI devices."},
      {machine, "file-prefix", "", text(&Config::file_prefix, "name", check_file_prefix),
       "Name of DPDK's run-time directory, distinct per process; if none, one is made."},
      {machine, "eal-args", "", list(&Config::eal_args, "EAL arguments"),
       "Further arguments of DPDK's EAL; those after -- are appended. Repeatable."},

      {log, "log-level", "", choice(&Config::log_level, kLogLevelChoices), "Least level to log.",
       kReloadable},
      {log, "log-file", "", text(&Config::log_file, "file"),
       "Append the log to this file; if none, it goes to standard error."},
      {log, "log-format", "", choice(&Config::log_format, kLogFormatChoices),
       "Lines of text, JSON objects, one a line, or entries of systemd's journal: the last two "
       "carry "
       "a line's facts as fields."},
      {log, "log-rate-limit", "lines/s", integer(&Config::log_rate_limit, {0, 1'000'000}),
       "Most lines per second of each cause, of those that peers can cause; 0: no limit.",
       kReloadable},
      {log, "stats-interval-s", "s", integer(&Config::stats_interval, {0, 86'400}),
       "Log counters that have moved, and rates, this often; 0: only at exit.", kReloadable},
      {log, "metrics-listen", "",
       text(&Config::metrics_listen, "[IPV4:]PORT", check_listen_address),
       "Serve metrics for Prometheus at http://IPV4:PORT/metrics, and a page for people at /, to "
       "whoever can reach this address; without IPV4 to this machine alone (127.0.0.1)."},
      {log, "telemetry", "", on_off(&Config::telemetry), "Serve DPDK's telemetry socket."},
      {log, "control-socket", "", text(&Config::control_socket, "path", check_control_socket),
       "Take commands of sluice-ctl at this Unix socket; if none, none are taken."},
      {log, "control-access", "", choice(&Config::control_access, kControlAccessChoices),
       "Who may give commands beside root: the daemon's user, or the socket's group too."},

      {"For tests", "faults", "", text(&Config::faults, "faults"),
       "Faults that are injected into ports."},
  };
}

}  // namespace

const std::vector<AggregatorSetting>& aggregator_settings() {
  static const std::vector<AggregatorSetting> settings = make_settings();
  return settings;
}

std::string range_and_default(const AggregatorSetting& setting) {
  static const AggregatorConfig defaults;
  const std::string value = join(setting.value.show(defaults), " ");
  return "[" + setting.value.allowed + (setting.unit.empty() ? "" : " " + setting.unit) +
         ", default " + (value.empty() ? "none" : value) +
         (setting.reloadable ? ", reloadable]" : "]");
}

std::string variable_of(std::string_view name) {
  std::string variable = "SLUICE_AGGREGATOR_";
  for (const unsigned char c : name)
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return variable;
}

}  // namespace sluice::config
