// What the table of settings cannot say of one setting alone.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <sched.h>
#include <unistd.h>

#include "common/base/limits.hpp"
#include "common/config/aggregator_settings.hpp"
#include "common/config/pci_device.hpp"

namespace sluice::config {
namespace {

using Config = AggregatorConfig;
namespace fs = std::filesystem;

// Says of one setting, with its value and origin, what is wrong with it beside the others.
class Complaint {
 public:
  Complaint(const Config& config, const OriginOf& origin_of)
      : config_(config), origin_of_(origin_of) {}

  /// "shard = 3 (flag --shard)".
  std::string quote(const std::string& name) const {
    for (const AggregatorSetting& setting : aggregator_settings())
      if (setting.name == name)
        return name + " = " + join(setting.value.show(config_), " ") + " (" + origin_of_(name) +
               ")";
    return name;
  }

  [[noreturn]] void raise(const std::string& name, const std::string& demand) const {
    throw Error(ErrorCode::kInvalidArgument, quote(name) + ": " + demand);
  }

 private:
  const Config& config_;
  const OriginOf& origin_of_;
};

void check_ports(const Config& config, const Complaint& complaint) {
  if (config.vhost_dir.empty() && config.ports.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "neither vhost-dir nor port is set: set one of them, so that workers can reach the "
                "aggregator");
  if (config.addresses.size() != config.ports.size())
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(config.ports.size()) + " port but " +
                    std::to_string(config.addresses.size()) +
                    " address settings: every port needs one address, in the same order");
  const std::size_t local = config.vhost_dir.empty() ? 0 : config.vhost_max_ports;
  if (local + config.ports.size() > limits::kMaxPorts)
    complaint.raise("vhost-max-ports", "with " + std::to_string(config.ports.size()) +
                                           " port settings the sum must be at most " +
                                           std::to_string(limits::kMaxPorts));
  if (config.multicast_groups.count != 0 && config.ports.empty())
    complaint.raise("multicast-groups", "needs a port: local workers have no network");
  if (config.port_vlan != 0 && config.ports.empty())
    complaint.raise("port-vlan", "needs a port: local workers have no network");
  if (!config.pci && std::any_of(config.ports.begin(), config.ports.end(), is_pci_device))
    complaint.raise("port", "PCI devices need pci = on");
}

void check_shards(const Config& config, const Complaint& complaint) {
  if (config.shard >= config.shards)
    complaint.raise("shard", "must be below " + complaint.quote("shards"));
  if (config.streams < config.shards * config.lanes)
    complaint.raise("streams", "must be at least " + complaint.quote("shards") +
                                   (config.lanes == 1 ? "" : " times " + complaint.quote("lanes")));
  if (config.shards * config.lanes > limits::kMaxShards)
    complaint.raise("lanes", "times " + complaint.quote("shards") + " must be at most " +
                                 std::to_string(limits::kMaxShards));
}

void check_lanes(const Config& config, const Complaint& complaint) {
  const int last_udp_port = config.udp_port + config.lanes - 1;
  if (last_udp_port > 65535)
    complaint.raise("udp-port", "with " + complaint.quote("lanes") + " must be at most " +
                                    std::to_string(65536 - config.lanes));
  if (!udp_ports_fit(config))
    complaint.raise("udp-port", "with vhost-dir and " + complaint.quote("lanes") + " must be " +
                                    std::to_string(kDefaultUdpPort) + ", or differ from it by " +
                                    std::to_string(config.lanes) + " at least");
}

void check_memory(const Config& config, const Complaint& complaint) {
  if (config.memory_mib == 0) return;
  const std::uint32_t least = least_memory_mib(config);
  if (config.memory_mib < least)
    complaint.raise("memory-mib",
                    "one job with these streams, history, MTUs, ports and lanes needs " +
                        std::to_string(least));
}

bool may_run_on(int cpu) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof before, &before);
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<unsigned>(cpu), &only);
  const bool may = sched_setaffinity(0, sizeof only, &only) == 0;
  sched_setaffinity(0, sizeof before, &before);
  return may;
}

void check_cpu(const Config& config, const Complaint& complaint) {
  if (config.cpu.empty()) return;
  if (config.lanes_wanted == 0 && config.cpu.size() > limits::kMaxLanes)
    complaint.raise("cpu", "at most " + std::to_string(limits::kMaxLanes) +
                               " cores expected, one for each lane");
  if (config.cpu.size() != config.lanes)
    complaint.raise("cpu", "one core for each lane expected, and " + complaint.quote("lanes"));
  if (std::all_of(config.cpu.begin(), config.cpu.end(), may_run_on)) return;
  std::string cpus;  // as the kernel lists them: "0-3,8"
  std::getline(std::ifstream("/sys/devices/system/cpu/online"), cpus);
  complaint.raise("cpu", "this process cannot run there; the machine has " + cpus);
}

bool may_create_in(const fs::path& directory) {
  return access(directory.c_str(), W_OK | X_OK) == 0;
}

fs::path parent_of(const std::string& path) {
  return fs::absolute(path).lexically_normal().parent_path();
}

void check_log_file(const Config& config, const Complaint& complaint) {
  if (config.log_file.empty()) return;
  if (config.log_format == LogFormat::kJournald)
    complaint.raise("log-file", "must be empty with " + complaint.quote("log-format") +
                                    ": the log goes to the journal");
  std::error_code ignored;
  const fs::path directory = parent_of(config.log_file);
  if (!fs::is_directory(directory, ignored))
    complaint.raise("log-file", "its directory '" + directory.string() + "' must exist");
  if (fs::is_directory(config.log_file, ignored))
    complaint.raise("log-file", "must be a file, and is a directory");
  const bool writable = fs::exists(config.log_file, ignored)
                            ? access(config.log_file.c_str(), W_OK) == 0
                            : may_create_in(directory);
  if (!writable) complaint.raise("log-file", "must be writable for this user");
}

void check_vhost_directory(const Config& config, const Complaint& complaint) {
  if (config.vhost_dir.empty()) return;
  std::error_code ignored;
  if (!fs::exists(config.vhost_dir, ignored)) {
    const fs::path directory = parent_of(fs::path(config.vhost_dir) / ".");
    const fs::path parent = directory.parent_path();
    if (!fs::is_directory(parent, ignored))
      complaint.raise("vhost-dir", "'" + parent.string() + "' must exist");
    return;
  }
  if (!fs::is_directory(config.vhost_dir, ignored))
    complaint.raise("vhost-dir", "must be a directory");
  if (!may_create_in(config.vhost_dir))
    complaint.raise("vhost-dir", "must be writable for this user");
}

}  // namespace

bool udp_ports_fit(const AggregatorConfig& config) {
  const int distance = std::abs(config.udp_port - kDefaultUdpPort);
  return config.vhost_dir.empty() || distance == 0 || distance >= config.lanes;
}

void check_together(const AggregatorConfig& config, const SecretStore& secrets,
                    const OriginOf& origin_of) {
  const Complaint complaint(config, origin_of);
  check_ports(config, complaint);
  check_shards(config, complaint);
  check_lanes(config, complaint);
  check_memory(config, complaint);
  check_cpu(config, complaint);
  check_vhost_directory(config, complaint);
  check_log_file(config, complaint);
  if (config.authenticate_packets && secrets.empty())
    complaint.raise("authenticate-packets", "needs secret-file or SLUICE_AGGREGATOR_SECRET");
  if (config.encrypt_packets && secrets.empty())
    complaint.raise("encrypt-packets", "needs secret-file or SLUICE_AGGREGATOR_SECRET");
}

}  // namespace sluice::config
