#include "worker/attachment.hpp"

#include <algorithm>
#include <map>
#include <variant>

#include <sluice/error.hpp>

#include "common/base/packet_memory.hpp"
#include "common/config/address.hpp"
#include "common/config/aggregator_config.hpp"
#include "common/net/eal.hpp"
#include "common/net/vhost.hpp"

namespace sluice {
namespace {

constexpr std::uint16_t kWorkerUdpPort = 4748;
constexpr std::uint16_t kVhostMtu = 9000;
constexpr std::uint16_t kNetworkMtu = 1500;
constexpr std::uint16_t kDescriptors = 256;
constexpr std::uint16_t kIpAndUdpBytes = net::kIpv4Bytes + net::kUdpBytes;
// The memory rule of docs/memory.md.
constexpr std::size_t kEalMib = 32;
constexpr std::size_t kBuffersPerPort = 3 * kDescriptors;
constexpr std::size_t kDefaultBuffers = 8 * 64 * (8 + 2);  // eight communicators at the defaults
constexpr std::size_t kHeaderBuffers = 255;                // for ARP and other small frames

/// DPDK can be started once in a process, so it stays until the process ends.
void start_eal(const net::EalOptions& options) {
  static std::unique_ptr<net::Eal> eal;
  if (!eal) eal = std::make_unique<net::Eal>(options);
}

/// While it lives, what DPDK complains of goes into our Error and need not be logged as well.
thread_local bool starting = false;
struct Starting {
  Starting() { starting = true; }
  ~Starting() { starting = false; }
};

net::LogLevel eal_level(const std::string& level) {
  if (level == "error") return net::LogLevel::kError;
  return level == "debug" || level == "trace" ? net::LogLevel::kDebug : net::LogLevel::kWarning;
}

}  // namespace

Attachment::Attachment(const ContextOptions& options, std::shared_ptr<spdlog::logger> logger) {
  plan(options);
  const std::size_t buffer = packet_buffer_bytes(payload_bytes_ + kIpAndUdpBytes);
  const std::size_t ring_buffers = planned_.size() * kBuffersPerPort;
  const std::size_t mib = options.memory_mib != 0
                              ? options.memory_mib
                              : kEalMib + (((ring_buffers + kDefaultBuffers) * buffer) >> 20) + 1;
  const std::size_t all = (std::max(mib, kEalMib + 1) - kEalMib) * (std::size_t{1} << 20) / buffer;
  if (all <= ring_buffers)
    throw Error(ErrorCode::kInvalidArgument,
                "memory_mib is " + std::to_string(mib) + ", but the rings of " +
                    std::to_string(planned_.size()) + " ports alone take " +
                    std::to_string(memory_mib_for(0)));
  buffers_ = all - ring_buffers;
  config::check_machine_has(mib);

  net::EalOptions eal;
  eal.hugepages = options.hugepages;
  eal.pci = options.hugepages;
  eal.memory_mib = mib;
  eal.log_level = eal_level(options.log_level);
  eal.extra_args = options.eal_args;
  eal.log = [logger](net::LogLevel level, std::string_view line) {
    const auto as = starting                           ? spdlog::level::debug
                    : level == net::LogLevel::kError   ? spdlog::level::err
                    : level == net::LogLevel::kWarning ? spdlog::level::warn
                                                       : spdlog::level::debug;
    logger->log(as, "dpdk: {}", line);
  };
  const Starting errors_say_it_all;
  start_eal(eal);
  payloads_ =
      std::make_unique<net::BufferPool>(net::unique_socket_name("payloads"), all, payload_bytes_);
  headers_ =
      std::make_unique<net::BufferPool>(net::unique_socket_name("headers"), kHeaderBuffers, 0);
  open();
}

Attachment::~Attachment() {
  io_.reset();
  ports_.clear();
}

/// Decides which ports there will be and which aggregator is behind which.
void Attachment::plan(const ContextOptions& options) {
  if (options.aggregators.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "no aggregator is named: set ContextOptions::aggregators or SLUICE_AGGREGATORS");
  std::map<std::string, std::size_t> port_of;  // by vhost directory; "" is the network's
  std::uint16_t smallest_mtu = 0xffff;
  for (const std::string& text : options.aggregators) {
    const auto address = config::parse_aggregator_address("aggregator", text);
    const auto* local = std::get_if<config::VhostDirectory>(&address);
    const auto [at, is_new] = port_of.emplace(local ? local->path : "", planned_.size());
    if (is_new) {
      net::PortOptions port;
      port.descriptors = kDescriptors;
      port.mtu = static_cast<std::uint16_t>(options.mtu != 0 ? options.mtu
                                            : local          ? kVhostMtu
                                                             : kNetworkMtu);
      if (local) {
        port.device = net::worker_device(local->path, net::unique_socket_name("worker"),
                                         {.queue_size = kDescriptors});
        port.ipv4 = net::kVhostWorkerIpv4;
        port.prefix = net::kVhostPrefix;
      } else {
        if (options.port.empty() || options.address.empty())
          throw Error(ErrorCode::kInvalidArgument,
                      "aggregator " + text +
                          " is on the network: set ContextOptions::port and "
                          "address, or SLUICE_PORT and SLUICE_ADDRESS");
        const auto own = config::parse_interface_address("address", options.address);
        port.device = options.port;
        port.ipv4 = own.ipv4;
        port.prefix = own.prefix;
      }
      smallest_mtu = std::min(smallest_mtu, port.mtu);
      planned_.push_back({local ? local->path : "", port});
    }
    const auto* remote = std::get_if<config::UdpAddress>(&address);
    targets_.push_back({text, at->second, remote ? remote->ipv4 : net::kVhostAggregatorIpv4,
                        remote ? remote->port : config::kDefaultUdpPort});
  }
  payload_bytes_ = static_cast<std::uint16_t>(smallest_mtu - kIpAndUdpBytes);
}

void Attachment::open() {
  io_ = std::make_unique<net::DatagramIo>(*payloads_, *headers_);
  io_->listen(kWorkerUdpPort);
  for (const Link& link : planned_) {
    ports_.push_back(open(link));
    io_->add_port(ports_.back()->view(0));
  }
}

std::unique_ptr<net::Port> Attachment::open(const Link& link) {
  const bool local = !link.directory.empty();
  if (!local) claims_.push_back(config::Claim::on_udp_port(link.port.ipv4, kWorkerUdpPort));
  try {
    return std::make_unique<net::Port>(link.port, *payloads_);
  } catch (const Error& error) {
    if (!local || error.code() != ErrorCode::kUnavailable) throw;
    const std::string where = "vhost:" + link.directory + ": ";
    if (!config::is_claimed_directory(link.directory))
      throw Error(error.code(), where + "no aggregator serves this directory");
    throw Error(error.code(), where +
                                  "its aggregator took no further worker; see its vhost-max-ports "
                                  "and its log (" +
                                  error.what() + ")");
  }
}

std::optional<Endpoint> Attachment::find(std::size_t shard, Time now) {
  const Target& target = targets_[shard];
  const net::Port& port = *ports_[target.port];
  if (!port.link_up()) return std::nullopt;
  const auto mac = io_->resolve(port.id(), target.ipv4, now);
  if (!mac) return std::nullopt;
  return Endpoint{.port_id = port.id(),
                  .mac = *mac,
                  .ipv4 = target.ipv4,
                  .udp_port = target.udp_port,
                  .local_udp_port = kWorkerUdpPort};
}

std::size_t Attachment::memory_mib_for(std::size_t buffers) const {
  const std::size_t buffer = packet_buffer_bytes(payload_bytes_ + kIpAndUdpBytes);
  return kEalMib + (((planned_.size() * kBuffersPerPort + buffers) * buffer) >> 20) + 1;
}

}  // namespace sluice
