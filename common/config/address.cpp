#include "common/config/address.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include <arpa/inet.h>

#include "common/config/value.hpp"

namespace sluice::config {
namespace {

// 0.0.0.0/8 and everything from multicast up cannot be the address of a host.
bool is_unicast(std::uint32_t ipv4) {
  return ipv4 >= 0x0100'0000 && ipv4 < 0xE000'0000;
}

std::optional<std::uint32_t> parse_ipv4(std::string_view text) {
  in_addr address{};
  if (inet_pton(AF_INET, std::string(text).c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

std::optional<std::uint32_t> parse_unicast(std::string_view text) {
  const auto ipv4 = parse_ipv4(text);
  return ipv4 && is_unicast(*ipv4) ? ipv4 : std::nullopt;
}

// In networks of more than two addresses the lowest and the highest are not a host's.
bool is_host_of_network(const InterfaceAddress& address) {
  const std::uint32_t host = address.ipv4 & ~address.netmask();
  return address.prefix > 30 || (host != 0 && host != ~address.netmask());
}

VhostDirectory parse_vhost_directory(std::string_view name, std::string_view text) {
  const std::string path(text.substr(text.find(':') + 1));
  if (path.empty() || path.size() > limits::kMaxVhostDirectory)
    throw must_be(name,
                  "vhost:DIRECTORY with a path of 1.." +
                      std::to_string(limits::kMaxVhostDirectory) + " bytes",
                  text);
  return {path};
}

}  // namespace

InterfaceAddress parse_interface_address(std::string_view name, std::string_view text) {
  static constexpr IntegerRange kPrefix{1, 32};
  const std::size_t at = text.find('@');
  const std::string_view own = text.substr(0, at);
  const std::size_t slash = own.find('/');
  const auto ipv4 = parse_unicast(own.substr(0, slash));
  if (!ipv4 || slash == own.npos)
    throw must_be(name, "a unicast IPV4/PREFIX[@GATEWAY] such as 10.0.0.2/24", text);
  const auto prefix = static_cast<std::uint8_t>(
      parse_integer(std::string(name) + "'s prefix length", kPrefix, own.substr(slash + 1)));
  InterfaceAddress address{*ipv4, prefix};
  if (!is_host_of_network(address))
    throw must_be(name, "a host's address, neither its network's own nor broadcast", text);
  if (at == text.npos) return address;
  const auto gateway = parse_unicast(text.substr(at + 1));
  const bool is_other_host = gateway && *gateway != *ipv4 && address.same_network(*gateway) &&
                             is_host_of_network({*gateway, prefix});
  if (!is_other_host) throw must_be(name, "a gateway that is another host of its network", text);
  address.gateway = *gateway;
  return address;
}

AggregatorAddress parse_aggregator_address(std::string_view name, std::string_view text) {
  static constexpr IntegerRange kPort{1, 65535};
  if (text.starts_with("vhost:")) return parse_vhost_directory(name, text);
  const std::size_t colon = text.find(':');
  const auto ipv4 = parse_unicast(text.substr(0, colon));
  if (!ipv4) throw must_be(name, "vhost:DIRECTORY or a unicast IPV4[:PORT]", text);
  if (colon == text.npos) return UdpAddress{*ipv4, kDefaultUdpPort};
  return UdpAddress{*ipv4, static_cast<std::uint16_t>(parse_integer(
                               std::string(name) + "'s port", kPort, text.substr(colon + 1)))};
}

ListenAddress parse_listen_address(std::string_view name, std::string_view text) {
  static constexpr IntegerRange kPort{0, 65535};
  const std::size_t colon = text.find(':');
  ListenAddress address;
  if (colon != text.npos) {
    const auto ipv4 = parse_ipv4(text.substr(0, colon));
    if (!ipv4) throw must_be(name, "[IPV4:]PORT", text);
    address.ipv4 = *ipv4;
  }
  const auto port = text.substr(colon == text.npos ? 0 : colon + 1);
  address.port =
      static_cast<std::uint16_t>(parse_integer(std::string(name) + "'s port", kPort, port));
  return address;
}

ListenPorts parse_listen_ports(std::string_view name, std::string_view text) {
  constexpr unsigned kMore = 255;
  const bool is_range = text.ends_with('+');
  const ListenAddress first = parse_listen_address(name, text.substr(0, text.size() - is_range));
  if (!is_range) return {first, first.port};
  if (first.port == 0 || first.port > 65535 - kMore)
    throw must_be(name, "[IPV4:]PORT+ with a port of 1..65280", text);
  return {first, static_cast<std::uint16_t>(first.port + kMore)};
}

std::vector<AggregatorAddress> parse_aggregator_addresses(std::string_view name,
                                                          std::string_view text) {
  std::vector<AggregatorAddress> addresses;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('|', begin), text.size());
    const auto address = parse_aggregator_address(name, text.substr(begin, end - begin));
    if (std::find(addresses.begin(), addresses.end(), address) != addresses.end())
      throw must_be(name, "different addresses between '|'", text);
    addresses.push_back(address);
    begin = end + 1;
  }
  return addresses;
}

GroupRange parse_groups(std::string_view name, std::string_view text) {
  static constexpr IntegerRange kPrefix{8, 32};
  const std::size_t slash = text.find('/');
  const auto first = parse_ipv4(text.substr(0, slash));
  if (!first || slash == text.npos || !is_multicast(*first) || is_link_local_multicast(*first))
    throw must_be(name, "an IPV4/PREFIX of multicast groups such as 239.255.74.0/24", text);
  const auto prefix =
      parse_integer(std::string(name) + "'s prefix length", kPrefix, text.substr(slash + 1));
  const std::uint32_t count = std::uint32_t{1} << (32 - prefix);
  // RFC 4607; and groups whose Ethernet addresses are those of 224.0.0.0/24, which go to every
  // port.
  constexpr std::uint32_t kMacBits = 0x7f'ffff;
  if (*first >> 24 == 232 || (*first & kMacBits) < 256 || count > kMacBits)
    throw must_be(name, "groups that switches deliver to those who join, such as 239.255.74.0/24",
                  text);
  if (*first % count != 0)
    throw must_be(name,
                  ipv4_to_string(*first - *first % count) + "/" + std::to_string(prefix) +
                      ", the first address of its network",
                  text);
  return {*first, count};
}

std::string to_string(const GroupRange& groups) {
  if (groups.count == 0) return "";
  return ipv4_to_string(groups.first) + "/" + std::to_string(std::countl_zero(groups.count) + 1);
}

std::string ipv4_to_string(std::uint32_t host_order) {
  std::array<char, INET_ADDRSTRLEN> text{};
  const in_addr address{htonl(host_order)};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return text.data();
}

std::string to_string(const InterfaceAddress& address) {
  return ipv4_to_string(address.ipv4) + "/" + std::to_string(address.prefix) +
         (address.gateway == 0 ? "" : "@" + ipv4_to_string(address.gateway));
}

std::string to_string(const AggregatorAddress& address) {
  if (const auto* directory = std::get_if<VhostDirectory>(&address))
    return "vhost:" + directory->path;
  const auto& udp = std::get<UdpAddress>(address);
  return ipv4_to_string(udp.ipv4) + ":" + std::to_string(udp.port);
}

}  // namespace sluice::config
