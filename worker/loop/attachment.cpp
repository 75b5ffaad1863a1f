#include "worker/loop/attachment.hpp"

#include <algorithm>
#include <optional>
#include <variant>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"
#include "common/base/packet_memory.hpp"
#include "common/base/source_ports.hpp"
#include "common/config/address.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/config/choices.hpp"
#include "common/config/pci_device.hpp"
#include "common/net/eal.hpp"
#include "common/net/vhost.hpp"
#include "worker/memory/fork_generation.hpp"

namespace sluice {
namespace {

// All ranks must choose the same daemon, so each gives the daemons of higher precedence time to
// answer.
constexpr std::chrono::milliseconds kStandbyDelay{500};
constexpr std::uint16_t kIpAndUdpBytes = net::kIpv4Bytes + net::kUdpBytes;
// The rule for memory of docs/sizing.md.
constexpr std::size_t kDefaultBuffers =
    limits::kFullCommunicators * defaults::kStreams * (defaults::kHistory + 2);

std::optional<unsigned> first_opened_in;  // fork generation

/// Once a Context was opened, a forked child has no threads of DPDK, and its memory is shared.
void refuse_in_forked_child() {
  if (first_opened_in.value_or(fork_generation()) != fork_generation())
    throw Error(ErrorCode::kUnavailable,
                "this process was forked from one that had opened a Context, and can open none "
                "itself: fork before the first is opened, or start it again (exec, spawn)");
}

/// DPDK can be started only once in a process, so it stays until the process ends.
void start_eal(const net::EalOptions& options) {
  static std::unique_ptr<net::Eal> eal;
  if (eal) return;
  first_opened_in = fork_generation();
  eal = std::make_unique<net::Eal>(options);
}

/// While it lives, DPDK's error lines go into our Error and are not logged as well.
thread_local bool starting = false;
struct Starting {
  Starting() { starting = true; }
  ~Starting() { starting = false; }
};

/// `pci_port` is the device to open, or empty.
net::EalOptions eal_options(const ContextOptions& options, const std::string& pci_port,
                            std::size_t memory_mib, const std::shared_ptr<spdlog::logger>& logger) {
  net::EalOptions eal;
  eal.hugepages = options.hugepages || !pci_port.empty();
  eal.pci = eal.hugepages;
  eal.memory_mib = memory_mib;
  eal.log_level = net::dpdk_level(
      config::parse_choice("log_level", config::kLogLevelChoices, options.log_level));
  // Other devices of the machine are not ours to open.
  if (!pci_port.empty()) eal.extra_args.push_back("--allow=" + pci_port);
  eal.extra_args.insert(eal.extra_args.end(), options.eal_args.begin(), options.eal_args.end());
  eal.log = [logger](LogLevel level, std::string_view line) {
    const bool tells = !starting && level >= LogLevel::kWarn;
    const auto as = tells ? to_spdlog(level) : spdlog::level::debug;
    logger->log(as, "dpdk: {}", line);
  };
  return eal;
}

}  // namespace

Attachment::Attachment(const ContextOptions& options, std::shared_ptr<spdlog::logger> logger,
                       std::uint16_t network_queues)
    : logger_(std::move(logger)), faults_(net::parse_faults(options.faults)) {
  refuse_in_forked_child();
  if (options.aggregators.empty()) {
    first_opened_in = fork_generation();
    return;
  }
  plan(options, network_queues);
  plan_memory(options);
  const Starting errors_say_it_all;
  start_memory(options, logger_);
  payloads_ = std::make_unique<net::BufferPool>(net::unique_socket_name("payloads"), all_buffers_,
                                                payload_bytes_);
  headers_ = std::make_unique<net::BufferPool>(net::unique_socket_name("headers"),
                                               limits::kWorkerHeaderBuffers, 0);
  io_ = std::make_unique<net::DatagramIo>(*payloads_, *headers_);
  io_->listen(kWorkerUdpPort);
  for (std::size_t lane = 0; lane < limits::kMaxLanes; ++lane) io_->listen_to_source_ports(lane);
  io_->inject_faults(faults_);
  if (!options.faults.empty()) logger_->warn("fault injection is on: {}", options.faults);
  links_ = std::make_unique<Links>(planned_, *payloads_, *io_, logger_);
  links_->open(choices(), options.connect_timeout);
}

std::vector<std::unique_ptr<net::DatagramIo>> Attachment::split_queues(std::uint16_t port_id) {
  const auto link = link_of(port_id);
  const net::Port* const port = link ? links_->carrier(*link) : nullptr;
  if (!port) throw Error(ErrorCode::kAggregatorLost, "the link to the aggregator is down");
  io_->remove_port(port_id);
  std::vector<std::unique_ptr<net::DatagramIo>> ios;
  for (std::uint16_t queue = 0; queue < port->queues(); ++queue) {
    ios.push_back(std::make_unique<net::DatagramIo>(*payloads_, *headers_));
    ios.back()->inject_faults(faults_);
    ios.back()->add_port(port->view(queue));
  }
  return ios;
}

/// Starts DPDK's memory, and checks what DPDK needs to open a PCI device later.
void Attachment::start_memory(const ContextOptions& options,
                              const std::shared_ptr<spdlog::logger>& logger) {
  std::string pci_port;
  for (const LinkPlan& link : planned_)
    if (config::is_pci_device(link.port.device)) pci_port = link.port.device;
  try {
    start_eal(eal_options(options, pci_port, memory_mib_, logger));
    if (!pci_port.empty()) config::check_pci_device(pci_port);
  } catch (const Error& error) {
    if (pci_port.empty()) throw;
    throw Error(error.code(), "port '" + pci_port + "': " + error.what());
  }
}

/// Decides which ports there will be, and behind which port each aggregator is.
void Attachment::plan(const ContextOptions& options, std::uint16_t network_queues) {
  for (const std::string& text : options.aggregators) {
    Target target;
    target.name = text;
    for (const auto& address : config::parse_aggregator_addresses("aggregator", text)) {
      const auto* remote = std::get_if<config::UdpAddress>(&address);
      if (remote && options.vlan != net::kNoVlan)
        target.name = text + " in VLAN " + std::to_string(options.vlan);
      target.alternatives.push_back({link_to(address, options, network_queues),
                                     remote ? remote->ipv4 : net::kVhostAggregatorIpv4,
                                     remote ? remote->port : config::kDefaultUdpPort});
    }
    targets_.push_back(std::move(target));
  }
  std::uint16_t smallest_mtu = 0xffff;
  integrity_ = options.integrity == "on";
  for (const LinkPlan& link : planned_) {
    smallest_mtu = std::min(smallest_mtu, link.port.mtu);
    if (!link.directory.empty()) continue;
    integrity_ |= options.integrity == "auto";
    claims_.push_back(config::Claim::on_udp_port(link.port.ipv4, kWorkerUdpPort));
  }
  payload_bytes_ = payload_bytes_of(smallest_mtu);
}

/// The link that leads to an address; it is added if there is none yet.
std::size_t Attachment::link_to(const config::AggregatorAddress& address,
                                const ContextOptions& options, std::uint16_t network_queues) {
  const auto* local = std::get_if<config::VhostDirectory>(&address);
  const std::string directory = local ? local->path : "";
  for (std::size_t i = 0; i < planned_.size(); ++i)
    if (planned_[i].directory == directory) return i;
  net::PortOptions port;
  port.descriptors = local ? limits::kVhostDescriptors : limits::kNetworkDescriptors;
  port.tells = true;
  port.mtu = static_cast<std::uint16_t>(options.mtu != 0 ? options.mtu
                                        : local          ? defaults::kVhostMtu
                                                         : defaults::kNetworkMtu);
  if (local) {
    port.queues = net::lanes_at(directory);  // read again when it is opened
    port.ipv4 = net::kVhostWorkerIpv4;
    port.prefix = net::kVhostPrefix;
  } else {
    if (options.port.empty() || options.address.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  "aggregator " + config::to_string(address) +
                      " is on the network: set ContextOptions::port and "
                      "address, or SLUICE_PORT and SLUICE_ADDRESS");
    const auto own = config::parse_interface_address("address", options.address);
    port.device = options.port;
    port.queues = network_queues;
    port.vlan = options.vlan;
    port.ipv4 = own.ipv4;
    port.prefix = own.prefix;
    port.gateway = own.gateway;
    own_address_ = own;
  }
  planned_.push_back({directory, port});
  return planned_.size() - 1;
}

void Attachment::plan_memory(const ContextOptions& options) {
  const std::size_t buffer = packet_buffer_bytes(payload_bytes_ + kIpAndUdpBytes);
  const std::size_t in_rings = ring_buffers();
  memory_mib_ = options.memory_mib != 0
                    ? options.memory_mib
                    : limits::kWorkerDpdkMib + (((in_rings + kDefaultBuffers) * buffer) >> 20) + 1;
  all_buffers_ =
      (std::max<std::size_t>(memory_mib_, limits::kWorkerDpdkMib + 1) - limits::kWorkerDpdkMib) *
      (std::size_t{1} << 20) / buffer;
  if (all_buffers_ <= in_rings)
    throw Error(ErrorCode::kInvalidArgument,
                "memory_mib is " + std::to_string(memory_mib_) + ", but the rings of " +
                    std::to_string(planned_.size()) + " ports alone take " +
                    std::to_string(memory_mib_for(0)));
  config::check_machine_has(memory_mib_);
}

/// By shard: the links of which one is sufficient.
std::vector<std::vector<std::size_t>> Attachment::choices() const {
  std::vector<std::vector<std::size_t>> all;
  for (const Target& target : targets_) {
    all.emplace_back();
    for (const Alternative& alternative : target.alternatives)
      all.back().push_back(alternative.link);
  }
  return all;
}

std::optional<Endpoint> Attachment::find(std::size_t shard, Time now) {
  Target& target = targets_[shard];
  if (!target.sought) target.sought = now;
  Time from = *target.sought;
  for (Alternative& alternative : target.alternatives) {
    if (now < from) break;
    if (const auto endpoint = reach(alternative, std::nullopt, now)) return endpoint;
    from = after(from, kStandbyDelay);
  }
  return std::nullopt;
}

std::optional<Endpoint> Attachment::locate(std::size_t shard, unsigned attempt, Time now) {
  std::vector<Alternative>& alternatives = targets_[shard].alternatives;
  // Every second attempt may go to the address where an aggregator has answered, so each claimant
  // gets two attempts.
  const std::size_t turn = attempt / alternatives.size() / 2;
  return reach(alternatives[attempt % alternatives.size()],
               attempt > 0 ? std::optional(turn) : std::nullopt, now);
}

std::optional<Endpoint> Attachment::reach(Alternative& alternative, std::optional<std::size_t> turn,
                                          Time now) {
  const net::Port* port = links_->carrier(alternative.link);
  if (!port) return std::nullopt;
  const auto mac = turn ? io_->resolve_again(port->id(), alternative.ipv4, now, *turn)
                        : io_->resolve(port->id(), alternative.ipv4, now);
  if (!mac) return std::nullopt;
  if (port->view(0).off_machine) note(*mac, alternative, now);
  return Endpoint{.port_id = port->id(),
                  .mac = *mac,
                  .ipv4 = alternative.ipv4,
                  .udp_port = alternative.udp_port,
                  .local_udp_port = kWorkerUdpPort,
                  .off_machine = port->view(0).off_machine};
}

/// Addresses beyond the gateway are not asked for by ARP, only the gateway is.
std::string Attachment::why_unreachable(std::size_t shard) const {
  if (!own_address_ || own_address_->gateway == 0) return "";
  for (const Alternative& alternative : targets_[shard].alternatives) {
    if (!planned_[alternative.link].directory.empty() || !links_->carrier(alternative.link) ||
        own_address_->same_network(alternative.ipv4))
      continue;
    return ": gateway " + net::format_ipv4(own_address_->gateway) +
           " does not answer ARP; a router that leads there expected in address " +
           config::to_string(*own_address_);
  }
  return "";
}

std::string Attachment::rival_claims() const {
  std::string text;
  for (const Target& target : targets_)
    for (const Alternative& alternative : target.alternatives) {
      const net::Port* port = links_->carrier(alternative.link);
      if (!port || !port->view(0).off_machine) continue;
      const auto macs = io_->claimants(port->id(), alternative.ipv4);
      if (macs.size() < 2) continue;
      text += "; the way to " + net::format_ipv4(alternative.ipv4) +
              " is claimed by several Ethernet addresses: ";
      for (const net::MacAddress& mac : macs)
        text += (&mac == macs.data() ? "" : ", ") + net::format_mac(mac);
      text += ": two hosts have one address, or ARP is forged";
    }
  return text;
}

/// Another machine may have taken over an address, or may only claim it.
void Attachment::note(const net::MacAddress& mac, Alternative& alternative, Time now) const {
  const auto former = std::exchange(alternative.mac, mac);
  if (!former || former == mac || now < alternative.may_say) return;
  alternative.may_say = after(now, std::chrono::seconds(10));
  logger_->warn(
      "{} is at Ethernet address {} now, not {}: another machine took it over, or two have it, or "
      "ARP is forged",
      net::format_ipv4(alternative.ipv4), net::format_mac(mac), net::format_mac(*former));
}

/// Nothing while the link is down.
std::optional<std::size_t> Attachment::link_of(std::uint16_t port_id) const {
  for (std::size_t i = 0; i < planned_.size(); ++i)
    if (const net::Port* port = links_->carrier(i); port && port->id() == port_id) return i;
  return std::nullopt;
}

/// As planned, or, for an open link, as it is.
std::size_t Attachment::ring_buffers() const {
  std::size_t buffers = 0;
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const std::size_t queues = links_ ? links_->queues(i) : planned_[i].port.queues;
    const bool is_af_xdp = net::is_af_xdp(planned_[i].port.device);
    buffers += queues * (is_af_xdp ? net::kAfXdpBuffers : limits::kWorkerPortBuffers);
  }
  return buffers;
}

std::size_t Attachment::buffers() const {
  return all_buffers_ - std::min(all_buffers_, ring_buffers());
}

std::size_t Attachment::memory_mib_for(std::size_t buffers) const {
  const std::size_t buffer = packet_buffer_bytes(payload_bytes_ + kIpAndUdpBytes);
  return limits::kWorkerDpdkMib + (((ring_buffers() + buffers) * buffer) >> 20) + 1;
}

}  // namespace sluice
