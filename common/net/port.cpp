#include "common/net/port.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <net/if.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_pci.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sluice/error.hpp>

#include "common/base/limits.hpp"
#include "common/net/clock.hpp"
#include "common/net/eal_log.hpp"
#include "common/net/interrupt_thread.hpp"
#include "common/net/kernel_interface.hpp"
#include "common/net/peer_deadline.hpp"
#include "common/net/socket_paths.hpp"
#include "common/net/stuck_peer.hpp"
#include "common/net/thread_state_guard.hpp"

namespace sluice::net {
namespace {

// How long a peer may take to agree to the end of its port; and how often, and at which intervals,
// one that does not agree is disconnected.
constexpr std::chrono::seconds kPeerTimeLimit{1};
constexpr std::chrono::milliseconds kReleasePeriod{50};
constexpr int kReleasesMax = 40;

// How long a kernel may take to release an interface's queue after its AF_XDP socket was closed. A
// kernel thread does that, which waits for a core, and for all other changes of network interfaces.
constexpr std::chrono::milliseconds kXdpReleaseTime{5'000};
constexpr std::chrono::milliseconds kXdpReleasePeriod{50};

// How often a NIC is asked for its link at most: some drivers read the transceiver for that, which
// takes 0.1 ms.
constexpr std::chrono::milliseconds kLinkQuestionPeriod{50};
static_assert(limits::kMaxPorts <= RTE_MAX_ETHPORTS);

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

// Shared memory does not flip bits, so it needs no checksum.
bool is_memory(const std::string& device) {
  return starts_with(device, "net_vhost") || starts_with(device, "net_virtio_user") ||
         starts_with(device, "virtio_user") || starts_with(device, "net_memif");
}

// The value of `key` in a device string; empty if there is none.
std::string setting(const std::string& device, const std::string& key) {
  const std::string start = "," + key + "=";
  const std::size_t at = device.find(start);
  if (at == std::string::npos) return {};
  const std::size_t value = at + start.size();
  return device.substr(value, device.find(',', value) - value);
}

bool is_pci(const std::string& name) {
  return name.find(':') != std::string::npos;
}

bool is_af_packet(const std::string& device) {
  return starts_with(device, "net_af_packet") || starts_with(device, "eth_af_packet");
}

// The driver reports every failure as a missing privilege, so what can be checked is checked
// before.
void check_interface(const PortOptions& options) {
  const std::string interface = setting(options.device, "iface");
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    throw Error(code, "port '" + options.device + "': " + what);
  };
  if (interface.empty()) refuse(ErrorCode::kInvalidArgument, "iface=NAME expected");
  const auto actual = interface_mtu(interface);
  if (!actual) refuse(ErrorCode::kUnavailable, "there is no network interface " + interface);
  if (*actual < options.mtu)
    refuse(ErrorCode::kInvalidArgument, "MTU " + std::to_string(options.mtu) + ", but interface " +
                                            interface + " has " + std::to_string(*actual));
  // AF_XDP cannot carry a tag outside of the frame.
  if (options.vlan != kNoVlan && is_af_xdp(options.device) && takes_off_tags(interface))
    refuse(ErrorCode::kUnavailable, "VLAN " + std::to_string(options.vlan) + ", but interface " +
                                        interface + " takes tags off frames, and AF_XDP loses " +
                                        "them: ethtool -K " + interface + " rxvlan off");
}

// The kernel distributes packets among the sockets of a fanout group. The driver derives the
// group's number from PID and interface. Another process with the same number would get our
// packets, or we could not open the port.
void check_fanout_group(const PortOptions& options) {
  const unsigned index = if_nametoindex(setting(options.device, "iface").c_str());
  const auto number = static_cast<std::uint16_t>(static_cast<unsigned>(getpid()) ^ index);
  if (!is_fanout_group_taken(number)) return;
  throw Error(
      ErrorCode::kUnavailable,
      "port '" + options.device + "': packet fanout group " + std::to_string(number) +
          " is taken: DPDK makes its number of the PID (" + std::to_string(getpid()) +
          ") and the interface, and another process of this network namespace, or another " +
          "port of this process, has the same. Start this process again, for another PID, " +
          "or in a network namespace of its own");
}

// By default the driver uses frames of 2 KiB and no traffic shaping. A full ring blocks the sender,
// so the ring is made long. The driver assumes that frames fill their blocks without a gap, and
// that a frame's whole room fits into a buffer; the kernel wants blocks of whole pages. 64 frames
// of a multiple of 64 bytes fulfil that.
std::string complete_af_packet(std::string device, std::uint16_t queues, std::uint16_t mtu) {
  constexpr unsigned kRingHeaderBytes = 96;  // the kernel's header of every frame
  constexpr unsigned kUnit = 64;
  constexpr unsigned kFrames = 1024;
  const unsigned frame =
      (kRingHeaderBytes + static_cast<unsigned>(kEthernetBytes + kTagBytes) + mtu + kUnit - 1) /
      kUnit * kUnit;
  const auto add = [&](const char* key, unsigned value) {
    if (setting(device, key).empty())
      device += std::string(",") + key + "=" + std::to_string(value);
  };
  add("qpairs", queues);
  add("qdisc_bypass", 0);
  if (setting(device, "framesz").empty() && setting(device, "blocksz").empty()) {
    add("framesz", frame);
    add("blocksz", frame * kUnit);
    add("framecnt", kFrames);
  }
  return device;
}

// By default the driver polls the socket with a system call each time, which costs more of a shared
// core than it gains: see docs/performance.md.
std::string complete_af_xdp(std::string device, std::uint16_t queues) {
  if (setting(device, "queue_count").empty()) device += ",queue_count=" + std::to_string(queues);
  if (setting(device, "busy_budget").empty()) device += ",busy_budget=0";
  return device;
}

// The address in DPDK's form: with the domain, in lower case.
std::string pci_name(const std::string& address) {
  rte_pci_addr parsed{};
  if (rte_pci_addr_parse(address.c_str(), &parsed) != 0) return address;  // it will not be found
  std::array<char, PCI_PRI_STR_SIZE> name{};
  rte_pci_device_name(&parsed, name.data(), name.size());
  return name.data();
}

// Inode numbers of all AF_XDP sockets of this process, by descriptor.
std::map<int, ino_t> xdp_sockets() {
  std::map<int, ino_t> found;
  std::error_code unreadable;  // if it is set, no socket is known, and none will be closed
  for (auto entry = std::filesystem::directory_iterator("/proc/self/fd", unreadable);
       entry != std::filesystem::directory_iterator(); entry.increment(unreadable)) {
    const int fd = std::stoi(entry->path().filename());
    int domain = 0;
    socklen_t size = sizeof domain;
    struct stat status {};
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_XDP &&
        fstat(fd, &status) == 0)
      found[fd] = status.st_ino;
  }
  return found;
}

void check_interface_queues(const PortOptions& options) {
  const std::string interface = setting(options.device, "iface");
  const auto has = interface_queues(interface);
  if (has && *has < options.queues)
    throw Error(ErrorCode::kInvalidArgument, "port '" + options.device +
                                                 "': " + std::to_string(options.queues) +
                                                 " queues, but interface " + interface + " has " +
                                                 std::to_string(*has) + " (see ethtool -L)");
}

// The kernel accepts buffers of at most a page, with all that belongs to them, and keeps a part of
// each for its programs. It drops what does not fit into the rest.
void check_frames_fit_buffers(const PortOptions& options, const BufferPool& pool) {
  constexpr std::size_t kKernelBytes = 256;  // XDP_PACKET_HEADROOM
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const bool fits_page = pool.buffer_bytes() <= page;
  const std::size_t room = fits_page ? pool.room_bytes() : BufferPool::largest_room(page);
  const std::size_t mtu_max = room - kKernelBytes - kEthernetBytes - kTagBytes;
  if (fits_page && options.mtu <= mtu_max) return;
  throw Error(ErrorCode::kInvalidArgument,
              "port '" + options.device + "': MTU " + std::to_string(options.mtu) +
                  ", but packet buffers of AF_XDP stay under one page, and hold " +
                  std::to_string(room) + " bytes: at most " + std::to_string(mtu_max));
}

void check(const PortOptions& options, std::size_t pools) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "port '" + options.device + "': " + what);
  };
  if (options.device.empty()) refuse("a device string expected, such as net_af_packet0,iface=eth1");
  if (options.queues == 0) refuse("0 queues, at least 1 expected");
  if (pools != 1 && pools != options.queues)
    refuse(std::to_string(pools) + " pools for " + std::to_string(options.queues) + " queues");
  if (options.mtu < limits::kMinMtu || options.mtu > limits::kMaxMtu)
    refuse("MTU " + std::to_string(options.mtu) + ", expected 576 to 9698");
  if (options.vlan > limits::kMaxVlan)
    refuse("VLAN " + std::to_string(options.vlan) + ", expected 1 to 4094, or 0 for none");
  if (options.prefix < 1 || options.prefix > 32)
    refuse("prefix length " + std::to_string(options.prefix) + ", expected 1 to 32");
}

void must(int result, const char* step) {
  if (result != 0)
    throw Error(ErrorCode::kUnavailable, std::string(step) + ": " + rte_strerror(-result));
}

// The MTU to set in the device. Drivers differ in whether they leave room for a tag beside the MTU.
std::uint32_t device_mtu(const PortOptions& options, const rte_eth_dev_info& info) {
  // The af_packet driver says 1518 bytes at most, whatever its `framesz` is: it only passes on what
  // the kernel's interface accepts.
  if (is_af_packet(options.device)) return RTE_ETHER_MTU;
  const std::size_t tagged_frame =
      info.max_mtu + kEthernetBytes + kTagBytes + std::size_t{RTE_ETHER_CRC_LEN};
  const bool needs_room = options.vlan != kNoVlan && info.max_rx_pktlen < tagged_frame;
  return options.mtu + (needs_room ? static_cast<std::uint32_t>(kTagBytes) : 0);
}

unsigned queues_of(const rte_eth_dev_info& info) {
  return std::min(info.max_rx_queues, info.max_tx_queues);
}

void check_abilities(const PortOptions& options, const rte_eth_dev_info& info) {
  const unsigned queues_max = queues_of(info);
  if (options.queues > queues_max)
    throw Error(
        ErrorCode::kInvalidArgument,
        std::to_string(options.queues) + " queues, the device has " + std::to_string(queues_max));
  if (std::max<std::uint32_t>(options.mtu, device_mtu(options, info)) > info.max_mtu)
    throw Error(ErrorCode::kInvalidArgument, "MTU " + std::to_string(options.mtu) +
                                                 ", the device takes at most " +
                                                 std::to_string(info.max_mtu));
}

UdpChecksum choose_checksum(UdpChecksum asked, const std::string& device,
                            const rte_eth_dev_info& info) {
  const bool can_offload = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  if (asked == UdpChecksum::kOffload && !can_offload)
    throw Error(ErrorCode::kInvalidArgument, "the device cannot compute UDP checksums");
  if (asked != UdpChecksum::kAuto) return asked;
  if (is_memory(device)) return UdpChecksum::kNone;
  // A virtio device leaves the sum unfinished for receivers on its own host, and a receiver that
  // uses af_packet does not see that.
  if (std::strcmp(info.driver_name, "net_virtio") == 0) return UdpChecksum::kSoftware;
  return can_offload ? UdpChecksum::kOffload : UdpChecksum::kSoftware;
}

// Closing a vhost port waits, without yielding the core, until DPDK's vhost thread has handled the
// peer's message. So another thread closes it, and is left behind if that takes too long.
bool run_beside_vhost_thread(const std::function<void()>& what) {
  std::packaged_task<void()> task(what);
  const std::future<void> end = task.get_future();
  std::thread(std::move(task)).detach();
  for (int i = 0; i < kReleasesMax; ++i) {
    if (end.wait_for(kReleasePeriod) == std::future_status::ready) return true;
    end_wait(find_thread(kVhostThread));
  }
  return false;
}

// By which fields the device spreads packets over its queues: with UDP ports, or, if it cannot do
// that, by addresses only.
std::uint64_t rss_functions(const PortOptions& options, const rte_eth_dev_info& info) {
  if (options.queues == 1) return 0;
  const std::uint64_t by_ports = RTE_ETH_RSS_NONFRAG_IPV4_UDP & info.flow_type_rss_offloads;
  return by_ports != 0 ? by_ports : RTE_ETH_RSS_IPV4 & info.flow_type_rss_offloads;
}

const char* describe_rss(std::uint64_t functions) {
  if (functions == 0) return "";
  return functions & RTE_ETH_RSS_NONFRAG_IPV4_UDP ? " by UDP ports" : " by addresses";
}

// Checksum offloads and chains if the device has them; never FAST_FREE, which would return shared
// payloads to the pool while others still have references to them.
rte_eth_conf configuration(const PortOptions& options, const std::string& name,
                           UdpChecksum checksum, const rte_eth_dev_info& info) {
  rte_eth_conf conf{};
  conf.rxmode.mtu = device_mtu(options, info);
  conf.rxmode.offloads =
      (RTE_ETH_RX_OFFLOAD_UDP_CKSUM | RTE_ETH_RX_OFFLOAD_IPV4_CKSUM) & info.rx_offload_capa;
  // The kernel's af_packet, like many NICs, gives the tag outside of the frame.
  if (options.vlan != kNoVlan)
    conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_VLAN_STRIP & info.rx_offload_capa;
  conf.txmode.offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS & info.tx_offload_capa;
  if (checksum == UdpChecksum::kOffload) conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  conf.rx_adv_conf.rss_conf.rss_hf = rss_functions(options, info);
  if (conf.rx_adv_conf.rss_conf.rss_hf != 0) conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
  // virtio-user in server mode accepts a new peer only in the interrupt handler of the link. A
  // NIC's driver may support link interrupts although the device cannot raise them: DPDK 22.11 asks
  // for MSI-X even if the device has none, and then the link would stay down for ever. So NICs are
  // polled for their link.
  conf.intr_conf.lsc = !is_pci(name) && (*info.dev_flags & RTE_ETH_DEV_INTR_LSC) != 0;
  return conf;
}

}  // namespace

Port::Port(const PortOptions& options, BufferPool& pool)
    : Port(options, std::array<BufferPool*, 1>{&pool}) {}

Port::Port(const PortOptions& options, std::span<BufferPool* const> pools)
    : options_(options), pools_(pools.begin(), pools.end()) {
  check(options, pools.size());
  if (is_af_packet(options_.device)) {
    check_interface(options_);
    check_fanout_group(options_);
    options_.device = complete_af_packet(options_.device, options_.queues, options_.mtu);
  } else if (is_af_xdp(options_.device)) {
    check_interface(options_);
    check_interface_queues(options_);
    for (const BufferPool* pool : pools_) check_frames_fit_buffers(options_, *pool);
    options_.device = complete_af_xdp(options_.device, options_.queues);
  }
  name_ = options_.device.substr(0, options_.device.find(','));
  if (is_pci(name_)) name_ = pci_name(name_);
  bus_ = is_pci(name_) ? "pci" : "vdev";
  if (setting(options_.device, "server") == "1") served_path_ = setting(options_.device, "path");
  // Drivers start threads, and write to sockets of their peers.
  const ThreadStateGuard restore_at_end;
  EalLog::instance().collect();
  const bool may_wait = is_af_xdp(name_) && !options_.pools_in_use;
  const Time deadline = after(now(), may_wait ? kXdpReleaseTime : Duration{});
  while (!open(deadline)) {
    std::this_thread::sleep_for(kXdpReleasePeriod);
    EalLog::instance().collect();  // for the last attempt only
  }
  EalLog::instance().collected();
}

Port::~Port() {
  close();
}

// Returns false if the kernel may not have released yet what the interface's last user has closed.
// Throws if that is not the case, or if the deadline has passed.
bool Port::open(Time deadline) {
  std::map<int, ino_t> others;
  if (is_af_xdp(name_)) others = xdp_sockets();
  const auto note_own_sockets = [&] {
    if (is_af_xdp(name_)) xdp_sockets_ = xdp_sockets();
    for (const auto& other : others) xdp_sockets_.erase(other.first);
  };
  try {
    plug();
    serves_peer() ? start_before_peer_goes() : start();
    note_own_sockets();
    return true;
  } catch (const Error& error) {
    const std::string complaints = EalLog::instance().collected();
    const bool plugged = plugged_;
    note_own_sockets();
    close();
    if (plugged && now() < deadline) return false;
    throw Error(error.code(), "port '" + options_.device + "': " + error.what() +
                                  (complaints.empty() ? "" : " (" + complaints + ")"));
  }
}

void Port::plug() {
  std::uint16_t id;
  if (rte_eth_dev_get_port_by_name(name_.c_str(), &id) != 0) {
    hotplug();
    if (rte_eth_dev_get_port_by_name(name_.c_str(), &id) != 0)
      throw Error(ErrorCode::kUnavailable, "the device is no network port");
  }
  std::uint64_t owner_id;
  rte_eth_dev_owner_new(&owner_id);
  rte_eth_dev_owner owner{owner_id, "sluice"};
  if (rte_eth_dev_owner_set(id, &owner) != 0)
    throw Error(ErrorCode::kUnavailable, "in use by another port of this process");
  view_.id = id;
  plugged_ = true;
}

void Port::hotplug() {
  std::optional<PeerDeadline> deadline;
  if (serves_peer()) deadline.emplace(served_path_, options_.peer_timeout);
  const std::string settings =
      name_.size() < options_.device.size() ? options_.device.substr(name_.size() + 1) : "";
  const int error = rte_eal_hotplug_add(bus_.c_str(), name_.c_str(), settings.c_str());
  if (error == 0) return;
  if (deadline && deadline->passed()) {
    unlink(served_path_.c_str());  // the driver leaves it behind
    throw Error(ErrorCode::kUnavailable,
                "no aggregator connected to its socket and answered in time");
  }
  const bool may = is_af_packet(name_) && may_open_packet_sockets();  // all its errors are EPERM
  if ((error == -EPERM || error == -EACCES) && !is_pci(name_) && !may)
    throw Error(ErrorCode::kUnavailable, "the privilege is missing: CAP_NET_RAW expected");
  if (!is_pci(name_) && !name_.starts_with("net_"))
    throw Error(
        ErrorCode::kUnavailable,
        "is no device of DPDK's; for an interface of the kernel say net_af_packet0,iface=" + name_);
  throw Error(ErrorCode::kUnavailable, std::string("cannot be opened: ") + rte_strerror(-error));
}

bool Port::tells() const {
  return options_.tells && starts_with(name_, "net_virtio_user");
}

// The driver handles the end of its peer on the interrupt thread, and must not do so in the middle
// of this.
void Port::start_before_peer_goes() {
  if (!run_on_interrupt_thread([&] { start(); }, options_.peer_timeout))
    throw Error(ErrorCode::kUnavailable, "DPDK is busy with another peer");
}

void Port::start() {
  rte_eth_dev_info info{};
  must(rte_eth_dev_info_get(id(), &info), "asking for its abilities");
  check_abilities(options_, info);
  view_.udp_checksum = choose_checksum(options_.udp_checksum, name_, info);
  configure(info);
  set_up_queues();
  must(rte_eth_dev_start(id()), "starting");

  rte_ether_addr mac{};
  must(rte_eth_macaddr_get(id(), &mac), "asking for its address");
  std::memcpy(view_.address.mac.data(), mac.addr_bytes, view_.address.mac.size());
  if (options_.mac) view_.address.mac = *options_.mac;
  view_.address.ipv4 = options_.ipv4;
  view_.prefix = options_.prefix;
  view_.gateway = options_.gateway;
  view_.mtu = options_.mtu;
  view_.vlan = options_.vlan;
  view_.off_machine = !is_memory(name_);
  view_.chain = options_.chain && (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
}

// A queue that signals frames is configured after one that does not: virtio-user registers for the
// end of its peer during this, and would leave that behind if a later step failed.
void Port::configure(const rte_eth_dev_info& info) {
  rte_eth_conf conf = configuration(options_, name_, view_.udp_checksum, info);
  must(rte_eth_dev_configure(id(), options_.queues, options_.queues, &conf), "configuring");
  if (!tells()) return;
  conf.intr_conf.rxq = 1;
  must(rte_eth_dev_configure(id(), options_.queues, options_.queues, &conf), "configuring to tell");
}

BufferPool& Port::pool_of(std::uint16_t queue) const {
  return *pools_[pools_.size() == 1 ? 0 : queue];
}

void Port::set_up_queues() {
  std::uint16_t rx = options_.descriptors;
  std::uint16_t tx = options_.descriptors;
  // virtio needs two for a packet of which the sender keeps a reference.
  if (serves_peer()) tx = static_cast<std::uint16_t>(2 * tx);
  must(rte_eth_dev_adjust_nb_rx_tx_desc(id(), &rx, &tx), "setting the ring sizes");
  for (std::uint16_t q = 0; q < options_.queues; ++q) {
    set_up_receive_queue(q, rx);
    must(rte_eth_tx_queue_setup(id(), q, tx, SOCKET_ID_ANY, nullptr), "transmit queue");
  }
}

// If the interface's queue is not available, the AF_XDP driver forgets the buffers that it has
// taken to fill it. While others use the pool, there is only one attempt.
void Port::set_up_receive_queue(std::uint16_t queue, std::uint16_t descriptors) {
  BufferPool& pool = pool_of(queue);
  const bool forgets = is_af_xdp(name_) && !options_.pools_in_use;
  BufferPool::Listed in_pool = forgets ? pool.list() : BufferPool::Listed();
  const int result =
      rte_eth_rx_queue_setup(id(), queue, descriptors, SOCKET_ID_ANY, nullptr, pool.handle());
  if (result != 0 && forgets) pool.take_back(std::move(in_pool));
  must(result, "receive queue");
}

void Port::close() {
  if (!plugged_) return;
  plugged_ = false;
  groups_.reset();
  steering_.reset();
  const ThreadStateGuard restore_at_end;
  const auto unplug = [id = id(), bus = bus_, name = name_] {
    rte_eth_dev_stop(id);
    rte_eth_dev_close(id);
    rte_eal_hotplug_remove(bus.c_str(), name.c_str());
  };
  bool closed = true;
  if (serves_peer()) {
    // A peer that comes or goes meanwhile is handled on the interrupt thread, partly in alarms,
    // which use what is freed here. So it is freed on that thread, after the last alarm.
    unlink(served_path_.c_str());
    closed = run_on_interrupt_thread(unplug, kPeerTimeLimit);
  } else if (starts_with(name_, "net_vhost")) {
    closed = run_beside_vhost_thread(unplug);
  } else {
    unplug();
  }
  if (is_af_xdp(name_)) {
    close_xdp_sockets();
    for (std::uint16_t q = 0; q < options_.queues; ++q) pool_of(q).forgive_driver(kAfXdpBuffers);
  }
  if (!closed)
    EalLog::instance().say(LogLevel::kError, "port '" + name_ +
                                                 "': busy with its peer; it stays open until this "
                                                 "process ends");
}

// DPDK 22.11's driver leaves them open, and with them the interface's queues.
void Port::close_xdp_sockets() {
  const std::map<int, ino_t> open = xdp_sockets();
  for (const auto& socket : xdp_sockets_)
    if (const auto left = open.find(socket.first);
        left != open.end() && left->second == socket.second)
      ::close(socket.first);
  xdp_sockets_.clear();
}

bool Port::link_up() const {
  const auto ask = [this] {
    rte_eth_link link{};
    return rte_eth_link_get_nowait(id(), &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
  };
  const auto ask_sometimes = [this](const auto& question) {
    if (const Time time = now(); time >= next_link_question_) {
      next_link_question_ = after(time, kLinkQuestionPeriod);
      link_was_up_ = question();
    }
    return link_was_up_;
  };
  if (is_pci(name_)) return ask_sometimes(ask);
  if (!serves_peer()) return ask();
  return ask() && ask_sometimes([this] { return has_peer(); });
}

// DPDK 24.11's driver checks a connection twice after it has accepted it. If the connection ends
// between the two checks, the driver closes it, but says that the link is up until the next peer
// goes. If the kernel does not say more, the driver's answer is used.
bool Port::has_peer() const {
  if (is_accepted_at(served_path_, peer_connection_)) return true;
  const std::optional<int> found = find_accepted_at(served_path_);
  peer_connection_ = found.value_or(-1);
  return !found || *found >= 0;
}

std::uint32_t Port::link_mbit() const {
  rte_eth_link link{};
  if (rte_eth_link_get_nowait(id(), &link) != 0 || link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN)
    return 0;
  return link.link_speed;
}

std::string Port::abilities() const {
  rte_eth_dev_info info{};
  if (rte_eth_dev_info_get(id(), &info) != 0) return "its driver tells nothing";
  const bool computes = view_.udp_checksum == UdpChecksum::kOffload;
  const bool verifies = info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
  return std::string(info.driver_name) + ", " + std::to_string(options_.queues) + " of " +
         std::to_string(queues_of(info)) + " queues" + describe_rss(rss_functions(options_, info)) +
         ", UDP checksums " + (computes ? "computed" : "not computed") + " and " +
         (verifies ? "verified" : "not verified") + ", chained buffers " +
         (view_.chain ? "taken" : "not taken");
}

PortCounters Port::statistics() const {
  rte_eth_stats stats{};
  if (rte_eth_stats_get(id(), &stats) != 0) return {};
  return {.rx_packets = stats.ipackets,
          .rx_bytes = stats.ibytes,
          .tx_packets = stats.opackets,
          .tx_bytes = stats.obytes,
          .rx_missed = stats.imissed,
          .rx_no_buffer = stats.rx_nombuf};
}

PortView Port::view(std::uint16_t queue) const {
  PortView view = view_;
  view.queue = queue;
  if (tells()) view.rx_event = rte_eth_dev_rx_intr_ctl_q_get_fd(id(), queue);
  return view;
}

Port::Steered Port::steer(std::uint16_t first_udp_port) {
  steering_.reset();
  steering_ = std::make_unique<Steering>(id(), view_.vlan, first_udp_port, options_.queues);
  Steered steered{.by_rules = steering_->refusal().empty(),
                  .by_source_ports = nullptr,
                  .refusal = steering_->refusal()};
  if (steered.by_rules) return steered;
  try {
    rss_ = read_rss(id());
    steered.by_source_ports = std::make_shared<const SourcePortChooser>(
        rss_, view_.address.ipv4, first_udp_port, options_.queues);
  } catch (const Error& error) {
    steered.refusal += std::string("; ") + error.what();
  }
  return steered;
}

std::string Port::rss_change() const {
  try {
    return read_rss(id()) == rss_ ? "" : "the RSS key or table has changed";
  } catch (const Error&) {
    return "";  // as far as is known
  }
}

GroupFilter::Means Port::receive_groups(std::span<const std::uint32_t> groups) {
  if (!view_.off_machine) return GroupFilter::Means::kNone;
  if (!groups_) {
    const bool is_kernel_interface = is_af_packet(name_) || is_af_xdp(name_);
    groups_ = std::make_unique<GroupFilter>(
        id(), is_kernel_interface ? setting(options_.device, "iface") : "");
  }
  return groups_->receive(groups);
}

bool is_af_xdp(const std::string& device) {
  return starts_with(device, "net_af_xdp");
}

std::uint32_t parse_ipv4(const std::string& text) {
  in_addr address{};
  if (inet_pton(AF_INET, text.c_str(), &address) != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "'" + text + "' is no IPv4 address; four numbers such as 10.0.0.1 expected");
  return ntohl(address.s_addr);
}

std::string format_ipv4(std::uint32_t address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  const in_addr network{htonl(address)};
  return inet_ntop(AF_INET, &network, text.data(), text.size());
}

std::string format_mac(const MacAddress& mac) {
  std::array<char, 18> text{};
  std::snprintf(text.data(), text.size(), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2],
                mac[3], mac[4], mac[5]);
  return text.data();
}

}  // namespace sluice::net
