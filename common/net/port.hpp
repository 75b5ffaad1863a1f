// One network port of this process: a NIC, or a virtual device such as af_packet, vhost, memif.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/time.hpp"
#include "common/base/udp_checksum.hpp"
#include "common/net/framing.hpp"
#include "common/net/group_filter.hpp"
#include "common/net/pool.hpp"
#include "common/net/rss.hpp"
#include "common/net/steering.hpp"

struct rte_eth_dev_info;

namespace sluice::net {

struct PortOptions {
  /// DPDK's device string: "net_af_packet0,iface=veth1", "net_af_xdp0,iface=veth1",
  /// "net_vhost0,...", "0000:03:00.0". What the first two need in addition to `iface` is added if
  /// it is missing.
  std::string device;
  std::uint16_t queues = 1;         ///< queue pairs, one per lane
  std::uint16_t descriptors = 256;  ///< of each ring; the port may adjust it
  std::uint16_t mtu = 1500;         ///< bytes of an IPv4 packet, 576 .. 9698
  std::uint16_t vlan = kNoVlan;     ///< of all frames, 1 .. 4094, or none
  /// Our address, in host byte order; the kernel uses another one.
  std::uint32_t ipv4 = 0;
  std::uint8_t prefix = 24;  ///< length of the network's prefix, 1 .. 32
  /// For addresses beyond the prefix; 0: every address is on the link.
  std::uint32_t gateway = 0;
  std::optional<MacAddress> mac;  ///< used in place of the device's, if nothing filters by it
  UdpChecksum udp_checksum = UdpChecksum::kAuto;
  /// For a worker's vhost port: how long its aggregator may take to connect to it.
  Duration peer_timeout = std::chrono::seconds(10);
  bool tells = false;  ///< PortView::rx_event signals frames, if the driver can do that
  bool chain = true;   ///< false: copy shared payloads even if the port accepts chained buffers
  /// Others use the pools while the port is opened: then buffers that its driver forgets are lost.
  bool pools_in_use = false;
};

/// What a DatagramIo needs to know of one queue of a port.
struct PortView {
  std::uint16_t id = 0;
  std::uint16_t queue = 0;
  LocalAddress address;
  std::uint8_t prefix = 24;
  std::uint32_t gateway = 0;
  std::uint16_t mtu = 1500;
  std::uint16_t vlan = kNoVlan;
  UdpChecksum udp_checksum = UdpChecksum::kSoftware;  ///< never kAuto
  /// False: the port is memory that it shares with a process of this machine.
  bool off_machine = true;
  /// Becomes readable when a frame comes, if it was armed; -1: not supported.
  int rx_event = -1;
  bool chain = false;  ///< the port accepts a header and a payload as two chained buffers
};

/// What a port's driver counts. Not every driver has all counters. A frame that the port itself has
/// dropped never reaches a DatagramIo.
struct PortCounters {
  std::uint64_t rx_packets = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t tx_packets = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_missed = 0;     ///< nobody polled in time
  std::uint64_t rx_no_buffer = 0;  ///< the pool was empty

  PortCounters& operator+=(const PortCounters& other) {
    rx_packets += other.rx_packets;
    rx_bytes += other.rx_bytes;
    tx_packets += other.tx_packets;
    tx_bytes += other.tx_bytes;
    rx_missed += other.rx_missed;
    rx_no_buffer += other.rx_no_buffer;
    return *this;
  }
};

/// A started port. One control thread makes, queries and destroys it. DatagramIos poll its queues;
/// they must have removed it before it is destroyed.
class Port {
 public:
  /// Plugs and starts the device. Received frames go to `pools[queue]`, or to `pools[0]` if that is
  /// the only one. Throws Error: kInvalidArgument for options out of range; kUnavailable if the
  /// device, its interface, the privilege, the vhost peer or buffers are missing, or if somebody
  /// else uses it. May block for `peer_timeout`.
  Port(const PortOptions& options, std::span<BufferPool* const> pools);
  Port(const PortOptions& options, BufferPool& pool);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  std::uint16_t id() const { return view_.id; }
  const MacAddress& mac() const { return view_.address.mac; }
  const std::string& device() const { return options_.device; }
  std::uint16_t queues() const { return options_.queues; }

  /// The largest datagram: the MTU without IPv4 and UDP headers.
  std::size_t max_payload_bytes() const { return options_.mtu - kIpv4Bytes - kUdpBytes; }

  /// It is cheap and may be called by any thread; for a NIC and for a worker's vhost port by one at
  /// a time. The answer may be 50 ms old.
  bool link_up() const;

  /// 0 if the driver does not say.
  std::uint32_t link_mbit() const;

  /// Which abilities of the driver are used, for the log.
  std::string abilities() const;

  /// Counters since the port was made. It asks the driver, so do not call it in every turn of a
  /// loop.
  PortCounters statistics() const;

  PortView view(std::uint16_t queue) const;

  /// How datagrams to UDP port `first_udp_port` + q reach queue q.
  struct Steered {
    bool by_rules = false;
    std::shared_ptr<const SourcePortChooser> by_source_ports;  ///< null: not by source ports
    std::string refusal;  ///< why not by rules, and why not by source ports
  };
  /// Makes the device bring them there: by rules, if it accepts them, or by source ports that are
  /// chosen for it. Otherwise it spreads frames over the queues as before.
  Steered steer(std::uint16_t first_udp_port);

  /// For a port that is steered by source ports: why they do not lead to the queues any more; empty
  /// if they do. It asks the driver, so do not call it in every turn of a loop.
  std::string rss_change() const;

  /// Makes the port receive frames to these multicast groups (and to all hosts, if there are
  /// groups), too. Returns by which means; kNone if nothing worked, or if the port leads to a local
  /// peer, for which nothing needs to be done.
  GroupFilter::Means receive_groups(std::span<const std::uint32_t> groups);

 private:
  bool open(Time deadline);
  void plug();
  void hotplug();
  bool serves_peer() const { return !served_path_.empty(); }
  bool has_peer() const;
  bool tells() const;
  void start_before_peer_goes();
  void start();
  void configure(const rte_eth_dev_info& info);
  void set_up_queues();
  void set_up_receive_queue(std::uint16_t queue, std::uint16_t descriptors);
  BufferPool& pool_of(std::uint16_t queue) const;
  void close();
  void close_xdp_sockets();

  PortOptions options_;
  std::vector<BufferPool*> pools_;
  std::string bus_;
  std::string name_;  // the device string up to the first comma
  // Of virtio-user in server mode: the path of its socket; otherwise empty.
  std::string served_path_;
  PortView view_;
  std::unique_ptr<GroupFilter> groups_;  // null until groups are received
  std::unique_ptr<Steering> steering_;   // null until it is asked for
  Rss rss_;                              // for which source ports were chosen
  std::map<int, ino_t> xdp_sockets_;     // of an af_xdp device: inode numbers by descriptor
  bool plugged_ = false;
  mutable Time next_link_question_{};  // these are of a NIC, or of a port that serves a peer
  mutable bool link_was_up_ = false;
  mutable int peer_connection_ = -1;  // where it was found the last time
};

/// Whether it is a kernel's interface that is used through AF_XDP sockets. Each queue of such a
/// port keeps at most kAfXdpBuffers, from its start until after its end.
bool is_af_xdp(const std::string& device);
inline constexpr std::size_t kAfXdpBuffers = std::size_t{2} * 2048;  // the driver's two rings

/// "192.168.1.2" as a number in host byte order; throws Error kInvalidArgument.
std::uint32_t parse_ipv4(const std::string& text);
std::string format_ipv4(std::uint32_t address);
std::string format_mac(const MacAddress& mac);

}  // namespace sluice::net
