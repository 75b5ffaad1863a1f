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
  /// "net_vhost0,...", "0000:03:00.0". What the first two need beyond `iface` is added where it is
  /// not given.
  std::string device;
  std::uint16_t queues = 1;         ///< queue pairs, one per lane
  std::uint16_t descriptors = 256;  ///< of each ring; the port may adjust it
  std::uint16_t mtu = 1500;         ///< bytes of an IPv4 packet, 576 .. 9698
  std::uint16_t vlan = kNoVlan;     ///< of all frames, 1 .. 4094, or none
  std::uint32_t ipv4 = 0;           ///< our address there, host byte order; the kernel has another
  std::uint8_t prefix = 24;         ///< length of the network's prefix, 1 .. 32
  std::uint32_t gateway = 0;        ///< for addresses beyond it; 0: every address is on the link
  std::optional<MacAddress> mac;    ///< ours instead of the device's, where nothing filters by it
  UdpChecksum udp_checksum = UdpChecksum::kAuto;
  /// A worker's vhost port: how long its aggregator may take to connect to it.
  Duration peer_timeout = std::chrono::seconds(10);
  bool tells = false;  ///< PortView::rx_event is to tell of frames, if the driver can
  bool chain = true;   ///< false: copy shared payloads also where the port takes chained buffers
  /// Others use the pools while the port is opened: then what its driver forgets there is lost.
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
  bool off_machine = true;  ///< false: the port is memory that a process of this machine shares
  int rx_event = -1;        ///< becomes readable when a frame comes and it was asked to; -1: cannot
  bool chain = false;       ///< the port takes a header and a payload as two chained buffers
};

/// What a port's driver counts. Not every driver counts all; a frame that the port itself dropped
/// no DatagramIo ever saw.
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

/// A started port. Made, asked and destroyed by one control thread; its queues are polled by
/// DatagramIos, which must have let go of it before it is destroyed.
class Port {
 public:
  /// Plugs and starts the device; received frames land in `pools[queue]`, or in `pools[0]` when it
  /// is the only one. Throws Error: kInvalidArgument for options out of range, kUnavailable when
  /// the device, its interface, the privilege, the vhost peer or buffers are missing, or when
  /// somebody uses it. May block for `peer_timeout`.
  Port(const PortOptions& options, std::span<BufferPool* const> pools);
  Port(const PortOptions& options, BufferPool& pool);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  std::uint16_t id() const { return view_.id; }
  const MacAddress& mac() const { return view_.address.mac; }
  const std::string& device() const { return options_.device; }
  std::uint16_t queues() const { return options_.queues; }

  /// The largest datagram: the MTU less IPv4 and UDP headers.
  std::size_t max_payload_bytes() const { return options_.mtu - kIpv4Bytes - kUdpBytes; }

  /// Cheap. For any thread; of a NIC and of a worker's vhost port for one at a time, and it may be
  /// 50 ms old.
  bool link_up() const;

  /// 0 if the driver does not say.
  std::uint32_t link_mbit() const;

  /// What of the driver's abilities is used, for the log.
  std::string abilities() const;

  /// Since the port was made. Asks the driver: not for every turn of a loop.
  PortCounters statistics() const;

  PortView view(std::uint16_t queue) const;

  /// How datagrams to UDP port `first_udp_port` + q come to queue q.
  struct Steered {
    bool by_rules = false;
    std::shared_ptr<const SourcePortChooser> by_source_ports;  ///< null: or they do not
    std::string refusal;  ///< why not by rules, and why not by source ports
  };
  /// From now on the device brings them there, if it takes rules; or if they are from ports that
  /// are chosen for it. Else it spreads frames over the queues as before.
  Steered steer(std::uint16_t first_udp_port);

  /// Of a port that is steered by source ports: empty; or why they lead to the queues no more.
  /// Asks the driver: not for every turn of a loop.
  std::string rss_change() const;

  /// From now on frames to these multicast groups (and to all hosts, if there are groups) come in,
  /// too. Says by which means; kNone where nothing worked, or the port leads to a local peer, for
  /// which nothing is to be done.
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
  std::string name_;         // the device string up to the first comma
  std::string served_path_;  // of virtio-user in server mode: of its socket; else empty
  PortView view_;
  std::unique_ptr<GroupFilter> groups_;  // once some were to be received
  std::unique_ptr<Steering> steering_;   // once it was asked for
  Rss rss_;                              // for which source ports were chosen
  std::map<int, ino_t> xdp_sockets_;     // inode numbers by descriptor, of an af_xdp device
  bool plugged_ = false;
  mutable Time next_link_question_{};  // these of a NIC, or of one that serves a peer
  mutable bool link_was_up_ = false;
  mutable int peer_connection_ = -1;  // where it was found last
};

/// Whether it is a kernel's interface that is used through AF_XDP sockets. Each queue of one keeps
/// kAfXdpBuffers at most, from its start on and beyond its end.
bool is_af_xdp(const std::string& device);
inline constexpr std::size_t kAfXdpBuffers = std::size_t{2} * 2048;  // the driver's two rings

/// "192.168.1.2" as a number in host byte order; throws Error kInvalidArgument.
std::uint32_t parse_ipv4(const std::string& text);
std::string format_ipv4(std::uint32_t address);
std::string format_mac(const MacAddress& mac);

}  // namespace sluice::net
