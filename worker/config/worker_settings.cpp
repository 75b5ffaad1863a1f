// The worker's settings from environment variables. The tables below list all of them;
// docs/configuration.md is made from these. An empty variable counts as unset.
#include "worker/config/worker_settings.hpp"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <utility>

#include "common/base/ids.hpp"
#include "common/base/limits.hpp"
#include "common/config/address.hpp"
#include "common/config/choices.hpp"
#include "common/config/environment.hpp"
#include "common/config/job_name.hpp"
#include "common/config/log.hpp"
#include "common/config/nearest_name.hpp"
#include "common/config/secrets.hpp"
#include "common/config/setting.hpp"
#include "common/config/variable_names.hpp"
#include "common/net/fault_plan.hpp"

namespace sluice {
namespace {

using namespace config;

template <class Target>
struct Row {
  const char* variable;
  const char* field;
  const char* unit;  ///< "ms", or empty
  Value<Target> value;
  const char* help;
};

/// The name is part of the name of a socket.
void check_host_name(std::string_view name, std::string_view text) {
  constexpr std::size_t kMost = 32;
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  };
  if (text.size() > kMost || !std::all_of(text.begin(), text.end(), fits))
    throw must_be(std::string(name), "a name of 1..32 letters, digits, '.', '_' and '-'",
                  std::string(text));
}

const std::vector<Row<ContextOptions>>& context_rows() {
  using O = ContextOptions;
  static const std::vector<Row<O>> rows{
      {"SLUICE_AGGREGATORS", "ContextOptions::aggregators", "",
       list(&O::aggregators, "addresses", ',', parse_aggregator_addresses),
       "vhost:DIRECTORY or IPV4[:PORT] of each aggregator, separated by commas, in the order of"
       " their shards and the same on all ranks. Standbys of a shard follow after |. None: all "
       "ranks"
       " are on one host."},
      {"SLUICE_HOST", "ContextOptions::host", "",
       text(&O::host, "name of 1..32 letters, digits, '.', '_' and '-'", check_host_name),
       "What host this is, for ranks that sum in memory which they share; empty: this machine."},
      {"SLUICE_HOST_LEVEL", "ContextOptions::host_level", "", on_off(&O::host_level),
       "Sum among the ranks of this host first; off: the rank is a host of its own, and needs"
       " aggregators."},
      {"SLUICE_HOST_PROCESS_VM", "ContextOptions::host_process_vm", "", on_off(&O::host_process_vm),
       "Let the ranks of one host read and write each other's ordinary tensors by"
       " process_vm_readv; off: copies through memory that they share."},
      {"SLUICE_PORT", "ContextOptions::port", "", text(&O::port, "DPDK device string"),
       "Network port, as net_af_packet0,iface=veth1 or 0000:3b:00.0; not used where every"
       " aggregator is a vhost directory."},
      {"SLUICE_ADDRESS", "ContextOptions::address", "",
       text(&O::address, "IPV4/PREFIX[@GATEWAY]",
            [](std::string_view name, std::string_view text) {
              if (!text.empty()) parse_interface_address(name, text);
            }),
       "Own address on the network port; the gateway leads to aggregators of other networks."},
      {"SLUICE_CONNECT_TIMEOUT_MS", "ContextOptions::connect_timeout", "ms",
       integer(&O::connect_timeout, {limits::kMinTimeoutMs, limits::kMaxTimeoutMs}),
       "Time for one daemon of each shard to take this process's vhost port."},
      {"SLUICE_MTU", "ContextOptions::mtu", "bytes",
       integer(&O::mtu, {limits::kMinMtu, limits::kMaxMtu, 0}),
       "Largest IP packet; 0: the default of the port, 9000 over vhost, else 1500."},
      {"SLUICE_VLAN", "ContextOptions::vlan", "", integer(&O::vlan, {0, limits::kMaxVlan}),
       "VLAN of the network port: all frames have its 802.1Q tag, others are dropped; 0: none."},
      {"SLUICE_MEMORY_MIB", "ContextOptions::memory_mib", "MiB",
       integer(&O::memory_mib, {limits::kMinMemoryMib, limits::kMaxMemoryMib, 0}),
       "Packet memory; 0: computed (docs/sizing.md)."},
      {"SLUICE_INTEGRITY", "ContextOptions::integrity", "", word(&O::integrity, kIntegrityChoices),
       "A CRC32C in every packet, the same as at the aggregators; auto: if an aggregator is on the"
       " network."},
      {"SLUICE_HUGEPAGES", "ContextOptions::hugepages", "", on_off(&O::hugepages),
       "Use the machine's hugepages; a network port that is a PCI device always does."},
      {"SLUICE_IDLE", "ContextOptions::idle", "", word(&O::idle, kIdleChoices),
       "What the progress thread does when idle: keep its core, yield it, or sleep ever longer."},
      {"SLUICE_LOG", "ContextOptions::log_level", "", word(&O::log_level, kLogLevelChoices),
       "Least level to log, to standard error."},
      {"SLUICE_TIMELINE", "ContextOptions::timeline", "", text(&O::timeline, "file"),
       "Write what ops do and when to this file, for Perfetto: %r in it stands for the rank, %p for"
       " the process id; without either the rank is put before the extension."},
      {"SLUICE_METRICS_LISTEN", "ContextOptions::metrics_listen", "",
       text(&O::metrics_listen, "[IPV4:]PORT[+]",
            [](std::string_view name, std::string_view text) {
              if (!text.empty()) parse_listen_ports(name, text);
            }),
       "Serve metrics for Prometheus at http://IPV4:PORT/metrics to whoever can reach this address;"
       " without IPV4 to this machine alone (127.0.0.1). Port 0: any. With + the first of 256 ports"
       " from this one on that is free, for several ranks of a machine."},
      {"SLUICE_FAULTS", "ContextOptions::faults", "",
       text(&O::faults, "list of faults",
            [](std::string_view name, std::string_view text) { net::parse_faults(text, name); }),
       "Faults that are injected into ports, for tests."},
      {"SLUICE_EAL_ARGS", "ContextOptions::eal_args", "", list(&O::eal_args, "EAL arguments"),
       "Further arguments of DPDK's EAL, separated by blanks."},
  };
  return rows;
}

// Rank and world size are not in the table, as they may come from the launcher. The secret is not
// in it, as nothing that shows settings may show it.
const std::vector<Row<JobOptions>>& job_rows() {
  using O = JobOptions;
  static const std::vector<Row<O>> rows{
      {"SLUICE_JOB",
       "JobOptions::job",
       "",
       {.allowed = kJobForms,
        .range = {},
        .assign =
            [](O& options, std::string_view name, std::string_view text) {
              parse_job(name, text);
              options.job = text;
            },
        .show = [](const O& options) { return std::vector<std::string>{options.job.text()}; }},
       "The job, the same on all ranks: its id at the aggregators, or a name, whose hash is the"
       " id."},
      {"SLUICE_BLOCK_ELEMENTS", "JobOptions::block_elements", "elements",
       integer(&O::block_elements, {1, limits::kMaxBlockElements}),
       "Elements of a block, the same on all ranks."},
      {"SLUICE_STREAMS", "JobOptions::streams", "streams",
       integer(&O::streams, {0, limits::kMaxStreams}),
       "Streams of the job, the same on all ranks; 0: as many as the aggregator offers."},
      {"SLUICE_HISTORY", "JobOptions::history", "results",
       integer(&O::history, {limits::kMinHistory, limits::kMaxHistory, 0, true}),
       "Results that are kept of each stream, the same on all ranks; 0: as the aggregator offers."},
      {"SLUICE_SECRET_FILE", "JobOptions::secret_file", "", text(&O::secret_file, "file"),
       "Its first line is the job's secret; only its owner may read it."},
      {"SLUICE_AUTHENTICATE_PACKETS", "JobOptions::authenticate_packets", "",
       on_off(&O::authenticate_packets),
       "Every packet of the job proves its secret; on for all ranks if one rank or aggregator"
       " demands it."},
      {"SLUICE_ENCRYPT_PACKETS", "JobOptions::encrypt_packets", "", on_off(&O::encrypt_packets),
       "The same, and values, and which blocks or keys they are of, are encrypted."},
      {"SLUICE_JOIN_TIMEOUT_MS", "JobOptions::join_timeout", "ms",
       integer(&O::join_timeout, {1, 3'600'000}), "Time for all ranks to join."},
      {"SLUICE_AGGREGATOR_TIMEOUT_MS", "JobOptions::aggregator_timeout", "ms",
       integer(&O::aggregator_timeout, {limits::kMinTimeoutMs, limits::kMaxTimeoutMs}),
       "Silence after which an aggregator is lost."},
      {"SLUICE_OP_TIMEOUT_MS", "JobOptions::op_timeout", "ms",
       integer(&O::op_timeout, {0, limits::kMaxOpTimeout.count()}),
       "An op that is not done so long after its call ends the job; 0: it may take as long as it"
       " takes."},
      {"SLUICE_RETRANSMIT_TIMEOUT_MIN_US", "JobOptions::retransmit_timeout_min", "us",
       integer(&O::retransmit_timeout_min, {100, 10'000'000}),
       "Floor of the retransmission time-out (RFC 6298)."},
      {"SLUICE_ROUND_TRIP_MAX_US", "JobOptions::round_trip_max", "us",
       integer(&O::round_trip_max, {10, 10'000'000}),
       "While round trips take longer, queues included, fewer streams run."},
  };
  return rows;
}

// Settings that programs may set by name, in addition.
const std::vector<Row<JobOptions>>& named_rows() {
  using O = JobOptions;
  static const std::vector<Row<O>> rows{
      {"SLUICE_RANK", "JobOptions::rank", "", integer(&O::rank, {0, kMaxRanks - 1}),
       "Rank of this process, below the world size; if neither is set, the launcher's."},
      {"SLUICE_WORLD_SIZE", "JobOptions::world_size", "ranks",
       integer(&O::world_size, {1, kMaxRanks}),
       "Ranks of the job; if neither is set, as the launcher (torchrun, Open MPI, PMI, Slurm)"
       " says."},
      {"SLUICE_LOCAL_WORLD_SIZE", "JobOptions::local_world_size", "ranks",
       integer(&O::local_world_size, {0, kMaxRanks}),
       "How many of them are on this host; 0: it is not known. As the launcher says, if it has set"
       " rank and world size."},
      {"SLUICE_SECRET", "JobOptions::secret", "", text(&O::secret, "text"),
       "The job's secret, 16..256 bytes without blanks, instead of a file."},
  };
  return rows;
}

/// SLUICE_CONNECT_TIMEOUT_MS -> connect_timeout_ms.
std::string name_of(std::string_view variable) {
  std::string name(variable.substr(std::string_view("SLUICE_").size()));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

template <class Target>
const Row<Target>* find(const std::vector<Row<Target>>& rows, std::string_view name) {
  for (const Row<Target>& row : rows)
    if (name_of(row.variable) == name) return &row;
  return nullptr;
}

template <class Target>
void assign(const Row<Target>& row, Target& options, std::string_view name,
            const std::string& text) {
  Target changed = options;  // the target does not change if the text is wrong
  if (row.value.clear) row.value.clear(changed);
  row.value.assign(changed, std::string(name), text);
  options = std::move(changed);
}

template <class... Rows>
std::vector<std::string> names_of(const Rows&... rows) {
  std::vector<std::string> names;
  const auto add = [&](const auto& table) {
    for (const auto& row : table) names.push_back(name_of(row.variable));
  };
  (add(rows), ...);
  return names;
}

const Row<JobOptions>* find_job_row(std::string_view name) {
  const auto* const row = find(job_rows(), name);
  return row != nullptr ? row : find(named_rows(), name);
}

[[noreturn]] void refuse_unknown(std::string_view name, const std::vector<std::string>& names) {
  const auto nearest = nearest_name(std::string(name), names);
  throw Error(ErrorCode::kInvalidArgument, "unknown setting '" + std::string(name) + "': " +
                                               (nearest ? "did you mean '" + *nearest + "'?"
                                                        : "expected one of " + join(names, ", ")));
}

template <class Target>
Target read(const std::vector<Row<Target>>& rows) {
  Target options;
  for (const Row<Target>& row : rows)
    if (const auto text = process_environment(row.variable))
      row.value.assign(options, row.variable, *text);
  return options;
}

// A value is valid if reading its text gives the same value.
template <class Target>
void check(const std::vector<Row<Target>>& rows, const Target& options) {
  Target scratch;
  for (const Row<Target>& row : rows)
    for (const std::string& text : row.value.show(options))
      row.value.assign(scratch, row.field, text);
}

template <class Target>
void describe(const std::vector<Row<Target>>& rows, std::vector<VariableDescription>& variables) {
  for (const Row<Target>& row : rows)
    variables.push_back({.name = row.variable,
                         .option = row.field,
                         .allowed = row.value.allowed,
                         .unit = row.unit,
                         .default_value = join(row.value.show({}), " "),
                         .help = row.help});
}

/// Uses the level of SLUICE_LOG, if that is valid.
void warn_once(const std::vector<std::string>& warnings, std::atomic<bool>& warned) {
  if (warnings.empty() || warned.exchange(true)) return;
  LogLevel level = LogLevel::kInfo;
  for (const auto& [choice, word] : kLogLevelChoices)
    if (process_environment("SLUICE_LOG") == word) level = choice;
  const auto logger = make_logger({.level = level});
  for (const std::string& warning : warnings) logger->warn("{}", warning);
}

bool is_on_network(const std::string& aggregator) {
  const auto addresses = parse_aggregator_addresses("aggregator", aggregator);
  return std::any_of(addresses.begin(), addresses.end(), [](const AggregatorAddress& address) {
    return std::holds_alternative<UdpAddress>(address);
  });
}

}  // namespace

JobId::JobId(std::string_view text)
    : number_(parse_job("job", text)), name_(is_job_number(text) ? "" : text) {}

ContextOptions ContextOptions::from_environment() {
  static std::atomic<bool> warned{false};
  warn_once(check_variable_names(), warned);
  return read(context_rows());
}

JobOptions JobOptions::from_environment() {
  static std::atomic<bool> warned{false};
  check_variable_names();
  JobOptions options = read(job_rows());
  if (const auto warning = warning_of_half_placement()) warn_once({*warning}, warned);
  const Placement placement = placement_from(process_environment);
  options.rank = placement.rank;
  options.world_size = placement.world_size;
  options.local_world_size =
      find_local_ranks(process_environment, placement.world_size).value_or(0);
  options.secret = process_environment("SLUICE_SECRET").value_or("");
  return options;
}

bool ContextOptions::has(std::string_view name) {
  return find(context_rows(), name) != nullptr;
}

bool JobOptions::has(std::string_view name) {
  return find_job_row(name) != nullptr;
}

void ContextOptions::set(std::string_view name, const std::string& text) {
  if (const auto* const row = find(context_rows(), name)) return assign(*row, *this, name, text);
  refuse_unknown(name, names_of(context_rows()));
}

void JobOptions::set(std::string_view name, const std::string& text) {
  if (const auto* const row = find_job_row(name)) return assign(*row, *this, name, text);
  refuse_unknown(name, names_of(job_rows(), named_rows()));
}

void assign(Options& options, const std::string& name, const std::string& text) {
  if (ContextOptions::has(name)) return options.context.set(name, text);
  if (JobOptions::has(name)) return options.job.set(name, text);
  refuse_unknown(name, names_of(context_rows(), job_rows(), named_rows()));
}

std::vector<VariableDescription> described_variables() {
  std::vector<VariableDescription> variables;
  describe(context_rows(), variables);
  describe(named_rows(), variables);
  describe(job_rows(), variables);
  return variables;
}

void validate(const ContextOptions& options) {
  check(context_rows(), options);
  if (options.aggregators.empty() && !options.host_level)
    throw Error(ErrorCode::kInvalidArgument,
                "ContextOptions::aggregators (SLUICE_AGGREGATORS) is empty, and host_level "
                "(SLUICE_HOST_LEVEL) is off: name one vhost:DIRECTORY or IPV4[:PORT] per "
                "aggregator, or let the ranks of one host sum among themselves");
  for (const std::string& aggregator : options.aggregators)
    if (is_on_network(aggregator) && (options.port.empty() || options.address.empty()))
      throw Error(ErrorCode::kInvalidArgument,
                  "ContextOptions::" + std::string(options.port.empty() ? "port" : "address") +
                      " (" + (options.port.empty() ? "SLUICE_PORT" : "SLUICE_ADDRESS") +
                      ") is empty: aggregator '" + aggregator +
                      "' is reached through a network port with an address");
}

void validate(const JobOptions& options) {
  check(job_rows(), options);
  static constexpr IntegerRange kWorldSizes{1, kMaxRanks};
  const std::string world_size = std::to_string(options.world_size);
  parse_integer("JobOptions::world_size", kWorldSizes, world_size);
  if (options.rank >= options.world_size)
    throw must_be("JobOptions::rank", "below world_size = " + world_size,
                  std::to_string(options.rank));
  if (!options.secret.empty() || !options.secret_file.empty()) return;
  const auto needs_secret = [](const std::string& row) {
    return Error(ErrorCode::kInvalidArgument,
                 row +
                     " is on, but there is no secret: set JobOptions::secret or secret_file"
                     " (SLUICE_SECRET or SLUICE_SECRET_FILE)");
  };
  if (options.authenticate_packets)
    throw needs_secret("JobOptions::authenticate_packets (SLUICE_AUTHENTICATE_PACKETS)");
  if (options.encrypt_packets)
    throw needs_secret("JobOptions::encrypt_packets (SLUICE_ENCRYPT_PACKETS)");
}

void check_agreement(const ContextOptions& wanted, const ContextOptions& open) {
  const ContextOptions environment = ContextOptions::from_environment(), defaults;
  for (const Row<ContextOptions>& row : context_rows()) {
    const auto in = [&](const auto& options) { return join(row.value.show(options), ", "); };
    const std::string text = in(wanted);
    if (text == in(open) || text == in(environment) || text == in(defaults)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(row.field) + " (" + row.variable + ") is '" + text + "', but '" +
                    in(open) + "' in the Context that this process has open: its first user " +
                    "decides for all");
  }
}

std::shared_ptr<const Secret> secret_of(const JobOptions& options) {
  const auto given = [&](const std::string& name) -> std::optional<std::string> {
    const std::string& text = name == "SLUICE_SECRET" ? options.secret : options.secret_file;
    return text.empty() ? std::nullopt : std::optional(text);
  };
  auto secret = worker_secret(given);
  return secret ? std::make_shared<const Secret>(std::move(*secret)) : nullptr;
}

}  // namespace sluice
