// The addresses that people write in settings, as structs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/limits.hpp"
#include "common/base/multicast_address.hpp"

namespace sluice::config {

inline constexpr std::uint16_t kDefaultUdpPort = defaults::kUdpPort;

/// A port's own address, "10.0.0.2/24", or "10.0.0.2/24@10.0.0.1" with the gateway to other
/// networks.
struct InterfaceAddress {
  std::uint32_t ipv4 = 0;     ///< host byte order
  std::uint8_t prefix = 32;   ///< length of the network's prefix, 1..32
  std::uint32_t gateway = 0;  ///< host byte order; 0: none, every address is on the link

  std::uint32_t netmask() const { return ~std::uint32_t{0} << (32 - prefix); }
  bool same_network(std::uint32_t other) const { return ((ipv4 ^ other) & netmask()) == 0; }
  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

/// An aggregator on the network, "10.0.0.9" or "10.0.0.9:4747".
struct UdpAddress {
  std::uint32_t ipv4 = 0;  ///< host byte order
  std::uint16_t port = kDefaultUdpPort;
  friend bool operator==(const UdpAddress&, const UdpAddress&) = default;
};

/// Where a server listens, "9475" or "10.0.0.9:9475".
struct ListenAddress {
  std::uint32_t ipv4 = 0x7f00'0001;  ///< host byte order; 127.0.0.1 unless given
  std::uint16_t port = 0;            ///< 0: any that is free
};

/// A range of ports: the first free one is taken.
struct ListenPorts {
  ListenAddress first;
  std::uint16_t last = 0;  ///< not below the first
};

/// An aggregator on this machine, "vhost:/run/sluice".
struct VhostDirectory {
  std::string path;
  friend bool operator==(const VhostDirectory&, const VhostDirectory&) = default;
};

using AggregatorAddress = std::variant<VhostDirectory, UdpAddress>;

/// `name` is the setting's, for the message. Throw kInvalidArgument with `name`, the text and the
/// form that is expected. Addresses are unicast; that of an interface is not its network's own
/// or broadcast address, and a gateway is another host of its network.
InterfaceAddress parse_interface_address(std::string_view name, std::string_view text);
AggregatorAddress parse_aggregator_address(std::string_view name, std::string_view text);

/// The IPv4 address may be 0.0.0.0: all of this machine.
ListenAddress parse_listen_address(std::string_view name, std::string_view text);

/// The same, or with a + behind it: that port, or one of the 255 above it.
ListenPorts parse_listen_ports(std::string_view name, std::string_view text);

/// One aggregator's address and those of its standbys, in the order in which they are to be tried:
/// "vhost:/run/a|10.0.0.9". At least one, each of its own.
std::vector<AggregatorAddress> parse_aggregator_addresses(std::string_view name,
                                                          std::string_view text);

/// The form that the parsers read.
std::string to_string(const InterfaceAddress& address);
std::string to_string(const AggregatorAddress& address);

/// "239.255.74.0/24": its 256 groups. The address is the first of them, beyond 224.0.0.0/24.
GroupRange parse_groups(std::string_view name, std::string_view text);
std::string to_string(const GroupRange& groups);  ///< empty: there are none
std::string ipv4_to_string(std::uint32_t host_order);

}  // namespace sluice::config
